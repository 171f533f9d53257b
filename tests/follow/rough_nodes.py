"""Nodes in memory that are slow, lag, go away and lie, for histories of a `ChainFollower` in
virtual time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import cast

from tests.aggregation.virtual_time import run
from warpseal.node.blocks import PBlocksClient
from warpseal.upstream.errors import NodeUnavailable

MAX_LATENCY_S = 3.0


@dataclass
class RoughNode:
    """A node with the first blocks of a chain.

    lies: other bytes by height.
    lag: number of newest blocks that it lacks.
    lowest_height: height that the node always has.
    """

    chain: list[bytes]
    lowest_height: int = 0
    is_up: bool = True
    lag: int = 0
    latency_s: float = 0.01
    lies: dict[int, bytes] = field(default_factory=dict)

    @property
    def height(self) -> int:
        """The height that the node reports."""
        return max(self.lowest_height, len(self.chain) - 1 - self.lag)

    def block_at(self, height: int) -> bytes | None:
        """Return a block; None if the node lacks it."""
        if not self.is_up or not 0 <= height <= self.height:
            return None
        return self.lies.get(height, self.chain[height])


class RoughBlocks:
    """Stands for a client of P-Chain blocks with these nodes, of which `quorum` must agree."""

    max_concurrency = 4
    max_calls_per_s = 8

    def __init__(
        self, nodes: Sequence[RoughNode], quorum: int, rng: Random, upgrades: Mapping[str, int]
    ) -> None:
        self._nodes = nodes
        self._quorum = quorum
        self._rng = rng
        self._upgrades = upgrades
        self.calls: Counter[int] = Counter()

    @property
    def must_agree(self) -> bool:
        return self._quorum > 1

    async def tip(self) -> int:
        heights = (
            sorted(await self._heights(), reverse=True)
            if self.must_agree
            else await self._heights()
        )
        return heights[self._quorum - 1]

    async def tips(self) -> tuple[int, ...]:
        return (await self.tip(),) if self.must_agree else tuple(await self._heights())

    async def block_at(self, height: int) -> bytes:
        self.calls[height] += 1
        for node in self._nodes:
            await asyncio.sleep(node.latency_s * self._rng.random())
            if (raw := node.block_at(height)) is not None:
                return raw
        raise NodeUnavailable("block", replies=("not found",))

    async def block_at_each(self, height: int) -> tuple[bytes, ...]:
        await asyncio.sleep(self._rng.random())
        return tuple(
            dict.fromkeys(raw for node in self._nodes if (raw := node.block_at(height)) is not None)
        )

    async def agreed_block_at(self, height: int) -> bytes:
        await asyncio.sleep(self._rng.random())
        counts = Counter(raw for node in self._nodes if (raw := node.block_at(height)) is not None)
        for raw, count in counts.items():
            if count >= self._quorum:
                return raw
        raise NodeUnavailable("block", replies=("nodes disagree",))

    async def upgrades(self) -> Mapping[str, int]:
        await asyncio.sleep(self._rng.random())
        return self._upgrades

    def as_client(self) -> PBlocksClient:
        """Return itself with the type that followers take."""
        return cast(PBlocksClient, self)

    async def _heights(self) -> list[int]:
        await asyncio.sleep(self._rng.random())
        heights = [node.height for node in self._nodes if node.is_up]
        if len(heights) < self._quorum:
            raise NodeUnavailable("height")
        return heights


class RoughStore:
    """Decides whether a write fails, before or after it is committed.

    is_down: every write fails before.
    """

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.is_down = False
        self.failure_rate = 0.1

    async def write(self, commit: Callable[[], object], error: Exception) -> object:
        """Commit, at some moment of a short while, or raise the error; sometimes both."""
        await asyncio.sleep(self._rng.random() * 0.2)
        if self.is_down or self._rng.random() < self.failure_rate / 2:
            raise error
        result = commit()
        if self._rng.random() < self.failure_rate / 2:
            raise error
        # Killed here, the caller does not know that its write was committed.
        await asyncio.sleep(self._rng.random() * 0.2)
        return result


def split_seeds(seeds: range, size: int) -> list[range]:
    """Return parts of the seeds, each of them for one test."""
    return [seeds[start : start + size] for start in range(0, len(seeds), size)]


def run_seeds(seeds: range, follow: Callable[[int], Coroutine[None, None, None]]) -> None:
    """Run the history of each seed in virtual time; an error has the seed as a note."""
    for seed in seeds:
        try:
            run(follow(seed))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


async def play(
    rng: Random, start: Callable[[], asyncio.Task[None]], disturb: Callable[[], None], steps: int
) -> asyncio.Task[None]:
    """Disturb a follower, and kill and start it again now and then; return the task of the last
    start.
    """
    for _ in range(rng.randrange(4)):
        disturb()
    task = start()
    for _ in range(steps):
        await asyncio.sleep(rng.choice((0.05, 0.3, 1.0, 5.0, 40.0)) * rng.random())
        assert not task.done(), task.exception()
        if rng.random() < 0.25:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            task = start()
        disturb()
    return task


async def until(is_done: Callable[[], bool], timeout_s: float = 3_600.0) -> None:
    """Wait in virtual time."""
    async with asyncio.timeout(timeout_s):
        while not is_done():  # noqa: ASYNC110 - time jumps
            await asyncio.sleep(0.5)
