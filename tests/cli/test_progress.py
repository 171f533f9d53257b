"""The progress of long commands: a bar on a terminal, which it leaves clean; lines elsewhere."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_store import create_filled_store
from tests.eventually import until
from tests.integration.process import ABSENT_NODES
from warpseal.cli import progress
from warpseal.cli.main import main
from warpseal.cli.progress import ProgressDisplay
from warpseal.indexer.verify import IndexFinding
from warpseal.peers.identity import issue_certificate
from warpseal.store.copies import copy_store

CLEAR = "\r\x1b[K"
Arguments = Callable[[Path], tuple[str, ...]]


class Terminal:
    """A pseudo terminal of 80 columns. `text`: what it got."""

    def __init__(self) -> None:
        self._primary, secondary = pty.openpty()
        os.set_blocking(self._primary, False)
        self.stream = os.fdopen(secondary, "w")

    @property
    def text(self) -> str:
        self.stream.flush()
        with closing(io.BytesIO()) as content:
            while True:
                try:
                    content.write(os.read(self._primary, 65_536))
                except OSError:
                    return content.getvalue().decode()

    def close(self) -> None:
        self.stream.close()
        os.close(self._primary)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("TERM", "xterm")
    with closing(Terminal()) as fake:
        yield fake


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The folder of a data folder, an export and a backup."""
    create_filled_store(f"sqlite:///{tmp_path}/data/12345/store.db")
    certificate, key = issue_certificate()
    (tmp_path / "data" / "12345" / "identity.pem").write_bytes(key + certificate)
    where = ("--data-dir", str(tmp_path / "data"), "--network", "12345")
    assert main(("store", "export", "--output", str(tmp_path / "made.jsonl"), *where)) == 0
    assert main(("backup", "--output", str(tmp_path / "made.tar"), *where)) == 0
    return tmp_path


def _backup(folder: Path) -> tuple[str, ...]:
    return "backup", "--output", str(folder / "second.tar"), "--data-dir", str(folder / "data")


def _restore(folder: Path) -> tuple[str, ...]:
    return "restore", str(folder / "made.tar"), "--data-dir", str(folder / "other")


def _check(folder: Path) -> tuple[str, ...]:
    return "store", "check", "--data-dir", str(folder / "data")


def _export(folder: Path) -> tuple[str, ...]:
    return (
        "store",
        "export",
        "--output",
        str(folder / "second.jsonl"),
        "--data-dir",
        str(folder / "data"),
    )


def _import(folder: Path) -> tuple[str, ...]:
    return (
        "store",
        "import",
        str(folder / "made.jsonl"),
        "--store-url",
        f"sqlite:///{folder}/new.db",
    )


COMMANDS = [
    pytest.param(
        _backup,
        (
            "copying the pages of store.db: ",
            "hashing identity.pem, bytes: ",
            "writing store.db, bytes: ",
        ),
        id="backup",
    ),
    pytest.param(
        _restore, ("checking store.db, bytes: ", "restoring identity.pem, bytes: "), id="restore"
    ),
    pytest.param(
        _check, ("checking the pages: ", "checking messages: 1 of 2, 50 %"), id="store check"
    ),
    pytest.param(_export, ("exporting messages: ",), id="store export"),
    pytest.param(_import, ("importing messages: 2, ",), id="store import"),
]


@pytest.mark.parametrize(("command", "steps"), COMMANDS)
def test_a_terminal_shows_the_steps_of_a_command_and_is_clean_at_its_end(
    command: Arguments,
    steps: tuple[str, ...],
    data: Path,
    terminal: Terminal,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    assert main(command(data)) == 0
    text = terminal.text
    assert [step for step in steps if step not in text] == []
    bars, _, rest = text.rpartition(CLEAR)
    assert CLEAR in bars
    # Only the command's own lines follow the bar.
    assert all(line.startswith(("exported", "imported")) for line in rest.splitlines())


@pytest.mark.parametrize(("command", "steps"), COMMANDS)
def test_a_pipe_gets_lines_without_control_characters(
    command: Arguments,
    steps: tuple[str, ...],
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    assert main(command(data)) == 0
    assert "\r" not in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


async def test_a_line_is_printed_each_interval_also_if_a_step_reports_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "_LINE_EVERY_S", 0.01)
    with ProgressDisplay() as display:
        display.update("checking the pages")
        await until(lambda: stream.getvalue().count("checking the pages: 0 s\n") >= 2)
        display.update("checking messages", 512, 2_048)
        await until(lambda: "checking messages: 512 of 2,048, 25 %, " in stream.getvalue())
    output = stream.getvalue()
    await asyncio.sleep(0.05)
    assert stream.getvalue() == output


def test_no_bar_is_drawn_into_output_on_the_same_terminal(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    monkeypatch.setattr(sys, "stdout", terminal.stream)
    with ProgressDisplay(writes_stdout=True) as display:
        display.update("exporting messages", 1, 2)
    assert terminal.text == ""


def test_a_line_of_output_is_printed_above_the_bar(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    monkeypatch.setattr(sys, "stdout", terminal.stream)
    with ProgressDisplay() as display:
        display.update("checking messages", 1, 2)
        display.print("message 1: no Warp message")
    bar, line = terminal.text.replace("\r\n", "\n").rsplit(CLEAR, 1)
    assert bar.startswith(f"{CLEAR}[############............] checking messages: 1 of 2, 50 %")
    assert line == "message 1: no Warp message\n"


def test_a_dumb_terminal_gets_no_bar(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    with ProgressDisplay() as display:
        display.update("checking messages", 1, 2)
    assert terminal.text == ""


def test_a_copy_in_steps_has_the_rows_of_one_moment_while_another_process_writes(
    tmp_path: Path,
) -> None:
    source, target = tmp_path / "store.db", tmp_path / "copy.db"
    with closing(sqlite3.connect(source, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE rows (number INTEGER, filler BLOB)")
        connection.execute(
            "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 9999)"
            " INSERT INTO rows SELECT i, zeroblob(1000) FROM n"
        )
        reports = []

        def write(done: int, total: int) -> None:
            reports.append((done, total))
            connection.execute("UPDATE rows SET number = number + 1")

        copy_store(source, target, write)
    assert len(reports) > 2
    assert [done for done, _ in reports] == sorted({done for done, _ in reports})
    assert reports[-1][0] == reports[-1][1]
    with closing(sqlite3.connect(target)) as copy:
        assert copy.execute("SELECT count(*), min(number), max(number) FROM rows").fetchone() == (
            10_000,
            0,
            9_999,
        )


def test_index_verify_shows_the_steps_of_each_chain(
    tmp_path: Path, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def verified(*arguments: Any) -> tuple[IndexFinding, ...]:
        *_, report = arguments
        report("C: comparing blocks", 5, 20)
        report("C: comparing holdings", 20, 20)
        return (IndexFinding("C: block 1", chain="C"),)

    monkeypatch.setattr("warpseal.cli.index.verify_index", verified)
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    assert main(("index", "verify", "--data-dir", str(tmp_path), *ABSENT_NODES)) == 0
    text = terminal.text
    assert text.startswith(f"{CLEAR}[######..................] C: comparing blocks: 5 of 20, 25 %")
    assert "C: comparing holdings: 20 of 20, 100 %" in text
    assert text.endswith(CLEAR)
