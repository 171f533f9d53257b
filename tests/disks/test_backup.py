"""Backup and restore on a disk that fails: whole or not at all, and no file is called damaged."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.disks.disk import SimulatedDisk
from tests.disks.test_sqlite_files import FAILURES, Failure, choose_points
from tests.disks.works import StoreWork
from warpseal.errors import StartupError
from warpseal.ops.backup import BackupArchive, restore_backup, write_backup
from warpseal.store.store import STORE_NAME

NETWORK_ID: Final = 12_345


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """The folder of a network with a store."""
    folder = tmp_path / "network"
    folder.mkdir()
    work = StoreWork(folder)
    work.prepare()
    with SimulatedDisk(folder) as disk:
        asyncio.run(work.run(disk))
    return folder


def back_up(network: Path) -> None:
    """Write the store into an archive beside its folder."""
    write_backup(network.parent / "backup.tar", NETWORK_ID, {STORE_NAME: network / STORE_NAME})


def restore(network: Path) -> None:
    """Restore that archive into a new folder."""
    folder = network.parent / "restored"
    archive_path = network.parent / "backup.tar"
    with archive_path.open("rb") as file:
        restore_backup(BackupArchive(archive_path, file), folder, {STORE_NAME: folder / STORE_NAME})


def fail_each(
    network: Path, failure: Failure, run: Callable[[Path], None], check: Callable[[bool], None]
) -> None:
    """Let operations of a command fail in turn, and check what it leaves."""
    root = network.parent
    with SimulatedDisk(root) as disk:
        run(network)
        total = disk.counts[failure.operation]
        check(False)
    for at in choose_points(total):
        with SimulatedDisk(root) as disk:
            disk.fail(failure.operation, at, failure.error, failure.times)
            text = refusal_of(run, network)
            assert "damaged" not in text
            assert "another backup" not in text
            disk.restart()
            check(bool(text))


def refusal_of(run: Callable[[Path], None], network: Path) -> str:
    """Return the text of the error by which a command ends; empty if it succeeds."""
    try:
        run(network)
    except StartupError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_a_backup_is_whole_or_not_written(network: Path, failure: Failure) -> None:
    archive_path = network.parent / "backup.tar"

    def check(is_refused: bool) -> None:
        assert archive_path.exists() is not is_refused
        if archive_path.exists():
            with archive_path.open("rb") as file:
                assert BackupArchive(archive_path, file).manifest.network_id == NETWORK_ID
            archive_path.unlink()
        assert [path.name for path in network.parent.iterdir()] == ["network"]
        work = StoreWork(network)
        assert asyncio.run(work.read()) == list(range(work.count))

    fail_each(network, failure, back_up, check)


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_a_store_is_restored_as_a_whole_or_not_at_all(network: Path, failure: Failure) -> None:
    back_up(network)
    folder = network.parent / "restored"

    def check(is_refused: bool) -> None:
        # Nothing that would hinder another attempt is left.
        assert folder.exists() is not is_refused
        if folder.exists():
            work = StoreWork(folder)
            assert asyncio.run(work.read()) == list(range(work.count))
            shutil.rmtree(folder)

    def restore_once(network: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        restore(network)

    fail_each(network, failure, restore_once, check)
