"""Text of files, nodes and peers reaches no terminal with characters that control it."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from pathlib import Path

import pytest

from tests.store.fixtures import hasty_settings
from warpseal.cli import index as index_command
from warpseal.cli.main import main
from warpseal.config.keys import KEYS
from warpseal.indexer.verify import IndexFinding
from warpseal.store.store import open_store

ESCAPE = "\x1b[2J\x9b31m\x07\u202e"
CONTROLS = re.compile(r"[^\n -~\xa1-\uffff]|\u202e")


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG_FILE", *(key.name.upper().replace("-", "_") for key in KEYS)):
        monkeypatch.delenv(f"WARPSEAL_{name}", raising=False)
        monkeypatch.delenv(name, raising=False)


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a command has printed, which holds no control characters."""
    output, errors = capsys.readouterr()
    assert CONTROLS.findall(output + errors) == []
    return output + errors


def make_store(folder: Path) -> Path:
    """Return the path of an empty store."""

    async def make() -> None:
        async with open_store(hasty_settings(f"sqlite:///{folder}/store.db"), None):
            pass

    asyncio.run(make())
    return folder / "store.db"


def test_a_startup_error_that_quotes_a_file_has_no_escape_sequences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({f"api-port{ESCAPE}": 1, "log-level": ESCAPE}))
    assert main(["serve", "--config", str(file)]) == 1
    text = printed(capsys)
    assert "api-port?[2J?31m??" in text
    # The errors stand in lines of their own.
    assert len(text.splitlines()) > 2


def test_config_check_prints_no_escape_sequences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"p-chain-api": ESCAPE}))
    assert main(["config", "check", str(file)]) == 1
    assert "p-chain-api" in printed(capsys)


def test_an_error_with_the_path_of_a_store_has_no_escape_sequences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["store", "info", "--store-url", f"sqlite:///{tmp_path}/a\x1b[2J.db"]) == 1
    assert "a?[2J.db" in printed(capsys)


def test_key_list_prints_no_escape_sequences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_store(tmp_path)
    where = ("--store-url", f"sqlite:///{path}")
    assert main(["key", "create", "explorer", *where]) == 0
    capsys.readouterr()
    with sqlite3.connect(path) as database:
        database.execute("UPDATE api_keys SET name = ?, hint = ?", (f"ex{ESCAPE}", f"hi{ESCAPE}"))
    assert main(["key", "list", *where]) == 0
    assert re.match(r"ex\?\[2J\?31m\?\? +\.\.\.hi\?\[2J", printed(capsys))


def test_store_info_prints_no_escape_sequences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_store(tmp_path)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE alembic_version SET version_num = ?", (f"9{ESCAPE}",))
    main(["store", "info", "--store-url", f"sqlite:///{path}"])
    assert "9?[2J" in printed(capsys)


def test_index_verify_prints_no_escape_sequences(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    findings = (
        IndexFinding(f"balance of {ESCAPE}", difference=f"is {ESCAPE}"),
        IndexFinding("supply", is_compared=False, reason=f"the node answered {ESCAPE}"),
        IndexFinding("holders", remark=f"the token is called {ESCAPE}"),
    )

    async def verify(*_: object) -> tuple[IndexFinding, ...]:
        return findings

    monkeypatch.setattr(index_command, "verify_index", verify)
    assert (
        main(
            [
                "index",
                "verify",
                "--p-chain-api",
                "http://127.0.0.1:1",
                "--info-api",
                "http://127.0.0.1:1",
            ]
        )
        == 1
    )
    assert printed(capsys).count("?[2J?31m??") == 4


def test_message_decode_prints_no_escape_sequences(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    decoded = {"type": "CreateChainTx", "name": f"chain{ESCAPE}"}
    monkeypatch.setattr("warpseal.cli.message._decode_bytes", lambda raw: decoded)
    assert main(["message", "decode", "00"]) == 0
    assert "chain?[2J" in printed(capsys)
