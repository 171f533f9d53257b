"""The P-Chain's blocks for the index: first those that wait in the follower's file, from nodes only what is missing.

Nobody has looked at the bytes of the file either. It is only read here; whoever follows writes it. One block of it is
compared with that of a node first: the network may have been made anew since.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from warpseal.indexer.block_sources import MOST_SINGLE, SPAN_BYTES, Singles, Source
from warpseal.indexer.meeting import NEAR_BLOCKS
from warpseal.indexer.proposervm_blocks import RawBlock, inner_of
from warpseal.indexer.waiting_file import Waiting, waiting_between
from warpseal.l1.follower.retry import Patience
from warpseal.runtime.locks import AsyncLock

log = logging.getLogger(__name__)

_FIRST_SPAN: Final = 64
# Near the blocks that wait, whoever follows may be about to read the same ones: few are in flight at once there.
_NEAR_SPAN: Final = 64
_LOOKED_UP_AT_ONCE: Final = 64
# Longer than a chain that stopped takes to look again.
_DISTRUSTED_S: Final = 600.0


class WaitingFirst:
    """A source that asks nodes only for what does not wait in a file. Used from one event loop.

    nodes: makes the source of everything else, of singles that are looked for in the file once more, just before
    their turn comes.
    """

    def __init__(
        self, path: Path, blocks: Singles, patience: Patience, nodes: Callable[[Singles], Source[RawBlock]]
    ) -> None:
        self._looks = _Looks(path, blocks, patience)
        self._nodes = nodes(_LateSingles(blocks, self._looks))
        self._span = _FIRST_SPAN
        self._is_fed = False

    @property
    def span(self) -> int:
        """How many blocks are best asked for together."""
        if self._is_fed and self._looks.are_believed:
            return self._span
        return min(self._nodes.span, _NEAR_SPAN) if self._looks.is_near else self._nodes.span

    async def tips(self) -> tuple[int, ...]:
        """Return the height of each node that answers. Raises NodeUnavailable."""
        return await self._nodes.tips()

    async def read(self, first: int, count: int) -> tuple[RawBlock, ...]:
        """Return the blocks from height `first` on."""
        found = await self._looks.between(first, first + count - 1)
        blocks: list[RawBlock] = []
        for height in (*sorted(found), first + count):
            missing = height - first - len(blocks)
            if missing:
                blocks += (await self._nodes.read(first + len(blocks), missing))[:missing]
            if height in found:
                blocks.append(found[height])
        self._is_fed = len(found) == len(blocks)
        if self._is_fed:
            held_bytes = sum(1 + len(block.raw) for block in blocks)
            self._span = max(1, min(2 * self._span, MOST_SINGLE, SPAN_BYTES * len(blocks) // held_bytes))
        return tuple(blocks)

    async def has(self, height: int) -> bool:
        """Tell whether the block waits, or any node has it. Raises NodeUnavailable where none answers."""
        return await self._nodes.has(height)

    def distrust(self) -> None:
        """Leave the file alone for a while; where that was not to blame, ask nodes another way."""
        if self._looks.were_used:
            self._looks.leave_alone()
        else:
            self._nodes.distrust()

    async def others(self, height: int) -> tuple[RawBlock, ...]:
        """Return the different blocks that all nodes give for a height. Raises NodeUnavailable."""
        return await self._nodes.others(height)


class _Looks:
    """Looks into the file, as long as it is believed."""

    def __init__(self, path: Path, blocks: Singles, patience: Patience) -> None:
        self._path = path
        self._blocks = blocks
        self._patience = patience
        self.is_near = False
        self.were_used = False
        self._is_of_network = False
        self._comparing = AsyncLock()
        self._distrusted_until = float("-inf")

    @property
    def are_believed(self) -> bool:
        """Whether what waits is used."""
        return _now() >= self._distrusted_until

    async def between(self, first: int, last: int) -> Mapping[int, RawBlock]:
        """Return which of the blocks from one height to another wait."""
        if not self.are_believed:
            return {}
        waiting: Waiting = await asyncio.to_thread(waiting_between, self._path, first, last)
        self.is_near = waiting.next_height is not None and waiting.next_height <= last + NEAR_BLOCKS
        if not waiting.found or not await self._agrees(waiting.found):
            return {}
        self.were_used = True
        return waiting.found

    def leave_alone(self) -> None:
        """Do without the file for a while."""
        self.is_near = self.were_used = self._is_of_network = False
        self._distrusted_until = _now() + _DISTRUSTED_S

    async def _agrees(self, found: Mapping[int, RawBlock]) -> bool:
        """Tell, once, whether the highest of some blocks is the one that a node gives; else leave the file alone."""
        height = max(found)
        async with self._comparing:
            # Networks that were made alike begin alike.
            if self._is_of_network or height == 0 or not self.are_believed:
                return self._is_of_network
            told = await self._patience.nodes(partial(self._blocks.block_at, height))
            self._is_of_network = told == inner_of(found[height].raw)
            if not self._is_of_network:
                log.warning("what waits for the index is not of this network", extra={"height": height})
                self.leave_alone()
            return self._is_of_network


class _LateSingles:
    """Blocks one by one, by height, each looked for in the file before a node is asked."""

    def __init__(self, nodes: Singles, looks: _Looks) -> None:
        self._nodes = nodes
        self._looks = looks
        self._looking = AsyncLock()
        self._looked_at = range(0)
        self._found: dict[int, RawBlock] = {}

    async def block_at(self, height: int) -> bytes:
        """Return the bytes of a block. Raises NodeUnavailable."""
        async with self._looking:
            if height not in self._looked_at:
                self._looked_at = range(height, height + _LOOKED_UP_AT_ONCE)
                self._found = dict(await self._looks.between(height, height + _LOOKED_UP_AT_ONCE - 1))
        found = self._found.pop(height, None)
        if found is None or not self._looks.are_believed:
            return await self._nodes.block_at(height)
        return inner_of(found.raw)

    async def block_at_each(self, height: int) -> tuple[bytes, ...]:
        """Return the different bytes that the nodes give for it."""
        return await self._nodes.block_at_each(height)


def _now() -> float:
    return asyncio.get_running_loop().time()
