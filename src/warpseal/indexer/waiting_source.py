"""The P-Chain's blocks for the index: first those that wait in the follower's file, from nodes only what is missing.

Nobody has looked at the bytes of the file either. It is only read here; whoever follows writes it. One block of it is
compared with that of a node first: the network may have been made anew since.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from warpseal.indexer.meeting import NEAR_BLOCKS
from warpseal.indexer.sources import MOST_SINGLE, SPAN_BYTES, Source
from warpseal.indexer.waiting_file import Waiting, waiting_between
from warpseal.indexer.wrapping import RawBlock, inner_of
from warpseal.waits import AsyncLock

log = logging.getLogger(__name__)

_FIRST_SPAN: Final = 64
# Near the blocks that wait, whoever follows may be about to read the same ones: few are in flight at once there.
_NEAR_SPAN: Final = 64
# Longer than a chain that stopped takes to look again.
_DISTRUSTED_S: Final = 600.0


class WaitingFirst:
    """A source that asks another one only for what does not wait in a file. Used from one event loop."""

    def __init__(self, nodes: Source[RawBlock], path: Path) -> None:
        self._nodes = nodes
        self._path = path
        self._span = _FIRST_SPAN
        self._is_fed = False
        self._is_near = False
        self._was_used = False
        self._is_of_network = False
        self._comparing = AsyncLock()
        self._distrusted_until = float("-inf")

    @property
    def span(self) -> int:
        """How many blocks are best asked for together."""
        if self._is_fed:
            return self._span
        return min(self._nodes.span, _NEAR_SPAN) if self._is_near else self._nodes.span

    async def tips(self) -> tuple[int, ...]:
        """Return the height of each node that answers. Raises NodeUnavailable."""
        return await self._nodes.tips()

    async def read(self, first: int, count: int) -> tuple[RawBlock, ...]:
        """Return the blocks from height `first` on."""
        waiting = await self._look(first, first + count - 1)
        blocks: list[RawBlock] = []
        heights = iter((*sorted(waiting.found), first + count))
        for height in heights:
            missing = height - first - len(blocks)
            if missing:
                blocks += (await self._nodes.read(first + len(blocks), missing))[:missing]
            if height in waiting.found:
                blocks.append(waiting.found[height])
        self._learn(waiting, first, blocks)
        return tuple(blocks)

    async def has(self, height: int) -> bool:
        """Tell whether the block waits, or any node has it. Raises NodeUnavailable where none answers."""
        return bool((await self._look(height, height)).found) or await self._nodes.has(height)

    def distrust(self) -> None:
        """Leave the file alone for a while; where that was not to blame, ask nodes another way."""
        if self._was_used:
            self._leave_alone()
        else:
            self._nodes.distrust()

    async def others(self, height: int) -> tuple[RawBlock, ...]:
        """Return the different blocks that all nodes give for a height. Raises NodeUnavailable."""
        return await self._nodes.others(height)

    async def _look(self, first: int, last: int) -> Waiting:
        if _now() < self._distrusted_until:
            return Waiting()
        waiting = await asyncio.to_thread(waiting_between, self._path, first, last)
        if waiting.found and not await self._agrees(waiting.found):
            return Waiting()
        self._was_used |= bool(waiting.found)
        return waiting

    async def _agrees(self, found: Mapping[int, RawBlock]) -> bool:
        """Tell, once, whether the highest of some blocks is the one that a node gives; else leave the file alone."""
        height = max(found)
        async with self._comparing:
            # Networks that were made alike begin alike.
            if self._is_of_network or height == 0 or _now() < self._distrusted_until:
                return self._is_of_network
            told = await self._nodes.read(height, 1)
            self._is_of_network = inner_of(told[0].raw) == inner_of(found[height].raw)
            if not self._is_of_network:
                log.warning("what waits for the index is not of this network", extra={"height": height})
                self._leave_alone()
            return self._is_of_network

    def _leave_alone(self) -> None:
        self._was_used = self._is_fed = self._is_near = self._is_of_network = False
        self._distrusted_until = _now() + _DISTRUSTED_S

    def _learn(self, waiting: Waiting, first: int, blocks: list[RawBlock]) -> None:
        """Choose how many blocks come at once from here on."""
        end = first + len(blocks)
        self._is_fed = len(waiting.found) == len(blocks)
        self._is_near = waiting.next_height is not None and waiting.next_height <= end + NEAR_BLOCKS
        if self._is_fed:
            held_bytes = sum(1 + len(block.raw) for block in blocks)
            self._span = max(1, min(2 * self._span, MOST_SINGLE, SPAN_BYTES * len(blocks) // held_bytes))


def _now() -> float:
    return asyncio.get_running_loop().time()
