"""Where the blocks of each chain come from: containers by the thousand where a node keeps them, else one by one.

Nobody has looked at the bytes yet: whether they are the blocks that were asked for shows when they are applied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol, TypeVar

from warpseal.chains.codec import MalformedChainBytes
from warpseal.chains.p_blocks import parse_p_block
from warpseal.chains.proposervm import inner_block
from warpseal.chains.x_blocks import parse_x_block
from warpseal.errors import NodeFailure, NodeUnavailable
from warpseal.indexer.proposervm_blocks import RawBlock
from warpseal.node.containers import MAX_CONTAINERS, Container, ContainersClient, Stream
from warpseal.node.evm import BatchRefused, CBlocksClient, EvmBlock
from warpseal.node.x_chain import XChainClient
from warpseal.runtime.locks import AsyncLock
from warpseal.runtime.retry import Retrier

T_co = TypeVar("T_co", covariant=True)

_TOO_MUCH: Final = (NodeFailure.BAD_ANSWER, NodeFailure.TIMEOUT)
_FIRST_SPAN: Final = 64
# The first block of a chain was never accepted like the others, so there is no container of it.
_FIRST_CONTAINED: Final = 1
MOST_SINGLE: Final = 1_024
# Of blocks that wait to be written, about; a few such spans wait at once.
SPAN_BYTES: Final = 16 * 1024 * 1024
_MOST_BATCHED: Final = 100
# What a node does not keep now, it may keep after its next start.
_ASK_AGAIN_AFTER_S: Final = 600.0


class BlockSource(Protocol[T_co]):
    """One chain's accepted blocks, waited for as long as it takes."""

    @property
    def span(self) -> int:
        """How many blocks are best asked for together."""
        ...

    async def tips(self) -> tuple[int, ...]:
        """Return the height of each node that answers; the first is that of the node in use. Raises NodeUnavailable."""
        ...

    async def read(self, first: int, count: int) -> tuple[T_co, ...]:
        """Return the blocks from height `first` on."""
        ...

    async def has(self, height: int) -> bool:
        """Tell whether any node has this block. Raises NodeUnavailable where none answers."""
        ...

    def distrust(self) -> None:
        """Take the next blocks another way: the last ones were not those that were asked for."""
        ...

    async def others(self, height: int) -> tuple[T_co, ...]:
        """Return the different blocks that all nodes give for a height. Raises NodeUnavailable."""
        ...


class SingleBlocks(Protocol):
    """Blocks one by one, by height. Raises NodeUnavailable."""

    async def block_at(self, height: int) -> bytes:
        """Return the bytes of a block."""
        ...

    async def block_at_each(self, height: int) -> tuple[bytes, ...]:
        """Return the different bytes that the nodes give for it."""
        ...


HeightOf = Callable[[bytes], int]


class ContainerSource:
    """Blocks of one chain from the index API, as long as it has them; which container holds a height is found out."""

    def __init__(self, client: ContainersClient, stream: Stream, height_of: HeightOf, retrier: Retrier) -> None:
        self._client = client
        self._stream = stream
        self._height_of = height_of
        self._retrier = retrier
        self._per_call = MAX_CONTAINERS // 2
        self._first_height: int | None = None
        self._ask_again_at = float("-inf")

    @property
    def span(self) -> int:
        """How many are best asked for at once; 0 where no node has them, or nobody knows yet."""
        return self.per_call if self._first_height is not None else 0

    @property
    def per_call(self) -> int:
        """How many are asked for in one call; 0 where no node has them."""
        return self._per_call if self._ask_again_at <= _now() else 0

    def rest(self) -> None:
        """Leave the index API alone for a while."""
        self._first_height = None
        self._ask_again_at = _now() + _ASK_AGAIN_AFTER_S

    async def read(self, first: int, count: int) -> tuple[RawBlock, ...]:
        """Return at most `count` blocks from height `first` on; none where no node has them."""
        found: tuple[Container, ...] | None = ()
        while self.per_call and first >= self.low_height:
            low = self.low_height
            found = await self._range(first - low, count)
            if await self._is_known(found, first) and low == self.low_height:
                return tuple(RawBlock(container.raw, True) for container in found or ())
        return ()

    @property
    def low_height(self) -> int:
        """The height of the first block that there is a container of, or the lowest that it may be."""
        return _FIRST_CONTAINED if self._first_height is None else self._first_height

    async def _is_known(self, found: tuple[Container, ...] | None, first: int) -> bool:
        """Tell whether it is known which container is of which height, after asking for that of `first`."""
        if self._first_height is not None:
            return True
        at = first - _FIRST_CONTAINED
        if not found:
            # What is there begins later, perhaps.
            found, at = await self._range(0, 1), 0
        try:
            self._first_height = self._height_of(found[0].raw) - at if found else None
        except MalformedChainBytes:
            self._first_height = None
        if self._first_height is None:
            self.rest()
        return self._first_height is not None

    async def _range(self, index: int, count: int) -> tuple[Container, ...] | None:
        """Return containers, fewer at once after an answer that was too large or too slow."""
        while True:
            wanted = min(count, self._per_call)
            try:
                found = await self._client.range(self._stream, index, wanted)
            except NodeUnavailable as error:
                if wanted > 1 and any(attempt.failure in _TOO_MUCH for attempt in error.attempts):
                    self._per_call = max(1, wanted // 2)
                    continue
                found = await self._retrier.call(partial(self._client.range, self._stream, index, wanted))
            self._per_call = min(MAX_CONTAINERS, self._per_call + 1 + self._per_call // 8)
            return found


class LinearSource:
    """Blocks of the P- or the X-Chain: containers where there are any, else one by one, several at once."""

    def __init__(
        self,
        singles: SingleBlocks,
        tips: Callable[[], Awaitable[tuple[int, ...]]],
        containers: ContainerSource | None,
        retrier: Retrier,
        at_once: int,
    ) -> None:
        self._singles = singles
        self._tips = tips
        self._containers = containers
        self._retrier = retrier
        self._at_once = at_once
        self._span = _FIRST_SPAN
        self._turn = AsyncLock()
        self._last_found: tuple[int, bytes] | None = None

    @property
    def span(self) -> int:
        """How many blocks are best asked for together."""
        return (self._containers.span if self._containers else 0) or self._span

    async def tips(self) -> tuple[int, ...]:
        """Return the height of each node that answers. Raises NodeUnavailable."""
        return await self._tips()

    async def read(self, first: int, count: int) -> tuple[RawBlock, ...]:
        """Return the blocks from height `first` on."""
        end = first + count
        blocks: list[RawBlock] = []
        if self._containers is not None:
            blocks += await self._one_by_one(first, max(first, min(end, self._containers.low_height)))
            while first + len(blocks) < end:
                more = await self._containers.read(first + len(blocks), end - first - len(blocks))
                if not more:
                    break
                blocks += more
        blocks += await self._one_by_one(first + len(blocks), end)
        held_bytes = sum(1 + len(block.raw) for block in blocks)
        self._span = max(1, min(2 * self._span, MOST_SINGLE, SPAN_BYTES * count // held_bytes))
        return tuple(blocks)

    async def has(self, height: int) -> bool:
        """Tell whether any node has this block. Raises NodeUnavailable where none answers."""
        try:
            self._last_found = (height, await self._singles.block_at(height))
        except NodeUnavailable as error:
            if error.attempts and all(attempt.failure is not NodeFailure.BAD_ANSWER for attempt in error.attempts):
                raise
            return False
        return True

    def distrust(self) -> None:
        """Ask for each block by its height for a while."""
        self._last_found = None
        if self._containers is not None:
            self._containers.rest()

    async def others(self, height: int) -> tuple[RawBlock, ...]:
        """Return the different blocks that all nodes give for a height."""
        return tuple(RawBlock(raw, False) for raw in await self._singles.block_at_each(height))

    async def _one_by_one(self, low: int, end: int) -> list[RawBlock]:
        if low >= end:
            return []
        # One span after another: what is needed first comes first, and no call waits behind those of later spans.
        async with self._turn:
            return await self._of_heights(low, end)

    async def _of_heights(self, low: int, end: int) -> list[RawBlock]:
        # What was looked for a moment ago is not asked for again.
        found = {} if self._last_found is None else dict((self._last_found,))
        self._last_found = None
        heights = iter([height for height in range(low, end) if height not in found])

        async def work() -> None:
            for height in heights:
                found[height] = await self._retrier.call(partial(self._singles.block_at, height))

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(self._at_once, end - low)):
                tasks.create_task(work())
        return [RawBlock(found[height], False) for height in range(low, end)]


class CChainSource:
    """Blocks of the C-Chain, by the batch."""

    def __init__(self, client: CBlocksClient, retrier: Retrier) -> None:
        self._client = client
        self._retrier = retrier
        self._per_call = _MOST_BATCHED

    @property
    def span(self) -> int:
        """How many blocks are best asked for together."""
        return self._per_call

    async def tips(self) -> tuple[int, ...]:
        """Return the height of each node that answers. Raises NodeUnavailable."""
        return await self._client.tips()

    async def read(self, first: int, count: int) -> tuple[EvmBlock, ...]:
        """Return the blocks from number `first` on."""
        blocks: list[EvmBlock] = []
        while len(blocks) < count:
            blocks += await self._retrier.call(partial(self._some, first + len(blocks), count - len(blocks)))
        return tuple(blocks)

    async def has(self, height: int) -> bool:
        """Tell whether any node has this block. Raises NodeUnavailable where none answers."""
        try:
            return (await self._client.blocks(height, 1))[0] is not None
        except BatchRefused:
            return False

    def distrust(self) -> None:
        """Nothing else can be done than to ask again."""

    async def others(self, height: int) -> tuple[EvmBlock, ...]:
        """Return the different blocks that all nodes give for a height."""
        return await self._client.block_of_each(height)

    async def _some(self, first: int, count: int) -> list[EvmBlock]:
        """Return one batch, without what the node does not have yet. Raises NodeUnavailable."""
        wanted = min(count, self._per_call)
        try:
            found = await self._client.blocks(first, wanted)
        except (BatchRefused, NodeUnavailable) as error:
            if isinstance(error, NodeUnavailable) and not any(each.failure in _TOO_MUCH for each in error.attempts):
                raise
            self._per_call = max(1, wanted // 2)
            raise NodeUnavailable("eth_getBlockByNumber") from None
        self._per_call = min(_MOST_BATCHED, self._per_call + 1)
        blocks = [block for block in found if block is not None]
        if not blocks or found[0] is None:
            raise NodeUnavailable("eth_getBlockByNumber")
        return blocks[: next((n for n, block in enumerate(found) if block is None), len(found))]


def p_container_source(client: ContainersClient, retrier: Retrier) -> ContainerSource:
    """Return the P-Chain's blocks of the index API."""
    return ContainerSource(client, Stream.P_BLOCKS, lambda raw: parse_p_block(inner_block(raw)).height, retrier)


def x_block_source(client: XChainClient, containers: ContainersClient, retrier: Retrier, at_once: int) -> LinearSource:
    """Return where the X-Chain's blocks come from."""
    kept = ContainerSource(containers, Stream.X_BLOCKS, lambda raw: parse_x_block(inner_block(raw)).height, retrier)
    return LinearSource(client, client.heights, kept, retrier, at_once)


async def find_first_available(source: BlockSource[object], wanted: int, tip: int) -> int:
    """Return the lowest height from `wanted` on that a node has; it is `wanted` but for nodes that began later."""
    if await source.has(wanted):
        return wanted
    low, high = wanted + 1, tip
    while low < high:
        middle = (low + high) // 2
        if await source.has(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _now() -> float:
    return asyncio.get_running_loop().time()
