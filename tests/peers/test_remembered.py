"""Addresses on disk."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from warpseal.peers.addresses import AddressBook, Endpoint, Remembered, Signed, Worked
from warpseal.peers.remembered import ADDRESSES_NAME, AddressKeeper, load_addresses, save_addresses
from warpseal.warp.ids import NodeID

NOW = 1_700_000_000.0
NODE, OTHER = NodeID(b"\1" * 20), NodeID(b"\2" * 20)
HERE, THERE = Endpoint.parse("203.0.113.1", 9651), Endpoint.parse("2001:db8::1", 9652)
MEMORIES = [
    Remembered(NODE, Worked(HERE, 1_700_000_000.25, 100), Signed(THERE, 200)),
    Remembered(OTHER, None, Signed(HERE, 300)),
]


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    save_addresses(tmp_path, MEMORIES)
    assert load_addresses(tmp_path, NOW) == MEMORIES


def test_the_file_tells_when_each_address_last_worked(tmp_path: Path) -> None:
    save_addresses(tmp_path, MEMORIES[:1])
    (node,) = json.loads((tmp_path / ADDRESSES_NAME).read_bytes())["nodes"]
    assert node["nodeId"].startswith("NodeID-")
    assert node["worked"] == {"ip": "203.0.113.1", "port": 9651, "workedAt": 1_700_000_000.25, "signedAt": 100}


@pytest.mark.parametrize("signed_at", [-1, int(NOW) + 61, 2**63 - 1])
def test_what_was_signed_in_the_future_is_forgotten(tmp_path: Path, signed_at: int) -> None:
    save_addresses(tmp_path, [Remembered(NODE, Worked(HERE, NOW, signed_at), Signed(THERE, 200))])
    assert load_addresses(tmp_path, NOW) == [Remembered(NODE, None, Signed(THERE, 200))]


def test_no_file_is_no_fault(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load_addresses(tmp_path, NOW) == []
    assert caplog.records == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"format": 2, "nodes": []}',
        b'{"format": 1, "nodes": [{"nodeId": "NodeID-x"}]}',
        b'{"format": 1, "nodes": [{"nodeId": 7}]}',
        b'{"format": 1, "nodes": [{"nodeId": "NodeID-111111111111111111116DBWJs",'
        b' "signed": {"ip": "example.org", "port": 1}}]}',
    ],
)
def test_a_damaged_file_is_set_aside_with_a_warning(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / ADDRESSES_NAME).write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert load_addresses(tmp_path, NOW) == []
    assert "set aside" in caplog.text
    assert (tmp_path / f"{ADDRESSES_NAME}.damaged").read_bytes() == content
    assert not (tmp_path / ADDRESSES_NAME).exists()


async def test_only_what_changed_is_written_and_a_second_start_finds_it(tmp_path: Path) -> None:
    book = AddressBook((), allow_private=False, max_nodes=10)
    keeper = AddressKeeper(book, tmp_path, 60.0)
    keeper.save()
    assert not (tmp_path / ADDRESSES_NAME).exists()
    book.reached(NODE, HERE, 1_000.0)
    keeper.save()
    again = AddressBook((), allow_private=False, max_nodes=10)
    await AddressKeeper(again, tmp_path, 60.0).recall()
    assert again.candidates(NODE) == (HERE,)


def test_a_disk_that_is_full_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    book = AddressBook((), allow_private=False, max_nodes=10)
    book.reached(NODE, HERE, 1_000.0)
    AddressKeeper(book, tmp_path / "missing", 60.0).save()
    assert "cannot be written" in caplog.text
