"""Sources of the blocks of the P- and X-Chain: ranges of containers if a node has the index API,
else single blocks.

The sources do not decode the blocks. The consumers check that they are the requested ones.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from warpseal.chains.codec import MalformedChainBytes
from warpseal.chains.p_blocks import read_parent_id
from warpseal.chains.proposervm import inner_block
from warpseal.follow.blocks import AnyBlock, RawBlock
from warpseal.node.blocks import (
    MAX_CONTAINERS,
    BlocksClient,
    ContainersClient,
    PBlocksClient,
    Stream,
)
from warpseal.node.containers import Container
from warpseal.runtime.retry import Retrier
from warpseal.runtime.ttl_cache import loop_time
from warpseal.upstream.errors import NodeUnavailable, PublicFailure

if TYPE_CHECKING:
    from warpseal.follow.index_source import IndexedBlocks

T = TypeVar("T")

# A gateway refuses a batch in any of these ways. A node that is busy asks for a pause, and not for
# smaller batches.
_TOO_LARGE_FAILURES: Final = (
    PublicFailure.BAD_ANSWER,
    PublicFailure.TIMEOUT,
    PublicFailure.HTTP_STATUS,
    PublicFailure.REFUSED,
)
_FIRST_SPAN: Final = 64
# The first block of a chain was never accepted like the others, so it has no container.
_FIRST_CONTAINER_HEIGHT: Final = 1
_MAX_SPAN: Final = 1_024
# About the size of one span; several spans are in memory at once.
_SPAN_BYTES: Final = 16 * 1024 * 1024
# A node without the index API may have it after its next start.
_INDEX_API_RETRY_S: Final = 600.0


class BlockSource(ABC, Generic[T]):
    """The accepted blocks of one chain. `read` waits until nodes return them.

    tip_heights: returns the height of each available node, that of the node in use first; raises
        NodeUnavailable.
    """

    def __init__(
        self, tip_heights: Callable[[], Awaitable[tuple[int, ...]]], retrier: Retrier
    ) -> None:
        self.tip_heights = tip_heights
        self._retrier = retrier

    @property
    @abstractmethod
    def span(self) -> int:
        """The number of blocks that one `read` fetches best, above 0."""

    @abstractmethod
    async def read(self, first: int, count: int) -> tuple[T, ...]:
        """Return `count` blocks from height `first` on, or fewer if a later one cannot be read now.

        Raises ChainStopped.
        """

    @abstractmethod
    async def has(self, height: int) -> bool:
        """Return whether any node has this block. Raises NodeUnavailable if no node responds."""

    @abstractmethod
    def use_fallback(self) -> None:
        """Read the next blocks in another way, since the last ones were not those requested."""

    @abstractmethod
    async def alternatives(self, height: int) -> tuple[T, ...]:
        """Return the distinct blocks that all nodes return for a height. Raises NodeUnavailable."""

    async def find_first(self, min_height: int, tip: int) -> int:
        """Return the lowest height from `min_height` on that a node has.

        Nodes that lack a block lack the older ones as well, so that the search halves the range.
        """
        if await self.has(min_height):
            return min_height
        low, high = min_height + 1, tip
        while low < high:
            middle = (low + high) // 2
            if await self.has(middle):
                high = middle
            else:
                low = middle + 1
        return low


class ContainerSource:
    """Blocks of one chain from the index API of nodes that have it.

    A container has an index in place of a height. The height of the first one gives those of all.
    """

    def __init__(
        self,
        client: ContainersClient,
        stream: Stream,
        parse: Callable[[bytes], AnyBlock],
        retrier: Retrier,
    ) -> None:
        self._client = client
        self._stream = stream
        self._parse = parse
        self._retrier = retrier
        self._per_call = MAX_CONTAINERS // 2
        self._first_height: int | None = None
        self._retry_at = float("-inf")

    @property
    def span(self) -> int:
        """The number of blocks that one `read` fetches best; 0 before the first container."""
        return self.per_call if self._first_height is not None else 0

    @property
    def per_call(self) -> int:
        """The number of containers of one call; 0 if no node has containers."""
        return self._per_call if self._retry_at <= loop_time() else 0

    def pause(self) -> None:
        """Do not use the index API for a while."""
        self._first_height = None
        self._retry_at = loop_time() + _INDEX_API_RETRY_S

    async def read(self, first: int, count: int) -> tuple[RawBlock, ...]:
        """Return at most `count` blocks from height `first` on; none if no node has them."""
        containers: tuple[Container, ...] | None = ()
        while self.per_call and first >= self.low_height:
            low = self.low_height
            containers = await self._range(first - low, count)
            if await self._learn_first_height(containers, first) and low == self.low_height:
                return tuple(RawBlock(container.raw, True) for container in containers or ())
        return ()

    @property
    def low_height(self) -> int:
        """The height of the first block that has a container, or the lowest possible one."""
        return _FIRST_CONTAINER_HEIGHT if self._first_height is None else self._first_height

    async def _learn_first_height(
        self, containers: tuple[Container, ...] | None, first: int
    ) -> bool:
        """Return whether the height of the first container is known now.

        containers: response for the index that height `first` probably has.
        """
        if self._first_height is not None:
            return True
        at = first - _FIRST_CONTAINER_HEIGHT
        if not containers:
            # The first container may be of a later block.
            containers, at = await self._range(0, 1), 0
        try:
            self._first_height = (
                self._parse(inner_block(containers[0].raw)).height - at if containers else None
            )
        except MalformedChainBytes:
            self._first_height = None
        if self._first_height is None:
            self.pause()
        return self._first_height is not None

    async def _range(self, index: int, count: int) -> tuple[Container, ...] | None:
        """Return containers; later calls fetch fewer if a response is too large or too slow."""
        while True:
            size = min(count, self._per_call)
            try:
                containers = await self._client.range(self._stream, index, size)
            except NodeUnavailable as error:
                if size > 1 and is_range_too_large(error):
                    self._per_call = size // 2
                    continue
                containers = await self._retrier.call(
                    partial(self._client.range, self._stream, index, size)
                )
            self._per_call = min(MAX_CONTAINERS, self._per_call + 1 + self._per_call // 8)
            return containers


class LinearSource(BlockSource[RawBlock]):
    """Blocks of the P- or the X-Chain: from containers if there are any, else single blocks in
    parallel.
    """

    def __init__(
        self,
        single_blocks: BlocksClient,
        containers: ContainerSource | None,
        retrier: Retrier,
        max_span: int = _MAX_SPAN,
    ) -> None:
        super().__init__(single_blocks.tips, retrier)
        self._single_blocks = single_blocks
        self._containers = containers
        self._max_span = max_span
        self._span = min(_FIRST_SPAN, max_span)
        self._single_lock = asyncio.Lock()

    @property
    def span(self) -> int:
        return (self._containers.span if self._containers else 0) or self._span

    async def read(self, first: int, count: int) -> tuple[RawBlock, ...]:
        end = first + count
        blocks: list[RawBlock] = []
        if self._containers is not None:
            blocks += await self._read_single_blocks(
                first, max(first, min(end, self._containers.low_height))
            )
            while first + len(blocks) < end:
                more = await self._containers.read(first + len(blocks), end - first - len(blocks))
                if not more:
                    break
                blocks += more
        blocks += await self._read_single_blocks(first + len(blocks), end)
        span_bytes = sum(1 + len(block.raw) for block in blocks)
        self._span = max(1, min(2 * self._span, self._max_span, _SPAN_BYTES * count // span_bytes))
        return tuple(blocks)

    async def has(self, height: int) -> bool:
        try:
            await self._single_blocks.block_at(height)
        except NodeUnavailable as error:
            if error.attempts and all(
                attempt.failure is not PublicFailure.BAD_ANSWER for attempt in error.attempts
            ):
                raise
            return False
        return True

    def use_fallback(self) -> None:
        """Read single blocks for a while."""
        if self._containers is not None:
            self._containers.pause()

    async def alternatives(self, height: int) -> tuple[RawBlock, ...]:
        return tuple(
            RawBlock(raw, False) for raw in await self._single_blocks.block_at_each(height)
        )

    async def read_block(self, height: int) -> bytes:
        """Return a single block, bare."""
        return await self._retrier.call(partial(self._single_blocks.block_at, height))

    async def _read_single_blocks(self, low: int, end: int) -> list[RawBlock]:
        if low >= end:
            return []
        heights, blocks = iter(range(low, end)), dict[int, bytes]()

        async def work() -> None:
            for height in heights:
                blocks[height] = await self.read_block(height)

        # One span after another, so that no call for this span waits behind the calls for a later
        # one.
        async with self._single_lock, asyncio.TaskGroup() as tasks:
            for _ in range(min(self._single_blocks.max_concurrency, end - low)):
                tasks.create_task(work())
        return [RawBlock(blocks[height], False) for height in range(low, end)]


class PChainSource(LinearSource):
    """Blocks of the P-Chain.

    Nodes that must agree prove the last block of each read, and its parents the others.

    indexed: blocks of an index, which no node is asked for; None without an index.
    max_span: highest number of blocks of one read.
    """

    def __init__(
        self,
        client: PBlocksClient,
        containers: ContainerSource | None,
        retrier: Retrier,
        indexed: IndexedBlocks | None = None,
        max_span: int = _MAX_SPAN,
    ) -> None:
        super().__init__(client, containers, retrier, max_span)
        self._client = client
        self._indexed = indexed

    async def read(self, first: int, count: int) -> tuple[RawBlock, ...]:
        blocks = await super().read(first, count)
        return await self._prove(first, blocks) if self._client.must_agree else blocks

    async def alternatives(self, height: int) -> tuple[RawBlock, ...]:
        if self._client.must_agree:
            return (RawBlock(await self._client.agreed_block_at(height), False),)
        return await super().alternatives(height)

    async def read_block(self, height: int) -> bytes:
        raw = None if self._indexed is None else await self._indexed.block_at(height)
        return await super().read_block(height) if raw is None else raw

    async def _prove(self, first: int, blocks: Sequence[RawBlock]) -> tuple[RawBlock, ...]:
        """Return the blocks, each the parent of the next, with those of the nodes in place of
        forged ones.

        The last one is the first that names no parent, since no block above it can be written.
        """
        parents = [_parent_in(inner_block(block.raw)) for block in blocks]
        # Downwards, so that one agreement proves a whole read: the id of each block is the hash of
        # its bytes, and the proven block above names it.
        end = parents.index(None) + 1 if None in parents else len(blocks)
        proven: deque[RawBlock] = deque()
        expected_id: bytes | None = None
        for height, block in reversed(list(enumerate(blocks[:end], first))):
            inner = inner_block(block.raw)
            if sha256(inner).digest() != expected_id:
                agreed = await self._retrier.call(partial(self._client.agreed_block_at, height))
                # A container has the proposer as well.
                block, inner = (block if inner == agreed else RawBlock(agreed, False)), agreed
            expected_id = _parent_in(inner)
            proven.appendleft(block)
        return tuple(proven)


def _parent_in(raw: bytes) -> bytes | None:
    """Return the parent of a P-Chain block; None if the bytes name none."""
    with suppress(MalformedChainBytes):
        return read_parent_id(raw)
    return None


def is_range_too_large(error: NodeUnavailable) -> bool:
    """Return whether a node failed in a way in which gateways refuse a large range."""
    return any(attempt.failure in _TOO_LARGE_FAILURES for attempt in error.attempts)
