"""Every SQLite file of the product on a disk that fails, fills up, or loses power.

Environment: DISK_POINTS is the number of operations of each work that fail in turn, 0 for all;
DISK_SEEDS is the number of histories with power cuts for each work.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import pytest

from tests.disks.disk import Operation, SimulatedDisk
from tests.disks.index_works import (
    INDEX_WORKS,
    EvmIndexWork,
    IndexWork,
    PrimaryIndexWork,
    RebuildWork,
)
from tests.disks.service_works import SERVICE_WORKS, EvictionWork, UsageRetentionWork
from tests.disks.usage_works import USAGE_WORKS, EarlyUsageWork
from tests.disks.works import QUICK, STORE_WORKS, OldStoreWork, StoreWork, Work, closing_engine
from tests.eventually import until
from tests.store.fixtures import message, signature, store_at
from warpseal.store.access import write_shared
from warpseal.store.api_key import ApiKey
from warpseal.store.api_keys import add_key
from warpseal.store.connection import DriverError
from warpseal.store.engine import create_private, log_size, writing_engine
from warpseal.store.errors import CursorExpired, StoreDown, StoreUnusable
from warpseal.store.url import StoreUrl
from warpseal.store.values import SigningBlock, SigningBlockKind

WORKS: Final = (*STORE_WORKS, *USAGE_WORKS, *INDEX_WORKS, *SERVICE_WORKS)
POINTS: Final = int(os.environ.get("DISK_POINTS", "6"))
SEEDS: Final = int(os.environ.get("DISK_SEEDS", "10"))
# A process that begins after a cut may lose power again.
CUTS: Final = 2
# About as many as one merge of a log makes.
NEXT_WRITES: Final = 16


class Failure(NamedTuple):
    """A failure of a disk.

    times: number of operations that fail, one after the other.
    """

    operation: Operation
    error: int
    times: int = 1


FAILURES: Final = {
    "write": Failure(Operation.WRITE, errno.EIO),
    "writes": Failure(Operation.WRITE, errno.EIO, 5),
    "full": Failure(Operation.WRITE, errno.ENOSPC),
    "full-for-a-while": Failure(Operation.WRITE, errno.ENOSPC, 5),
    "read": Failure(Operation.READ, errno.EIO),
    "reads": Failure(Operation.READ, errno.EIO, 3),
    "flush": Failure(Operation.SYNC, errno.EIO),
    "open": Failure(Operation.OPEN, errno.EIO),
    "truncate": Failure(Operation.TRUNCATE, errno.EIO),
    "delete": Failure(Operation.DELETE, errno.EIO),
}


class Setup:
    """A work whose file is prepared once, and copied for each run."""

    def __init__(self, kind: type[Work], folder: Path) -> None:
        self._kind = kind
        self._folder = folder
        self._template = folder / "template"
        self._template.mkdir()
        kind(self._template).prepare()
        with self.run() as (work, disk):
            assert asyncio.run(work.run(disk)) == list(range(work.count))
            # The operations of a run that nothing disturbs.
            self.counts = Counter(disk.counts)
        with self.run(ends_killed=True) as (work, disk):
            assert asyncio.run(work.run(disk)) == list(range(work.count))
            self._counts_before_end = Counter(disk.counts)

    @contextmanager
    def run(self, *, ends_killed: bool = False) -> Iterator[tuple[Work, SimulatedDisk]]:
        """Give a copy of the file, on a disk of its own."""
        folder = self._folder / "run"
        shutil.copytree(self._template, folder)
        with SimulatedDisk(folder) as disk:
            yield self._kind(folder, ends_killed=ends_killed), disk
        shutil.rmtree(folder)

    def read_copy(self) -> list[int]:
        """Return the stored items of the run, whose file no process opens for this."""
        with TemporaryDirectory(dir=self._folder) as folder:
            copy = Path(folder) / "copy"
            shutil.copytree(self._folder / "run", copy)
            return asyncio.run(self._kind(copy).read())

    def points(self, operation: Operation) -> list[int]:
        """Return the numbers of operations that are to fail."""
        return choose_points(self.counts[operation])

    def is_before_end(self, operation: Operation, at: int) -> bool:
        """Return whether the operation of this number is none of the orderly end."""
        # The writer of a store may be about to flush when the process ends.
        return at < self._counts_before_end[operation]


def choose_points(total: int, count: int = POINTS) -> list[int]:
    """Return `count` of the numbers from 1 to `total`, evenly chosen; 0 for all of them."""
    if not count or total <= count:
        return list(range(1, total + 1))
    return [1 + index * (total - 1) // (count - 1) for index in range(count)]


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize("kind", WORKS)
def test_whichever_operation_fails_all_that_was_acknowledged_is_stored(
    tmp_path: Path, kind: type[Work], failure: Failure
) -> None:
    setup = Setup(kind, tmp_path)
    for place, at in enumerate(setup.points(failure.operation)):
        ends_killed = place % 2 == 0 and setup.is_before_end(failure.operation, at)
        with setup.run(ends_killed=ends_killed) as (work, disk):
            disk.fail(failure.operation, at, failure.error, failure.times)
            try:
                acknowledged = asyncio.run(work.run(disk))
                assert disk.failures
                check_after_restart(work, disk, acknowledged)
                assert acknowledged == list(range(work.count))
            except BaseException as error:
                error.add_note(f"{failure.operation} {at}")
                raise
            check_refusals(work, failure)


def check_after_restart(work: Work, disk: SimulatedDisk, acknowledged: list[int]) -> list[int]:
    """Return the stored items: the acknowledged ones, perhaps more, without a gap."""
    disk.kill()
    disk.restart()
    stored = asyncio.run(work.read())
    assert stored == list(range(len(stored)))
    assert stored[: len(acknowledged)] == acknowledged
    work.check_pages()
    return stored


def check_refusals(work: Work, failure: Failure) -> None:
    """Check the advice to an operator: the file is whole, so it must not be moved away."""
    for text in work.refusals:
        assert "damaged" not in text
        if failure.error == errno.ENOSPC:
            assert "make room" in text
        elif failure.operation is Operation.OPEN:
            assert "check its folder" in text
        else:
            assert "look for errors of its disk" in text


@pytest.mark.parametrize("kind", WORKS)
def test_power_cuts_take_the_last_items_at_most(tmp_path: Path, kind: type[Work]) -> None:
    setup = Setup(kind, tmp_path)
    operations = list(setup.counts.elements())
    for seed in range(SEEDS):
        random = Random(seed)
        with setup.run() as (work, disk):
            try:
                stored: list[int] = []
                for _ in range(CUTS):
                    operation = random.choice((*operations, *Operation))
                    disk.kill_at(operation, random.randint(1, setup.counts[operation] + 1))
                    acknowledged = asyncio.run(work.run(disk, len(stored)))
                    disk.lose_power(random, is_torn=random.random() < 0.5)
                    stored = check_after_restart(work, disk, acknowledged)
                assert asyncio.run(work.run(disk, len(stored))) == list(range(work.count))
                check_after_restart(work, disk, list(range(work.count)))
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise
            assert not any("damaged" in text for text in work.refusals)


@pytest.mark.parametrize("kind", WORKS)
def test_a_flush_that_fails_once_loses_nothing_in_a_later_power_cut(
    tmp_path: Path, kind: type[Work]
) -> None:
    """Linux forgets the writes of a flush that failed, and the next flush succeeds."""
    setup = Setup(kind, tmp_path)
    writes, flushes = setup.counts[Operation.WRITE], setup.counts[Operation.SYNC]
    for seed in range(SEEDS * kind.flushes_per_seed):
        random = Random(seed)
        at = 1 + seed % flushes
        with setup.run(ends_killed=setup.is_before_end(Operation.SYNC, at)) as (work, disk):
            try:
                disk.fail(Operation.SYNC, at)
                disk.on_failure = partial(kill_later, disk, random, writes)
                acknowledged = asyncio.run(work.run(disk))
                assert disk.failures
                if random.random() < 0.5:
                    # Another process finds what the system still shows.
                    stored = setup.read_copy()
                    disk.kill()
                    disk.restart()
                    disk.kill_at(Operation.WRITE, random.randint(1, writes))
                    numbers = asyncio.run(work.run(disk, len(stored)))
                    # What it only sees, it has not acknowledged.
                    acknowledged = acknowledged if numbers == stored else numbers
                disk.lose_power(random, is_torn=random.random() < 0.5)
                stored = check_after_restart(work, disk, acknowledged)
                assert asyncio.run(work.run(disk, len(stored))) == list(range(work.count))
                check_after_restart(work, disk, list(range(work.count)))
            except BaseException as error:
                error.add_note(f"seed {seed}, flush {at}")
                raise
            assert not any("damaged" in text for text in work.refusals)


def kill_later(disk: SimulatedDisk, random: Random, writes: int) -> None:
    """End the process at one of the writes that are left, often one of the next.

    writes: number of writes of a run that nothing disturbs.
    """
    left = max(1, writes - disk.counts[Operation.WRITE])
    disk.kill_at(Operation.WRITE, random.randint(1, random.choice((left, NEXT_WRITES, 1))))


@pytest.mark.parametrize(
    "kind",
    [
        StoreWork,
        OldStoreWork,
        EvictionWork,
        EarlyUsageWork,
        UsageRetentionWork,
        IndexWork,
        PrimaryIndexWork,
        RebuildWork,
    ],
)
def test_a_process_killed_at_any_write_leaves_what_it_has_acknowledged(
    tmp_path: Path, kind: type[Work]
) -> None:
    setup = Setup(kind, tmp_path)
    for operation in (Operation.WRITE, Operation.SYNC, Operation.DELETE):
        for at in setup.points(operation):
            with setup.run() as (work, disk):
                disk.kill_at(operation, at)
                acknowledged = asyncio.run(work.run(disk))
                stored = check_after_restart(work, disk, acknowledged)
                assert asyncio.run(work.run(disk, len(stored))) == list(range(work.count))


@pytest.mark.parametrize("kind", [IndexWork, EvmIndexWork])
def test_a_page_of_an_index_that_the_disk_does_not_read_is_an_outage(
    tmp_path: Path, kind: type[IndexWork | EvmIndexWork]
) -> None:
    work = kind(tmp_path)
    work.prepare()
    with SimulatedDisk(tmp_path) as disk:
        asyncio.run(work.run(disk))
    with SimulatedDisk(tmp_path) as disk:
        pages = asyncio.run(work.read_pages())
        total = disk.counts[Operation.READ]
    outages = Counter[type[StoreDown]]()
    for at in choose_points(total):
        with SimulatedDisk(tmp_path) as disk:
            disk.fail(Operation.READ, at)
            try:
                reply = asyncio.run(work.read_pages())
            except StoreDown as error:
                outages[type(error)] += 1
            else:
                # Another connection has read the page.
                assert reply == pages
            assert asyncio.run(work.read_pages()) == pages
    # An index that is damaged has another error.
    assert outages.keys() == {StoreDown}


def test_a_reader_misses_no_event_after_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other events get the numbers of lost ones that it has seen."""
    boot_id = tmp_path / "boot_id"
    monkeypatch.setattr("warpseal.runtime.process._BOOT_ID", boot_id)
    url = f"sqlite:///{tmp_path}/store.db"
    outcomes = Counter[str]()

    async def create() -> None:
        async with store_at(url, **QUICK) as store:
            await store.events.cursor_prefix()

    async def sign(numbers: range) -> tuple[str, list[int]]:
        """Sign messages; return the cursor of a reader, and the numbers of all events."""
        async with store_at(url, **{**QUICK, "flush_s": 3_600.0}) as store:
            for number in numbers:
                await store.archive.store_signature(message(number), signature(number))
            await until(lambda: not store.status().waiting_writes)
            events = [event.number for event in await store.events.read(0, 100)]
            cursor = f"{await store.events.cursor_prefix()}{events[-1]}"
            disk.kill()
        return cursor, events

    async def read_after(cursor: str) -> list[int]:
        async with store_at(url, **QUICK) as store:
            after = await store.events.parse_cursor("after", cursor)
            return [event.number for event in await store.events.read(after, 100)]

    for seed in range(SEEDS):
        with SimulatedDisk(tmp_path) as disk:
            boot_id.write_text("first")
            asyncio.run(create())
            cursor, before = asyncio.run(sign(range(6)))
            if seed % 3:
                disk.lose_power(Random(seed))
                boot_id.write_text("second")
            disk.restart()
            _, after = asyncio.run(sign(range(10, 20)))
            disk.restart()
            try:
                events = asyncio.run(read_after(cursor))
            except CursorExpired:
                outcomes["expired"] += 1
                assert seed % 3
            else:
                outcomes["continued"] += 1
                assert len(events) == 10
                assert len(after) == len(before) + 10
        for file in tmp_path.glob("store.db*"):
            file.unlink()
    assert outcomes.keys() == {"expired", "continued"}


def check_after_power_cuts(
    folder: Path,
    change: Callable[[SimulatedDisk], Coroutine[Any, Any, None]],
    read: Callable[[], Coroutine[Any, Any, object]],
    expected: object,
) -> None:
    """Assert what a store has after changes and a power cut, which keeps what it draws."""
    for seed in range(3):
        with SimulatedDisk(folder) as disk:
            asyncio.run(change(disk))
            disk.lose_power(Random(seed))
            disk.restart()
            assert asyncio.run(read()) == expected
        for file in folder.glob("store.db*"):
            file.unlink()


def test_an_api_key_that_a_command_has_added_survives_a_power_cut(tmp_path: Path) -> None:
    """The daemon beside the command flushes only what it has written itself."""
    url = f"sqlite:///{tmp_path}/store.db"
    api_key = ApiKey("name", bytes(32), "hint", 0, 0, 1.0)

    async def add_beside_daemon(disk: SimulatedDisk) -> None:
        async with store_at(url, **QUICK):
            write_shared(StoreUrl.parse(url), lambda connection: add_key(connection, api_key))
            disk.kill()

    async def find() -> ApiKey | None:
        async with store_at(url, **QUICK) as store:
            return await store.api_keys.find_key(api_key.digest)

    check_after_power_cuts(tmp_path, add_beside_daemon, find, api_key)


def test_a_signing_block_survives_a_power_cut(tmp_path: Path) -> None:
    """The daemon flushes it before the operator has the response, and its removal too."""
    url = f"sqlite:///{tmp_path}/store.db"
    blocks = [
        SigningBlock(SigningBlockKind.MESSAGE_ID, f"0x{number:064x}", "a bug", 1)
        for number in range(2)
    ]

    async def change(disk: SimulatedDisk) -> None:
        async with store_at(url, flush_s=3_600.0) as store:
            for block in blocks:
                await store.signing_blocks.add(block)
            await store.signing_blocks.remove(blocks[0])
            disk.kill()

    async def load() -> Sequence[SigningBlock]:
        async with store_at(url, **QUICK) as store:
            return await store.signing_blocks.load()

    check_after_power_cuts(tmp_path, change, load, blocks[1:])


def test_an_added_webhook_survives_a_power_cut_and_a_removed_one_does_not_return(
    tmp_path: Path,
) -> None:
    """The daemon flushes the change before the operator has the response."""
    url = f"sqlite:///{tmp_path}/store.db"

    async def change(disk: SimulatedDisk) -> None:
        async with store_at(url, flush_s=3_600.0) as store:
            await store.events.exchange_webhooks({"a": (None, b"{}"), "b": (None, b"{}")})
            await store.events.exchange_webhooks({"b": (b"{}", None)})
            disk.kill()

    async def load() -> dict[str, bytes]:
        async with store_at(url, **QUICK) as store:
            return await store.events.exchange_webhooks()

    check_after_power_cuts(tmp_path, change, load, {"a": b"{}"})


def test_a_start_flushes_what_a_killed_daemon_could_not(tmp_path: Path) -> None:
    """The system still shows these commits, and later flushes succeed without them."""
    url = f"sqlite:///{tmp_path}/store.db"
    blocks = [
        SigningBlock(SigningBlockKind.MESSAGE_ID, f"0x{number:064x}", "a bug", 1)
        for number in range(6)
    ]

    async def add(chosen: Sequence[SigningBlock], disk: SimulatedDisk, failures: float) -> None:
        async with store_at(url, flush_s=3_600.0) as store:
            await store.database.write(lambda _: None)
            disk.fail(Operation.SYNC, times=failures)
            for block in chosen:
                await store.signing_blocks.add(block)
            disk.kill()

    async def load() -> Sequence[SigningBlock]:
        async with store_at(url, **QUICK) as store:
            return await store.signing_blocks.load()

    for count in range(1, len(blocks)):
        with SimulatedDisk(tmp_path) as disk:
            asyncio.run(add(blocks[:count], disk, float("inf")))
            disk.restart()
            asyncio.run(add(blocks[count:], disk, 0))
            disk.lose_power(Random(count))
            disk.restart()
            assert asyncio.run(load()) == blocks
        for file in tmp_path.glob("store.db*"):
            file.unlink()


def test_a_command_that_cannot_flush_loses_no_commit_of_the_daemon(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    api_key = ApiKey("name", bytes(32), "hint", 0, 0, 1.0)

    async def sign_beside_command(disk: SimulatedDisk) -> None:
        async with store_at(url, **{**QUICK, "flush_s": 3_600.0}) as store:
            for number in range(4):
                await store.archive.store_signature(message(number), signature(number))
            await until(lambda: not store.status().waiting_writes)
            disk.fail(Operation.SYNC)
            with pytest.raises(StoreUnusable, match="look for errors of its disk"):
                write_shared(StoreUrl.parse(url), lambda connection: add_key(connection, api_key))
            # The flush of the daemon that is due.
            await store.database.write(lambda _: None, is_flushed=True)
            disk.kill()

    async def count() -> int:
        async with store_at(url, **QUICK) as store:
            return len(await store.events.read(0, 100))

    for seed in range(5):
        with SimulatedDisk(tmp_path) as disk:
            asyncio.run(sign_beside_command(disk))
            disk.lose_power(Random(seed))
            disk.restart()
            assert asyncio.run(count()) == 4
        for file in tmp_path.glob("store.db*"):
            file.unlink()


@pytest.mark.parametrize("at", range(1, 4))
def test_a_new_file_is_written_with_a_log_after_its_first_flush_has_failed(
    tmp_path: Path, at: int
) -> None:
    """SQLite returns the mode of the journal before it has changed it."""
    path = tmp_path / "store.db"
    create_private(path)
    with SimulatedDisk(tmp_path) as disk:
        disk.fail(Operation.SYNC, at)
        with closing_engine(writing_engine(StoreUrl.for_file(path))) as engine:
            with pytest.raises(DriverError), engine.begin():
                pass
            with engine.begin() as connection:
                connection.run("CREATE TABLE items (number INTEGER)")
            assert log_size(path) > 0
