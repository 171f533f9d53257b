"""A chain that stopped or waits reports it, and continues as soon as the reason is gone."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

import pytest

from tests.aggregation.virtual_time import now, run
from warpseal.follow.blocks import ChainStopped, StopReason
from warpseal.follow.chain_follower import ChainConsumer, ChainFollower
from warpseal.follow.sources import BlockSource
from warpseal.resources.progress import ChainProgress
from warpseal.runtime.retry import Backoff, Pace, Retrier
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


class StoppingConsumer(ChainConsumer[int]):
    """Raises an error in one of its steps while it is stopped."""

    name = "a-chain"
    log = logging.getLogger("warpseal.indexer")

    def __init__(self, source: Numbers, height: int | None, step: str, error: Exception) -> None:
        super().__init__(source, RETRIER)
        self.height = height
        self.is_stopped = True
        self.newest_when_stopped = height
        self._step = step
        self._error = error

    def _raise_in(self, step: str) -> None:
        if self.is_stopped and step == self._step:
            raise self._error

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

    def __init__(self, source: Numbers, height: int | None = None) -> None:
        self.consumer = StoppingConsumer(source, height, "none", RuntimeError())
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


def test_progress_of_a_chain_that_is_caught_up_is_reported_seldom() -> None:
    async def main() -> None:
        watcher = Watcher(Numbers(9))
        await watcher.follow(600.0)
        last = watcher.reports[-1][1]
        assert (last.height, last.node_height, last.waiting) == (9, 9, "")
        assert (last.blocks_per_s, last.eta_s, last.is_node_behind) == (None, None, False)
        assert watcher.follower.is_caught_up
        assert watcher.follower.remaining_blocks == 0
        assert 2 <= len(watcher.reports) <= 60

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


class SlowNumbers(Numbers):
    """Blocks that take a second for each read."""

    async def read(self, first: int, count: int) -> tuple[int, ...]:
        await asyncio.sleep(1.0)
        return await super().read(first, count)


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
