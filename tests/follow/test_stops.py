"""A chain that stopped or waits reports it, and continues as soon as the reason is gone."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from itertools import pairwise

import pytest

from tests.aggregation.virtual_time import now, run
from warpseal.follow.blocks import ChainStopped, StopReason
from warpseal.follow.chain_follower import ChainConsumer, ChainFollower
from warpseal.follow.sources import BlockSource
from warpseal.index.errors import IndexDamaged
from warpseal.resources.progress import ChainProgress
from warpseal.runtime.retry import Backoff, Pace, Retrier
from warpseal.store.errors import StoreDown
from warpseal.upstream.errors import NodeUnavailable

RETRIER = Retrier(Backoff(), {NodeUnavailable: "nodes"})


class Numbers(BlockSource[int]):
    """Blocks that are their heights, up to a tip."""

    span = 4

    def __init__(self, tip: int) -> None:
        super().__init__(self.heights, RETRIER)
        self.tip = tip
        self.other_tips: tuple[int, ...] = ()
        self.is_up = True

    async def heights(self) -> tuple[int, ...]:
        if not self.is_up:
            raise NodeUnavailable("height", replies=("no route",))
        return (self.tip, *self.other_tips)

    async def read(self, first: int, count: int) -> tuple[int, ...]:
        return tuple(range(first, min(first + count, self.tip + 1)))

    async def has(self, height: int) -> bool:
        return height <= self.tip

    def use_fallback(self) -> None:
        """Do nothing."""

    async def alternatives(self, height: int) -> tuple[int, ...]:
        return ()


class SlowNumbers(Numbers):
    """Blocks that take a second for each read."""

    async def read(self, first: int, count: int) -> tuple[int, ...]:
        await asyncio.sleep(1.0)
        return await super().read(first, count)


class StoppingConsumer(ChainConsumer[int]):
    """Raises an error in one of its steps while it is stopped."""

    name = "a-chain"
    log = logging.getLogger("warpseal.indexer")

    def __init__(self, source: Numbers, height: int | None, step: str, error: Exception) -> None:
        super().__init__(source, RETRIER)
        self.height = height
        self.is_stopped = True
        self.newest_when_stopped = height
        self.error = error
        self._step = step

    def _raise_in(self, step: str) -> None:
        if self.is_stopped and step == self._step:
            raise self.error

    async def resume(self) -> int | None:
        self._raise_in("resume")
        return self.height

    async def begin(self, min_height: int, tip: int) -> int | None:
        self._raise_in("begin")
        return await super().begin(min_height, tip)

    async def write(self, first_height: int, blocks: Sequence[int]) -> None:
        self._raise_in("write")
        assert first_height == (0 if self.height is None else self.height + 1)
        self.height = blocks[-1]


STOPS = [
    ("resume", 5, ChainStopped(StopReason.ANOTHER_HASH, 6, "of a node")),
    ("resume", 5, ChainStopped(StopReason.ANOTHER_CHAIN, 5, "of a node")),
    ("resume", 5, RuntimeError("a bug")),
    ("begin", None, ChainStopped(StopReason.WRONG_PARENT, 8, "of a node")),
    ("begin", None, RuntimeError("a bug")),
    ("write", 5, ChainStopped(StopReason.CONTRADICTION, 6, "of a block")),
    ("write", None, RuntimeError("a bug")),
]


@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize(("step", "height", "error"), STOPS)
def test_a_chain_continues_when_the_reason_is_gone(
    step: str, height: int | None, error: Exception, grows: bool
) -> None:
    async def main() -> None:
        source = Numbers(9)
        consumer = StoppingConsumer(source, height, step, error)
        follower = ChainFollower(consumer, RETRIER, Pace(1.0, Backoff(), 60.0))
        task = asyncio.create_task(follower.run())
        await asyncio.sleep(200.0)
        stop = follower.progress().stop
        assert stop is not None
        assert stop.reason == (
            error.reason if isinstance(error, ChainStopped) else StopReason.INTERNAL_ERROR
        )
        assert stop.since == pytest.approx(time.time(), abs=600)
        is_internal = stop.reason == StopReason.INTERNAL_ERROR
        assert stop.height == (0 if is_internal else error.height)  # type: ignore[attr-defined]
        assert consumer.height == height
        source.tip += 5 * grows
        consumer.is_stopped = False
        await asyncio.sleep(200.0)
        assert (consumer.height, follower.height) == (source.tip, source.tip)
        assert follower.progress().stop is None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(main())


class Watcher:
    """Follows a chain, and keeps each report of its progress with its time."""

    def __init__(
        self,
        source: Numbers,
        height: int | None = None,
        consumer: type[StoppingConsumer] = StoppingConsumer,
        step: str = "none",
        error: Exception | None = None,
    ) -> None:
        self.consumer = consumer(source, height, step, error or RuntimeError())
        self.reports: list[tuple[float, ChainProgress]] = []
        self.follower = ChainFollower(
            self.consumer, RETRIER, Pace(1.0, Backoff(), 60.0), report=self._report
        )

    async def _report(self, progress: ChainProgress) -> None:
        self.reports.append((now(), progress))

    async def follow(self, seconds: float) -> None:
        task = asyncio.create_task(self.follower.run())
        await asyncio.sleep(seconds)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_progress_is_reported_while_no_node_responds() -> None:
    async def main() -> None:
        source = Numbers(9)
        source.is_up = False
        watcher = Watcher(source, 5)
        await watcher.follow(300.0)
        last = watcher.reports[-1][1]
        assert (last.waiting_for, last.waiting) == ("nodes", "no node answers: no route")
        assert last.height == 5
        assert last.waiting_since is not None

    run(main())


def test_a_chain_that_has_all_known_blocks_does_not_wait_for_them() -> None:
    async def main() -> None:
        source = Numbers(9)
        watcher = Watcher(source)
        task = asyncio.create_task(watcher.follower.run())
        await asyncio.sleep(5.0)
        source.is_up = False
        await asyncio.sleep(300.0)
        progress = watcher.follower.progress()
        assert (progress.height, progress.waiting_for) == (9, "nodes")
        assert progress.waiting_since is None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(main())


def test_each_long_wait_is_logged_once_in_ten_minutes(caplog: pytest.LogCaptureFixture) -> None:
    def waits() -> int:
        return sum(record.msg == "indexing waits" for record in caplog.records)

    async def main() -> None:
        source = Numbers(9)
        watcher = Watcher(source, 5)
        task = asyncio.create_task(watcher.follower.run())
        for count in (1, 2):
            source.other_tips = (500,)
            await asyncio.sleep(240.0)
            assert waits() == count
            source.other_tips = ()
            await asyncio.sleep(60.0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(main())


def test_a_wait_is_long_after_two_minutes() -> None:
    async def main() -> None:
        source = Numbers(9)
        source.other_tips = (500,)
        watcher = Watcher(source)
        task = asyncio.create_task(watcher.follower.run())
        await asyncio.sleep(119.0)
        assert watcher.follower.progress().waiting_since is None
        await asyncio.sleep(1.0)
        since = watcher.follower.progress().waiting_since
        assert since is not None
        assert since <= time.time() - 119
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(main())


def test_progress_of_a_chain_that_is_caught_up_is_reported_seldom() -> None:
    async def main() -> None:
        watcher = Watcher(Numbers(9))
        await watcher.follow(600.0)
        last = watcher.reports[-1][1]
        assert (last.height, last.node_height, last.waiting) == (9, 9, "")
        assert (last.blocks_per_s, last.eta_s, last.is_node_behind) == (None, None, False)
        assert watcher.follower.is_caught_up
        assert watcher.follower.remaining_blocks == 0
        assert last.reported_at == pytest.approx(time.time(), abs=600)
        times = [at for at, _ in watcher.reports]
        assert max(after - before for before, after in pairwise(times)) == 15.0
        assert 2 <= len(watcher.reports) <= 60

    run(main())


class FailingConsumer(StoppingConsumer):
    """Notes when its writes fail."""

    def __init__(self, source: Numbers, height: int | None, step: str, error: Exception) -> None:
        super().__init__(source, height, step, error)
        self.failed_at: list[float] = []

    async def write(self, first_height: int, blocks: Sequence[int]) -> None:
        if self.is_stopped:
            self.failed_at.append(now())
        await super().write(first_height, blocks)


def test_a_write_that_fails_is_repeated_ever_more_seldom_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        watcher = Watcher(Numbers(9), 5, FailingConsumer, "write", StoreDown("disk full"))
        await watcher.follow(300.0)
        assert isinstance(watcher.consumer, FailingConsumer)
        assert 3 <= len(watcher.consumer.failed_at) <= 15
        assert all(progress.stop is None for _, progress in watcher.reports)

    run(main())
    failures = [vars(record) for record in caplog.records if record.msg == "index write failed"]
    assert [failure["reason"] for failure in failures] == [str(StoreDown("disk full"))]


def test_an_index_that_is_found_damaged_twice_stops_the_chain_at_once() -> None:
    async def main() -> None:
        damage = IndexDamaged("of a test")
        watcher = Watcher(Numbers(9), 5, FailingConsumer, "write", damage)
        await watcher.follow(30.0)
        at, stop = next((at, item.stop) for at, item in watcher.reports if item.stop is not None)
        assert stop is not None
        assert (stop.reason, stop.height, stop.detail) == ("index_damaged", 6, str(damage))
        assert isinstance(watcher.consumer, FailingConsumer)
        assert at == watcher.consumer.failed_at[1]
        watcher.consumer.is_stopped = False
        await watcher.follow(5.0)
        assert watcher.follower.progress().stop is None

    run(main())


def test_a_stopped_chain_does_not_wait_for_nodes() -> None:
    async def main() -> None:
        source = Numbers(9)
        error = ChainStopped(StopReason.WRONG_GAS, 6, "of a test")
        watcher = Watcher(source, 5, StoppingConsumer, "write", error)
        task = asyncio.create_task(watcher.follower.run())
        await asyncio.sleep(5.0)
        source.is_up = False
        await asyncio.sleep(300.0)
        progress = watcher.follower.progress()
        assert (progress.stopped, progress.waiting_for) == ("wrong_gas", "nodes")
        assert (progress.waiting_since, progress.waiting) == (None, "")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(main())


def test_an_index_whose_height_cannot_be_read_stops_at_block_0() -> None:
    async def main() -> None:
        damage = IndexDamaged("of a test")
        watcher = Watcher(Numbers(9), 5, StoppingConsumer, "resume", damage)
        await watcher.follow(30.0)
        progress = watcher.follower.progress()
        assert (progress.stopped, progress.stopped_at) == ("index_damaged", 0)

    run(main())


@pytest.mark.parametrize(("step", "height", "error"), STOPS)
def test_a_stop_is_reported_at_once_and_logged_once(
    step: str, height: int | None, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        watcher = Watcher(Numbers(9), height, StoppingConsumer, step, error)
        await watcher.follow(200.0)
        assert next(at for at, item in watcher.reports if item.stop is not None) == 1_000.0

    run(main())
    stops = [record for record in caplog.records if record.msg == "indexing stopped"]
    assert len(stops) == 1


def test_a_stop_of_a_chain_that_catches_up_is_reported_at_once() -> None:
    async def main() -> None:
        error = ChainStopped(StopReason.WRONG_GAS, 6, "of a test")
        watcher = Watcher(SlowNumbers(100_000), None, FailingConsumer, "write", error)
        consumer = watcher.consumer
        assert isinstance(consumer, FailingConsumer)
        consumer.is_stopped = False
        task = asyncio.create_task(watcher.follower.run())
        while len(watcher.reports) < 5:  # noqa: ASYNC110 - time jumps
            await asyncio.sleep(0.1)
        # The next write is a second after this report, the next report in turn two.
        consumer.is_stopped = True
        await asyncio.sleep(10.0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        stopped_at = next(at for at, item in watcher.reports if item.stop is not None)
        assert stopped_at == consumer.failed_at[0]

    run(main())


def test_a_stop_is_logged_again_at_another_height(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        watcher = Watcher(
            Numbers(9), 5, StoppingConsumer, "write", ChainStopped(StopReason.WRONG_GAS, 6, "")
        )
        task = asyncio.create_task(watcher.follower.run())
        await asyncio.sleep(30.0)
        watcher.consumer.error = ChainStopped(StopReason.WRONG_GAS, 7, "")
        await asyncio.sleep(60.0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(main())
    heights = [vars(line)["height"] for line in caplog.records if line.msg == "indexing stopped"]
    assert heights == [6, 7]


@pytest.mark.parametrize(("other_tip", "is_behind"), [(10, False), (11, True)])
def test_a_node_may_have_the_newest_block_a_moment_later(other_tip: int, is_behind: bool) -> None:
    async def main() -> None:
        source = Numbers(9)
        source.other_tips = (other_tip,)
        watcher = Watcher(source)
        await watcher.follow(5.0)
        assert watcher.follower.progress().is_node_behind == is_behind

    run(main())


def test_progress_is_reported_every_two_seconds_at_most_while_a_chain_catches_up() -> None:
    class GrowingNumbers(SlowNumbers):
        async def heights(self) -> tuple[int, ...]:
            self.tip += 1
            return await super().heights()

    async def main() -> None:
        source = GrowingNumbers(50)
        watcher = Watcher(source)
        # Each read takes a second and has four blocks, so that the chain is never caught up.
        source.other_tips = (10_000,)
        await watcher.follow(60.0)
        times = [at for at, _ in watcher.reports]
        assert min(after - before for before, after in pairwise(times)) >= 2.0
        # One that is caught up reports each new block at once.
        source.other_tips = ()
        watcher.reports.clear()
        await watcher.follow(60.0)
        times = [at for at, _ in watcher.reports]
        assert min(after - before for before, after in pairwise(times)) <= 1.0

    run(main())


def test_a_node_that_is_not_bootstrapped_is_behind_until_it_is() -> None:
    async def main() -> None:
        is_bootstrapped, checked_at = False, list[float]()

        async def check_bootstrapped() -> bool:
            checked_at.append(now())
            return is_bootstrapped

        consumer = StoppingConsumer(Numbers(9), None, "none", RuntimeError())
        pace = Pace(1.0, Backoff(), 60.0)
        follower = ChainFollower(consumer, RETRIER, pace, check_bootstrapped=check_bootstrapped)
        task = asyncio.create_task(follower.run())
        await asyncio.sleep(10.0)
        progress = follower.progress()
        assert progress.is_node_behind
        assert (progress.height, progress.waiting) == (9, "the node is not bootstrapped yet")
        is_bootstrapped = True
        await asyncio.sleep(10.0)
        progress = follower.progress()
        assert (progress.is_node_behind, progress.waiting) == (False, "")
        assert checked_at == [1_000.0, 1_015.0]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(main())


def test_a_node_far_below_another_one_is_behind() -> None:
    async def main() -> None:
        source = Numbers(9)
        source.other_tips = (500,)
        watcher = Watcher(source)
        await watcher.follow(60.0)
        last = watcher.reports[-1][1]
        assert (last.height, last.node_height, last.is_node_behind) == (9, 500, True)
        assert watcher.follower.remaining_blocks == 491
        assert last.waiting_since is None
        await watcher.follow(300.0)
        last = watcher.reports[-1][1]
        assert last.waiting == "the node in use has no block behind 9, another one has 500"
        assert last.waiting_since is not None

    run(main())


def test_a_node_that_fell_behind_leaves_no_negative_number_of_blocks() -> None:
    async def main() -> None:
        source = Numbers(3)
        watcher = Watcher(source, 5)
        await watcher.follow(60.0)
        assert watcher.follower.remaining_blocks == 0
        assert watcher.reports[-1][1].height == 5

    run(main())


def test_the_time_that_a_chain_needs_follows_from_its_rate_and_the_blocks_that_remain() -> None:
    async def main() -> None:
        watcher = Watcher(SlowNumbers(100_000))
        task = asyncio.create_task(watcher.follower.run())
        await asyncio.sleep(120.0)
        progress, remaining = watcher.follower.progress(), watcher.follower.remaining_blocks
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert progress.height is not None
        assert progress.blocks_per_s is not None
        assert remaining == 100_000 - progress.height
        assert progress.eta_s == pytest.approx(remaining / progress.blocks_per_s)
        assert progress.height == pytest.approx(120 * progress.blocks_per_s, rel=0.2)

    run(main())
