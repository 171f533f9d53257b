"""A chain is read several spans ahead of the writing, and what was read meanwhile is written
together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest

from tests.aggregation.virtual_time import run
from tests.follow.test_stops import RETRIER, Numbers
from warpseal.follow.blocks import ChainStopped, StopReason
from warpseal.follow.chain_follower import ChainConsumer, ChainFollower
from warpseal.runtime.retry import Backoff, Pace
from warpseal.store.errors import StoreDown


class PacedNumbers(Numbers):
    """Blocks of which each read takes a time.

    hangs_from: first height that no read returns.
    """

    def __init__(self, tip: int, read_s: float = 1.0) -> None:
        super().__init__(tip)
        self.read_s = read_s
        self.hangs_from = tip + 1
        self.alternative_reads = 0
        self.reading = self.most_reading = 0

    async def read(self, first: int, count: int) -> tuple[int, ...]:
        self.reading += 1
        self.most_reading = max(self.most_reading, self.reading)
        await asyncio.sleep(self.read_s if first < self.hangs_from else 10**6)
        self.reading -= 1
        return await super().read(first, count)

    async def alternatives(self, height: int) -> tuple[int, ...]:
        self.alternative_reads += 1
        return (height,)


class SlowConsumer(ChainConsumer[int]):
    """Notes how many blocks each write has.

    stop: raised once by the write of its height, after the blocks before it were written.
    failure: raised by every write.
    """

    name = "a-chain"
    log = logging.getLogger("warpseal.indexer")

    def __init__(self, source: Numbers, write_s: float = 0.0) -> None:
        super().__init__(source, RETRIER)
        self.height: int | None = None
        self.counts: list[int] = []
        self.write_s = write_s
        self.stop: ChainStopped | None = None
        self.failure: Exception | None = None
        self.commits_before_stop = False

    async def resume(self) -> int | None:
        return self.height

    async def write(self, first_height: int, blocks: Sequence[int]) -> None:
        assert list(blocks) == list(range(first_height, first_height + len(blocks)))
        assert self.height in (None, first_height - 1)
        await asyncio.sleep(self.write_s)
        if self.failure is not None:
            raise self.failure
        if self.stop is not None and self.stop.height in blocks:
            stop, self.stop = self.stop, None
            self.height = stop.height if self.commits_before_stop else stop.height - 1
            raise stop
        self.counts.append(len(blocks))
        self.height = blocks[-1]


def follower_of(consumer: SlowConsumer, first_height: int = 0) -> ChainFollower[int]:
    pace = Pace(1.0, Backoff(), 60.0)
    return ChainFollower(consumer, RETRIER, pace, first_height=first_height)


async def follow(follower: ChainFollower[int], seconds: float) -> None:
    """Follow for some seconds."""
    task = asyncio.create_task(follower.run())
    await asyncio.sleep(seconds)
    assert not task.done(), task.exception()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_six_spans_are_read_at_once_and_written_together_as_far_as_they_are_there() -> None:
    async def main() -> None:
        source = PacedNumbers(10_000)
        consumer = SlowConsumer(source, write_s=10.0)
        await follow(follower_of(consumer), 31.5)
        assert source.most_reading == 6
        # Six reads of four blocks end before each write.
        assert consumer.counts == [24, 24, 24]

    run(main())


def test_the_blocks_before_a_stop_count_as_written() -> None:
    async def main() -> None:
        source = PacedNumbers(100)
        consumer = SlowConsumer(source)
        consumer.stop = ChainStopped(StopReason.CONTRADICTION, 6, "of a test")
        follower = follower_of(consumer)
        await follow(follower, 5.0)
        assert (follower.height, follower.progress().stopped_at) == (5, 6)
        # A block that contradicts the rows is right, so that no other one is tried.
        assert source.alternative_reads == 0
        fields = follower.as_fields()
        assert (fields["chain"], fields["height"], fields["stopped_at"]) == ("a-chain", 5, 6)

    run(main())


def test_a_stop_waits_for_no_read() -> None:
    async def main() -> None:
        source = PacedNumbers(100)
        source.hangs_from = 12
        consumer = SlowConsumer(source)
        consumer.stop = ChainStopped(StopReason.CONTRADICTION, 6, "of a test")
        follower = follower_of(consumer)
        await follow(follower, 5.0)
        assert follower.progress().stopped_at == 6

    run(main())


def test_a_block_that_was_committed_before_its_write_failed_is_not_written_again() -> None:
    async def main() -> None:
        source = PacedNumbers(9)
        consumer = SlowConsumer(source)
        consumer.commits_before_stop = True
        consumer.stop = ChainStopped(StopReason.WRONG_PARENT, 6, "of a test")
        follower = follower_of(consumer)
        await follow(follower, 5.0)
        assert (source.alternative_reads, follower.progress().stopped_at) == (1, 6)
        await follow(follower, 60.0)
        assert (follower.height, follower.progress().stop) == (9, None)

    run(main())


def test_a_chain_continues_above_a_block_that_another_node_had() -> None:
    async def main() -> None:
        source = PacedNumbers(99)
        consumer = SlowConsumer(source)
        consumer.stop = ChainStopped(StopReason.WRONG_PARENT, 6, "of a test")
        follower = follower_of(consumer)
        await follow(follower, 20.0)
        assert source.alternative_reads == 1
        assert (follower.height, follower.progress().stop) == (99, None)
        # Before the stop, and the other block; the rest has no gap.
        assert consumer.counts[0] == 1
        assert sum(consumer.counts) == 99 + 1 - 6

    run(main())


def test_a_read_that_returns_fewer_blocks_is_continued_where_it_ended() -> None:
    class ShortNumbers(PacedNumbers):
        async def read(self, first: int, count: int) -> tuple[int, ...]:
            return (await super().read(first, count))[: 2 if first == 8 else count]

    async def main() -> None:
        follower = follower_of(SlowConsumer(ShortNumbers(99)))
        await follow(follower, 20.0)
        assert (follower.height, follower.progress().stop) == (99, None)

    run(main())


def test_a_source_that_finds_a_wrong_block_stops_the_chain() -> None:
    class StoppingNumbers(PacedNumbers):
        async def read(self, first: int, count: int) -> tuple[int, ...]:
            if first >= 8:
                raise ChainStopped(StopReason.NODES_DISAGREE, first, "of a test")
            return await super().read(first, count)

    async def main() -> None:
        follower = follower_of(SlowConsumer(StoppingNumbers(20)))
        await follow(follower, 5.0)
        assert follower.height == 7
        assert (follower.progress().stopped, follower.progress().stopped_at) == (
            "nodes_disagree",
            8,
        )

    run(main())


def test_the_rate_does_not_count_the_time_in_which_nothing_could_be_written() -> None:
    async def main() -> None:
        consumer = SlowConsumer(PacedNumbers(100_000))
        follower = follower_of(consumer)
        task = asyncio.create_task(follower.run())
        await asyncio.sleep(20.0)
        before = follower.progress().blocks_per_s
        consumer.failure = StoreDown("of a test")
        await asyncio.sleep(15.0)
        consumer.failure = None
        height = consumer.height
        while consumer.height == height:  # noqa: ASYNC110 - time jumps
            await asyncio.sleep(1.0)
        await asyncio.sleep(10.0)
        assert before == pytest.approx(24, rel=0.1)
        assert follower.progress().blocks_per_s == pytest.approx(24, rel=0.1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(main())


def test_the_rate_does_not_count_the_wait_for_new_blocks() -> None:
    async def main() -> None:
        source = PacedNumbers(99)
        follower = follower_of(SlowConsumer(source))
        task = asyncio.create_task(follower.run())
        await asyncio.sleep(50.0)
        assert follower.height == 99
        source.tip = source.hangs_from = 100_000
        await asyncio.sleep(10.0)
        assert follower.progress().blocks_per_s == pytest.approx(24, rel=0.2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(main())


@pytest.mark.parametrize(
    ("tip", "waiting", "height"),
    [(8, "block 9 is not there yet", None), (9, "", 9), (10, "", 10)],
)
def test_a_chain_begins_as_soon_as_its_first_block_is_there(
    tip: int, waiting: str, height: int | None
) -> None:
    async def main() -> None:
        follower = follower_of(SlowConsumer(Numbers(tip)), first_height=9)
        await follow(follower, 5.0)
        assert (follower.progress().waiting, follower.height) == (waiting, height)

    run(main())


def test_a_chain_says_that_it_looks_for_its_first_block() -> None:
    class Searching(SlowConsumer):
        async def begin(self, min_height: int, tip: int) -> int | None:
            await asyncio.sleep(10**6)
            return None

    async def main() -> None:
        follower = follower_of(Searching(Numbers(9)), first_height=9)
        await follow(follower, 5.0)
        assert follower.progress().waiting == "the first block is being looked for"

    run(main())
