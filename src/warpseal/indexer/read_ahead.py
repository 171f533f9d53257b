"""What is read for the follower before the index gets there: in containers where a node has them, and all of it waits.

Containers tell who proposed a block, which the index would not learn otherwise. Where a node does not give them, the
index API is left alone for a while, and blocks come one by one.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from warpseal.chains.cursor import MalformedChainBytes
from warpseal.chains.p_blocks import parse_p_block
from warpseal.errors import NodeFailure, NodeUnavailable
from warpseal.indexer.heights import Heights
from warpseal.indexer.proposervm_blocks import RawBlock, inner_of
from warpseal.indexer.waiting_blocks import WaitingBlocks
from warpseal.indexer.waiting_file import GROUP_BLOCKS
from warpseal.node.containers import ContainersClient, Stream

_FAILED_REST_S: Final = 300.0
# One that has answered may be a block behind.
_BEHIND_REST_S: Final = 10.0
# No container is of block 0, which was never accepted like the others.
_FIRST_HEIGHT: Final = 1


class ReadAhead:
    """Used from one event loop; nothing of it raises. path: of the file in which blocks wait.

    What it gives back is only what it has read itself: the file may be of another time, and of a network made anew.
    """

    def __init__(self, containers: ContainersClient, path: Path) -> None:
        self._ranges = _ContainerRanges(containers)
        self._waiting = WaitingBlocks(path)
        self._number: int | None = None
        self._there: set[int] = set()
        self._own = Heights()

    async def read(self, height: int, above: int) -> dict[int, RawBlock]:
        """Return a block, and some below it but above a height, that wait or do so from now on; none: read it alone."""
        if height // GROUP_BLOCKS != self._number or height in self._there:
            waiting = await self._waiting.near(height)
            if waiting is None:
                return {}
            self._number, self._there = height // GROUP_BLOCKS, set(waiting)
            if height in waiting and height in self._own:
                return {each: block for each, block in waiting.items() if above < each <= height and each in self._own}
        low = height
        while low - 1 not in self._there and low - 1 > above and low % GROUP_BLOCKS:
            low -= 1
        found = await self._ranges.ending_at(max(low, _FIRST_HEIGHT), height)
        self._keep(found)
        return found if height in found else {}

    def keep(self, height: int, raw: bytes) -> None:
        """Let a block wait that came alone."""
        self._keep({height: RawBlock(raw, False)})

    def take_out(self, height: int) -> None:
        """Let a block wait no longer: it may not be the right one."""
        self._number = None
        self._own.discard(height)
        self._waiting.take_out(height)

    def forget(self, height: int) -> None:
        """Forget, soon, what the index has up to a height."""
        self._waiting.forget(height)

    def close(self) -> None:
        """Write what is to wait."""
        self._waiting.close()

    def _keep(self, blocks: dict[int, RawBlock]) -> None:
        self._there |= {height for height in blocks if height // GROUP_BLOCKS == self._number}
        self._own.update(blocks)
        self._waiting.add(blocks)


class _ContainerRanges:
    """The P-Chain's containers by height; which of them is of a height is found out."""

    def __init__(self, client: ContainersClient) -> None:
        self._client = client
        self._first_height = _FIRST_HEIGHT
        self._most = GROUP_BLOCKS
        self._has_answered = False
        self._ask_again_at = float("-inf")

    async def ending_at(self, low: int, high: int) -> dict[int, RawBlock]:
        """Return the blocks up to a height, some or all of those from `low` on; none: they have to be read alone."""
        while high >= low >= self._first_height and time.monotonic() >= self._ask_again_at:
            low = max(low, high - self._most + 1)
            try:
                found = await self._client.range(Stream.P_BLOCKS, low - self._first_height, high - low + 1)
            except NodeUnavailable as error:
                if low == high or all(attempt.failure is not NodeFailure.BAD_ANSWER for attempt in error.attempts):
                    return self._rest(_FAILED_REST_S)
                # Too large, perhaps.
                self._most = (high - low + 1) // 2
                continue
            self._most = min(GROUP_BLOCKS, self._most + 1)
            return self._checked(low, [RawBlock(each.raw, True) for each in (found or ())[: high - low + 1]])
        return {}

    def _checked(self, low: int, blocks: list[RawBlock]) -> dict[int, RawBlock]:
        """Return the blocks by height if the first one's is `low`, as the last one tells: they come in a row."""
        if not blocks:
            return self._rest(_BEHIND_REST_S if self._has_answered else _FAILED_REST_S)
        try:
            height = parse_p_block(inner_of(blocks[-1].raw)).height
        except MalformedChainBytes:
            return self._rest(_FAILED_REST_S)
        beside = height - (low + len(blocks) - 1)
        if beside == 0:
            self._has_answered = True
            return dict(enumerate(blocks, low))
        if beside < 0 or self._first_height > _FIRST_HEIGHT:
            return self._rest(_FAILED_REST_S)
        # A node that kept none at first: its first one is of a later block.
        self._first_height += beside
        return {}

    def _rest(self, duration_s: float) -> dict[int, RawBlock]:
        """Leave the index API alone for a while."""
        self._ask_again_at = time.monotonic() + duration_s
        return {}
