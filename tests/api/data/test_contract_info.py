"""Descriptions of contracts in files: what a file may say, and how changes of files count."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import until
from warpseal.api.data import contract_info
from warpseal.api.data.contract_info import MAX_FILE_BYTES, ContractInfoFolder
from warpseal.resources.evm import ImageAsset, ResourceLink, ResourceLinkType
from warpseal.runtime.process import running

CONTRACT = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"
OTHER = "0x" + "22" * 20
FULL: dict[str, Any] = {
    "name": "Cats",
    "symbol": "CAT",
    "description": "Cats of the chain.",
    "officialSite": "https://cats.example",
    "email": "cats@cats.example",
    "color": "#ff0000",
    "logoAsset": {"assetId": "1", "imageUri": "https://cats.example/logo.png"},
    "bannerAsset": {"imageUri": "https://cats.example/banner.png"},
    "resourceLinks": [{"type": "Blog", "url": "https://cats.example/blog"}],
    "tags": ["cats"],
    "hidden": False,
}


def write(folder: Path, chain: str, address: str, content: Any) -> Path:
    file = folder / chain / f"{address}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def test_a_file_describes_a_contract_of_a_chain_by_any_of_its_names(tmp_path: Path) -> None:
    write(tmp_path, "43114", CONTRACT.lower(), FULL)
    write(tmp_path, "C", OTHER, {"hidden": True})
    folder = ContractInfoFolder(tmp_path)
    folder.load()
    contracts = folder.contracts(("chain-id", "43114", "C"))
    info = contracts.of(CONTRACT)
    assert info is not None
    assert (info.name, info.tags, info.logo_asset) == (
        "Cats",
        ("cats",),
        ImageAsset(asset_id="1", image_uri="https://cats.example/logo.png"),
    )
    assert info.resource_links == (
        ResourceLink(type=ResourceLinkType.BLOG, url="https://cats.example/blog"),
    )
    assert contracts.hidden == {bytes.fromhex("22" * 20)}
    assert folder.contracts(("43113",)).of(CONTRACT) is None


@pytest.mark.parametrize(
    "content",
    [
        *(
            "{",
            "[]",
            '{"nam": "x"}',
            '{"name": 1}',
            '{"resourceLinks": [{"type": "Myspace", "url": "x"}]}',
        ),
        *("[" * 9_000, json.dumps({"name": "x" * MAX_FILE_BYTES})),
    ],
    ids=["cut", "list", "unknown key", "wrong type", "unknown link", "nested", "long"],
)
def test_a_file_that_cannot_be_used_is_named_and_the_others_count(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    broken = write(tmp_path, "1", CONTRACT, content)
    write(tmp_path, "1", OTHER, {"name": "right"})
    folder = ContractInfoFolder(tmp_path)
    with caplog.at_level(logging.WARNING):
        folder.load()
        folder.load()
    assert [record.__dict__["file"] for record in caplog.records] == [str(broken)]
    contracts = folder.contracts(("1",))
    other = contracts.of(OTHER)
    assert contracts.of(CONTRACT) is None
    assert other is not None
    assert other.name == "right"


def test_files_that_name_no_address_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "1", "cats", FULL)
    os.mkfifo(tmp_path / "1" / f"{CONTRACT}.json")
    with caplog.at_level(logging.WARNING):
        ContractInfoFolder(tmp_path).load()
    assert len(caplog.records) == 2


def test_a_file_that_breaks_later_leaves_what_was_read_before(tmp_path: Path) -> None:
    file = write(tmp_path, "1", CONTRACT, {"name": "before"})
    folder = ContractInfoFolder(tmp_path)
    folder.load()
    file.write_text('{"name": "be')
    folder.load()
    info = folder.contracts(("1",)).of(CONTRACT)
    assert info is not None
    assert info.name == "before"
    file.unlink()
    folder.load()
    assert folder.contracts(("1",)).of(CONTRACT) is None


async def test_changed_files_count_while_the_daemon_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract_info, "RELOAD_S", 0.01)
    folder = ContractInfoFolder(tmp_path)
    folder.load()
    async with running(folder.run()):
        write(tmp_path, "1", CONTRACT, {"hidden": True})
        await until(lambda: bool(folder.contracts(("1",)).hidden))
        os.rename(tmp_path / "1", tmp_path / "2")
        await until(
            lambda: not folder.contracts(("1",)).hidden and bool(folder.contracts(("2",)).hidden)
        )
