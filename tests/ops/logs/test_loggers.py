"""Loggers by name: which line belongs to whom, where it goes, and levels that change while it runs."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import pytest

import warpseal
from warpseal.errors import CallRefused, StartupError
from warpseal.ops.logs.loggers import MAX_FILE_BYTES, MAX_OLD_FILES, PACKAGE_LOGGERS, DaemonLoggers


def attached(
    folder: Path | None = None, level: str = "info", display: str | None = None
) -> tuple[DaemonLoggers, io.StringIO]:
    shown, loggers = io.StringIO(), DaemonLoggers(level, display, folder)
    loggers.know_chains(("P", "X"))
    loggers.attach(shown)
    return loggers, shown


def lines(text: str) -> list[str]:
    return [line.split(" warpseal", 1)[-1].split(" ", 1)[-1] for line in text.splitlines()]


@pytest.mark.parametrize(
    ("logger", "fields", "name"),
    [
        ("warpseal.peers.network", {}, "peers"),
        ("warpseal.store.writer", {}, "store"),
        ("warpseal.ops.plugins.output", {}, "vm-factory"),
        ("vm-factory", {}, "vm-factory"),
        ("warpseal.daemon.app", {}, "main"),
        ("warpseal", {}, "main"),
        ("uvicorn", {}, "main"),
        ("peers", {}, "main"),
        ("warpseal.l1.follower.follower", {}, "P"),
        ("warpseal.indexer.chain_indexer", {"chain": "x-chain"}, "X"),
        ("warpseal.indexer.chain_indexer", {"chain": "c-chain"}, "indexer"),
        ("warpseal.indexer.chain_indexer", {"chain": "main"}, "main"),
    ],
)
def test_each_line_has_its_logger(logger: str, fields: dict[str, str], name: str) -> None:
    loggers = DaemonLoggers()
    loggers.know_chains(("P", "X"))
    record = logging.LogRecord(logger, logging.INFO, "f.py", 1, "x", (), None)
    vars(record).update(fields)
    assert loggers.name_of(record) == name


def test_every_room_that_logs_has_its_logger() -> None:
    source = Path(warpseal.__file__).parent
    logging_rooms = {
        file.relative_to(source).parts[1 if file.is_relative_to(source / "ops") else 0]
        for file in source.rglob("*/*.py")
        if "logging.getLogger(__name__)" in file.read_text()
    }
    assert logging_rooms - {"daemon", "plugins"} <= set(PACKAGE_LOGGERS)


async def test_a_level_changes_what_is_shown_of_one_logger_from_then_on() -> None:
    loggers, shown = attached()
    peers, store = logging.getLogger("warpseal.peers.x"), logging.getLogger("warpseal.store.x")
    peers.debug("one")
    await loggers.set_levels("peers", None, "debug")
    peers.debug("two")
    store.debug("three")
    await loggers.set_levels("", None, "off")
    peers.critical("four")
    await loggers.set_levels("store", None, "warn")
    store.info("five")
    store.warning("six")
    assert lines(shown.getvalue()) == ["two", "six"]


async def test_what_plugins_print_has_the_levels_and_the_file_of_vm_factory(tmp_path: Path) -> None:
    loggers, shown = attached(tmp_path, "info", "off")
    logging.getLogger("vm-factory").info("printed")
    assert "printed" in (tmp_path / "vm-factory.log").read_text()
    await loggers.set_levels("vm-factory", "off", "debug")
    logging.getLogger("vm-factory").debug("shown")
    logging.getLogger("warpseal.daemon.app").warning("of main")
    assert lines(shown.getvalue()) == ["DEBUG vm-factory shown"]


async def test_chains_that_share_their_code_have_levels_of_their_own() -> None:
    loggers, shown = attached()
    log = logging.getLogger("warpseal.indexer.chain_indexer")
    await loggers.set_levels("X", None, "debug")
    log.debug("of x", extra={"chain": "x-chain"})
    log.debug("of p", extra={"chain": "p-chain"})
    log.debug("of none")
    assert [line.split(" chain=")[0] for line in lines(shown.getvalue())] == ["of x"]


async def test_files_and_what_is_displayed_have_levels_apart(tmp_path: Path) -> None:
    loggers, shown = attached(tmp_path / "logs", "debug", "warn")
    log = logging.getLogger("warpseal.peers.x")
    log.debug("quiet")
    log.warning("loud")
    await loggers.set_levels("peers", "error", "info")
    log.warning("displayed only")
    logging.getLogger("other").error("of main")
    assert lines((tmp_path / "logs" / "peers.log").read_text()) == ["quiet", "loud"]
    assert "of main" in (tmp_path / "logs" / "main.log").read_text()
    assert lines(shown.getvalue())[:2] == ["loud", "displayed only"]


def test_without_a_folder_no_level_of_files_costs_anything() -> None:
    attached(None, "verbo", "error")
    assert not logging.getLogger("warpseal.peers").isEnabledFor(logging.WARNING)


def test_files_are_rotated_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warpseal.ops.logs.loggers.MAX_FILE_BYTES", 2_000)
    attached(tmp_path, "info", "off")
    for number in range(1_000):
        logging.getLogger("warpseal.peers").info("line %d", number)
    files = sorted(tmp_path.glob("peers.log*"))
    assert len(files) == MAX_OLD_FILES + 1
    assert all(file.stat().st_size <= 2_000 for file in files)
    assert MAX_FILE_BYTES == 8 * 1024 * 1024


def test_no_alias_of_a_chain_names_a_file_elsewhere(tmp_path: Path) -> None:
    loggers = DaemonLoggers("info", "off", tmp_path / "logs")
    loggers.know_chains(("../../up", "/abs"))
    loggers.attach(io.StringIO())
    for alias in ("../../up", "/abs"):
        logging.getLogger("warpseal.indexer.x").info("x", extra={"chain": alias})
    assert {file.parent for file in tmp_path.rglob("*.log")} == {tmp_path / "logs"}


def test_a_folder_that_cannot_be_made_is_named_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match="log-dir"):
        DaemonLoggers("info", None, tmp_path / "file" / "logs").attach(io.StringIO())


async def test_a_logger_that_is_not_there_is_refused_and_nothing_changes() -> None:
    loggers = DaemonLoggers()
    before = dict(loggers.levels())
    with pytest.raises(CallRefused, match='logger with name "nope" not found'):
        await loggers.set_levels("nope", "debug", "debug")
    assert loggers.levels() == before
    assert list(before) == sorted(before)
