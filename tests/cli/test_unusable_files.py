"""Database files that are none: each command names the file, what was found, and what to do, and
exits with 1.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_orphaned_sqlite_logs import COMMANDS
from tests.index.evm.fixtures import CHAIN_ID, IDENTITY
from tests.index.evm.histories import GENESIS_PARENT, History
from tests.index.evm.test_histories import write
from tests.integration.process import ABSENT_NODES
from tests.store.signed import create_store
from warpseal.cli.main import main
from warpseal.index.evm.database import evm_index_url, writing_evm_index
from warpseal.index.evm.writer import EvmIndexWriter
from warpseal.index.settings import IndexSettings

ADVICE = (
    "restore a backup (`warpseal restore`), or move it away: the daemon then begins with a new one"
)
NETWORK = "88888"


def write_text(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.write_bytes(b"no database at all\n" * 500)


def make_folder(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.mkdir()


# What stands in the place of the file -> what the error says.
STATES: dict[str, tuple[Callable[[Path], None], str]] = {
    "text": (write_text, f"file is not a database: {ADVICE}"),
    "folder": (make_folder, "it is a folder, expected a file: name another file"),
}
COMMANDS_OF_FILES = [
    (name, arguments) for name, commands in COMMANDS.items() for arguments in commands
]


def command_id(value: object) -> str:
    return "-".join(value) if isinstance(value, tuple) else str(value)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The network's folder of a daemon with a store, and an export; also the current folder."""
    create_store(f"sqlite:///{tmp_path}/data/{NETWORK}/store.db")
    (tmp_path / "export.jsonl").write_text(
        '{"format":"warpseal-store","version":1,"networkId":88888}\n'
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path / "data" / NETWORK


@pytest.fixture
def run_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """A function that runs a command on the folder, which must fail, and returns its error."""

    def run(*arguments: str) -> str:
        assert main((*arguments, "--data-dir", str(folder.parent), "--network", NETWORK)) == 1
        return capsys.readouterr().err

    return run


@pytest.mark.parametrize(("name", "arguments"), COMMANDS_OF_FILES, ids=command_id)
@pytest.mark.parametrize("state", STATES)
def test_a_command_names_the_file_that_is_no_database(
    state: str,
    name: str,
    arguments: tuple[str, ...],
    folder: Path,
    run_refused: Callable[..., str],
) -> None:
    put, text = STATES[state]
    put(folder / name)
    reason = run_refused(*arguments)
    assert str(folder / name) in reason
    assert text in reason
    assert "Traceback" not in reason
    assert "backup.tar cannot be written" not in reason
    assert not Path("backup.tar").exists()


@pytest.mark.parametrize(("name", "arguments"), COMMANDS_OF_FILES, ids=command_id)
def test_a_command_names_a_file_that_it_may_not_read(
    name: str,
    arguments: tuple[str, ...],
    folder: Path,
    run_refused: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file, access = folder / name, os.access
    if not file.exists():
        file.write_bytes((folder / "store.db").read_bytes())
    # Tests may run as root, who may read everything.
    monkeypatch.setattr(
        os, "access", lambda path, mode, **more: Path(path) != file and access(path, mode, **more)
    )
    reason = run_refused(*arguments)
    assert f"{file} cannot be used: it cannot be read: permission denied" in reason


@pytest.mark.parametrize(("name", "arguments"), COMMANDS_OF_FILES, ids=command_id)
def test_a_command_names_a_folder_that_it_may_not_enter(
    name: str,
    arguments: tuple[str, ...],
    folder: Path,
    run_refused: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any = ".", *others: Any, **more: Any) -> Any:
            if isinstance(path, str | Path) and folder in Path(path).parents:
                raise PermissionError(13, "Permission denied", str(path))
            return real(path, *others, **more)

        return call

    for function in ("stat", "open", "listdir", "scandir"):
        monkeypatch.setattr(os, function, refuse(getattr(os, function)))
    (line,) = run_refused(*arguments).splitlines()
    assert "permission denied" in line
    assert str(folder) in line


def test_texts_of_files_cannot_control_the_terminal(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = folder / "config.json"
    config.write_text('{"log-level": "\\u001b[31m"}')
    assert main(("index", "status", "--config", str(config))) == 1
    output = capsys.readouterr().err
    assert "\x1b" not in output
    # Each error has its own line.
    assert len(output.splitlines()) == 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("UPDATE blocks SET hash = 'x' WHERE number = 7", "index_damaged: "),
        ("UPDATE blocks SET hash = CAST(x'ff' AS TEXT) WHERE number = 7", "damaged"),
    ],
)
def test_an_export_of_damaged_rows_ends_with_one_sentence(
    change: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_evm_index(tmp_path)
    with closing(sqlite3.connect(path)) as database:
        assert database.execute(change).rowcount
        database.commit()
    assert main(("index", "export", "blocks", *ABSENT_NODES, "--data-dir", str(tmp_path))) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert str(path) in line


def test_the_status_of_an_index_that_is_a_folder_is_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_folder(write_evm_index(tmp_path))
    assert main(("index", "status", *ABSENT_NODES, "--data-dir", str(tmp_path))) == 1
    assert "it is a folder" in capsys.readouterr().out


def write_evm_index(folder: Path) -> Path:
    """Write the index of a chain into the data folder of a daemon; return its file."""
    url = evm_index_url(IndexSettings(), folder / NETWORK, CHAIN_ID)
    writer = EvmIndexWriter(writing_evm_index(url, IndexSettings(), CHAIN_ID), IndexSettings())
    writer.start(IDENTITY)
    writer.begin(0, GENESIS_PARENT)
    write(writer, History(5).blocks(20))
    writer.close()
    assert url.path is not None
    with closing(sqlite3.connect(url.path)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return url.path
