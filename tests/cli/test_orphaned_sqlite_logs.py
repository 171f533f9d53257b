"""No command lets SQLite drop the log of a database whose file is missing or empty."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.store.signed import create_store
from warpseal.cli.main import main
from warpseal.errors import StartupError
from warpseal.index.database import reading_index, translate_errors, writing_index
from warpseal.index.evm.database import writing_evm_index
from warpseal.index.settings import IndexSettings
from warpseal.store.connection import Engine
from warpseal.store.copies import check_pages, copy_store
from warpseal.store.engine import reading_engine, writing_engine
from warpseal.store.errors import StoreDown, StoreUnusable
from warpseal.store.url import StoreUrl
from warpseal.warp.ids import ChainID

COMMANDS = {
    "store.db": (
        ("store", "info"),
        ("store", "check"),
        ("store", "export"),
        ("store", "import", "export.jsonl"),
        ("store", "upgrade"),
        ("key", "create", "name"),
        ("key", "list"),
        ("key", "revoke", "name"),
        ("backup", "--output", "backup.tar"),
    ),
    "metrics.db": (("usage",), ("backup", "--output", "backup.tar")),
}
STATES = (None, b"")
"""The content of a file that has a log; None: it is missing."""


@pytest.fixture(params=STATES, ids=("missing", "empty"))
def content(request: pytest.FixtureRequest) -> bytes | None:
    value: bytes | None = request.param
    return value


def leave_log(file: Path, content: bytes | None) -> Path:
    """Write a database whose log has rows, as a killed process leaves it, and lose the file; return
    the log.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    writer = sqlite3.connect(file)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("CREATE TABLE signatures (number INTEGER)")
    writer.commit()
    log = file.with_name(file.name + "-wal")
    rows = log.read_bytes()
    writer.close()
    file.unlink()
    log.write_bytes(rows)
    if content is not None:
        file.write_bytes(content)
    return log


@pytest.mark.parametrize(
    ("name", "arguments"),
    [(name, arguments) for name, commands in COMMANDS.items() for arguments in commands],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_a_command_refuses_a_log_without_its_file_and_leaves_it(
    name: str,
    arguments: tuple[str, ...],
    content: bytes | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "data" / "88888"
    if name != "store.db":
        create_store(f"sqlite:///{folder}/store.db")
    log = leave_log(folder / name, content)
    rows = log.read_bytes()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "export.jsonl").write_text(
        '{"format":"warpseal-store","version":1,"networkId":88888}\n'
    )
    assert main((*arguments, "--data-dir", str(tmp_path / "data"))) == 1
    assert log.read_bytes() == rows
    reason = capsys.readouterr().err
    assert f"its log {name}-wal has data: put the file back next to it" in reason
    assert str(folder / name) in reason
    assert not (tmp_path / "backup.tar").exists()


ENGINES: dict[str, Callable[[StoreUrl], Engine]] = {
    "reading_engine": reading_engine,
    "writing_engine": writing_engine,
    "reading_index": lambda url: reading_index(url, IndexSettings()),
    "writing_index": lambda url: writing_index(url, IndexSettings()),
    "writing_evm_index": lambda url: writing_evm_index(url, IndexSettings(), ChainID(bytes(32))),
}


@pytest.mark.parametrize("build", ENGINES.values(), ids=ENGINES)
def test_every_engine_refuses_a_log_without_its_file(
    build: Callable[[StoreUrl], Engine], content: bytes | None, tmp_path: Path
) -> None:
    log = leave_log(tmp_path / "file.db", content)
    rows = log.read_bytes()
    with pytest.raises((StartupError, StoreDown), match=r"its log file\.db-wal has data"):  # noqa: PT012
        engine = build(StoreUrl.for_file(tmp_path / "file.db"))
        with translate_errors(engine), engine.connect():
            pass
    assert log.read_bytes() == rows


def test_a_copy_and_a_check_of_pages_refuse_a_log_without_its_file(
    content: bytes | None, tmp_path: Path
) -> None:
    log = leave_log(tmp_path / "file.db", content)
    rows = log.read_bytes()
    with pytest.raises(StoreUnusable, match="has data"):
        copy_store(tmp_path / "file.db", tmp_path / "copy.db")
    with pytest.raises(StoreUnusable, match="has data"):
        check_pages(tmp_path / "file.db", "file.db")
    assert log.read_bytes() == rows
