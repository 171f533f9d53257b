"""Loggers by name: the logger and the file of each record, and levels that change at run time."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import pytest

import warpseal
from warpseal.errors import CallRefused, StartupError
from warpseal.ops.logs.loggers import MAX_FILE_BYTES, MAX_OLD_FILES, PACKAGE_LOGGERS, DaemonLoggers


def attach_loggers(
    folder: Path | None = None, level: str = "info", display_level: str | None = None
) -> tuple[DaemonLoggers, io.StringIO]:
    display, loggers = io.StringIO(), DaemonLoggers(level, folder)
    loggers.add_chains(("P", "X"))
    loggers.set_levels("", None, display_level)
    loggers.attach(display)
    return loggers, display


def lines(text: str) -> list[str]:
    return [line.split(" warpseal", 1)[-1].split(" ", 1)[-1] for line in text.splitlines()]


@pytest.mark.parametrize(
    ("logger", "fields", "name"),
    [
        ("warpseal.peers.network", {}, "peers"),
        ("warpseal.store.writer", {}, "store"),
        ("warpseal.ops.plugins.probe", {}, "vm-factory"),
        ("vm-factory", {}, "vm-factory"),
        ("warpseal.daemon.app", {}, "main"),
        ("warpseal", {}, "main"),
        ("uvicorn", {}, "main"),
        ("peers", {}, "main"),
        ("warpseal.l1.follower", {}, "P"),
        ("warpseal.indexer.consumers", {"chain": "x-chain"}, "X"),
        ("warpseal.indexer.consumers", {"chain": "c-chain"}, "indexer"),
        ("warpseal.indexer.consumers", {"chain": "main"}, "main"),
    ],
)
def test_each_record_belongs_to_one_logger(logger: str, fields: dict[str, str], name: str) -> None:
    loggers = DaemonLoggers()
    loggers.add_chains(("P", "X"))
    record = logging.LogRecord(logger, logging.INFO, "f.py", 1, "x", (), None)
    vars(record).update(fields)
    assert loggers.logger_name(record) == name


def test_every_package_that_logs_has_a_logger() -> None:
    source = Path(warpseal.__file__).parent
    logging_packages: set[str] = set()
    for file in source.rglob("*/*.py"):
        if "logging.getLogger(__name__)" in file.read_text():
            parts = file.relative_to(source).with_suffix("").parts
            logging_packages.add(parts[1] if parts[0] == "ops" else parts[0])
    assert logging_packages - {"cli", "daemon", "plugins"} <= set(PACKAGE_LOGGERS)


def test_a_changed_display_level_applies_to_later_lines_of_that_logger() -> None:
    loggers, display = attach_loggers()
    peers, store = logging.getLogger("warpseal.peers.x"), logging.getLogger("warpseal.store.x")
    peers.debug("one")
    loggers.set_levels("peers", None, "debug")
    peers.debug("two")
    store.debug("three")
    loggers.set_levels("", None, "off")
    peers.critical("four")
    loggers.set_levels("store", None, "warn")
    store.info("five")
    store.warning("six")
    assert lines(display.getvalue()) == ["two", "six"]


@pytest.mark.parametrize("package", ["health", "profiles"])
def test_a_level_applies_to_the_packages_inside_ops(package: str) -> None:
    loggers, display = attach_loggers()
    loggers.set_levels(package, None, "debug")
    logging.getLogger(f"warpseal.ops.{package}.x").debug("detail")
    loggers.set_levels(package, None, "off")
    logging.getLogger(f"warpseal.ops.{package}.x").critical("silenced")
    assert lines(display.getvalue()) == ["detail"]


def test_plugin_output_uses_the_levels_and_the_file_of_vm_factory(tmp_path: Path) -> None:
    loggers, display = attach_loggers(tmp_path, "info", "off")
    logging.getLogger("vm-factory").info("printed")
    assert "printed" in (tmp_path / "vm-factory.log").read_text()
    loggers.set_levels("vm-factory", "off", "debug")
    logging.getLogger("vm-factory").debug("shown")
    logging.getLogger("warpseal.daemon.app").warning("of main")
    assert lines(display.getvalue()) == ["DEBUG vm-factory shown"]


def test_each_chain_has_its_own_levels() -> None:
    loggers, display = attach_loggers()
    log = logging.getLogger("warpseal.indexer.consumers")
    loggers.set_levels("X", None, "debug")
    log.debug("of x", extra={"chain": "x-chain"})
    log.debug("of p", extra={"chain": "p-chain"})
    log.debug("of none")
    assert [line.split(" chain=")[0] for line in lines(display.getvalue())] == ["of x"]


def test_files_and_display_have_separate_levels(tmp_path: Path) -> None:
    loggers, display = attach_loggers(tmp_path / "logs", "debug", "warn")
    log = logging.getLogger("warpseal.peers.x")
    log.debug("quiet")
    log.warning("loud")
    loggers.set_levels("peers", "error", "info")
    log.warning("displayed only")
    logging.getLogger("other").error("of main")
    assert lines((tmp_path / "logs" / "peers.log").read_text()) == ["quiet", "loud"]
    assert "of main" in (tmp_path / "logs" / "main.log").read_text()
    assert lines(display.getvalue())[:2] == ["loud", "displayed only"]


def test_without_a_folder_file_levels_enable_no_logger() -> None:
    attach_loggers(None, "verbo", "error")
    assert not logging.getLogger("warpseal.peers").isEnabledFor(logging.WARNING)


def test_files_are_rotated_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warpseal.ops.logs.loggers.MAX_FILE_BYTES", 2_000)
    attach_loggers(tmp_path, "info", "off")
    for number in range(1_000):
        logging.getLogger("warpseal.peers").info("line %d", number)
    files = sorted(tmp_path.glob("peers.log*"))
    assert len(files) == MAX_OLD_FILES + 1
    assert all(file.stat().st_size <= 2_000 for file in files)
    assert MAX_FILE_BYTES == 8 * 1024 * 1024


def test_a_file_that_was_moved_or_deleted_is_opened_again_at_the_next_line(tmp_path: Path) -> None:
    attach_loggers(tmp_path, "info", "off")
    log, file = logging.getLogger("warpseal.peers"), tmp_path / "peers.log"
    log.info("one")
    file.rename(tmp_path / "peers.log-20261122")
    log.info("two")
    assert lines((tmp_path / "peers.log-20261122").read_text()) == ["one"]
    assert lines(file.read_text()) == ["two"]
    file.unlink()
    log.info("three")
    assert lines(file.read_text()) == ["three"]


def test_reopening_opens_all_files_at_once_and_logs_one_line(tmp_path: Path) -> None:
    loggers, display = attach_loggers(tmp_path)
    for name in ("peers", "store"):
        logging.getLogger(f"warpseal.{name}").info("before")
        (tmp_path / f"{name}.log").rename(tmp_path / f"{name}.old")
    loggers.reopen()
    assert [(tmp_path / f"{name}.log").read_text() for name in ("peers", "store")] == ["", ""]
    assert lines(display.getvalue())[-1] == "log files reopened files=2"
    logging.getLogger("warpseal.peers").info("after")
    assert lines((tmp_path / "peers.log").read_text()) == ["after"]


def test_without_files_reopening_changes_nothing() -> None:
    loggers, display = attach_loggers()
    loggers.reopen()
    assert lines(display.getvalue()) == ["log files reopened files=0"]


def test_a_file_that_cannot_be_written_is_displayed_once_and_used_again_later(
    tmp_path: Path,
) -> None:
    _, display = attach_loggers(tmp_path)
    log, file = logging.getLogger("warpseal.peers"), tmp_path / "peers.log"
    file.mkdir()
    log.info("one")
    log.info("two")
    file.rmdir()
    log.info("three")
    assert lines(file.read_text()) == ["three"]
    one, failure, *others = display.getvalue().splitlines()
    assert one.endswith(" one")
    assert f"WARNING warpseal.ops.logs.loggers log file cannot be written path={file}" in failure
    assert failure.endswith(' reason="is a directory"')
    assert lines("\n".join(others)) == ["two", "three"]


def test_a_chain_alias_cannot_name_a_file_outside_the_log_folder(tmp_path: Path) -> None:
    loggers = DaemonLoggers("info", tmp_path / "logs")
    loggers.add_chains(("../../up", "/abs"))
    loggers.attach(io.StringIO())
    for alias in ("../../up", "/abs"):
        logging.getLogger("warpseal.indexer.x").info("x", extra={"chain": alias})
    assert {file.parent for file in tmp_path.rglob("*.log")} == {tmp_path / "logs"}


def test_a_log_folder_that_cannot_be_created_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match="log-dir"):
        DaemonLoggers("info", tmp_path / "file" / "logs").attach(io.StringIO())


def test_an_unknown_logger_is_refused_and_nothing_changes() -> None:
    loggers = DaemonLoggers()
    before = dict(loggers.levels())
    with pytest.raises(CallRefused, match='logger with name "nope" not found'):
        loggers.set_levels("nope", "debug", "debug")
    assert loggers.levels() == before
    assert list(before) == sorted(before)
