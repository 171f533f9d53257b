"""Each chain's way of beginning and going on: reads come from the event loop, all else runs at the desk."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

from warpseal.chains.ids import TxID
from warpseal.history.chains import PrimaryChain
from warpseal.index.checkpoint import Checkpoint
from warpseal.indexer.block_sources import BlockSource, CChainSource, LinearSource, find_first_available
from warpseal.indexer.c_processor import CChainProcessor
from warpseal.indexer.p_processor import PChainProcessor
from warpseal.indexer.proposervm_blocks import RawBlock
from warpseal.indexer.worker import Desk
from warpseal.indexer.x_processor import XChainProcessor
from warpseal.node.containers import MAX_CONTAINERS, ContainersClient, Stream
from warpseal.node.evm import EvmBlock
from warpseal.node.limits import CallOrigin
from warpseal.node.x_chain import XChainClient
from warpseal.runtime.locks import AsyncSemaphore
from warpseal.runtime.retry import Retrier

T = TypeVar("T")

_FETCHED_AT_ONCE: Final = 8


class ChainSync(Protocol[T]):
    """One chain, and where its blocks come from."""

    @property
    def chain(self) -> PrimaryChain:
        """Which."""
        ...

    @property
    def source(self) -> BlockSource[T]:
        """Where its blocks come from."""
        ...

    async def resume(self) -> Checkpoint | None:
        """Go back to what is written; None: nothing is. Raises Stopped, StoreDown."""
        ...

    async def begin(self, wanted: int, tip: int) -> int:
        """Begin at height `wanted`, or at the lowest above it that a node has; return the next height to write."""
        ...

    async def write(self, first_height: int, blocks: Sequence[T]) -> None:
        """Write the next blocks. Raises Stopped, StoreDown."""
        ...


class PChainSync:
    """The P-Chain."""

    chain = PrimaryChain.P

    def __init__(self, source: BlockSource[RawBlock], desk: Desk, retrier: Retrier) -> None:
        self.source = source
        self._desk = desk
        self._retrier = retrier

    async def resume(self) -> Checkpoint | None:
        """Go back to what is written."""
        return await self._desk.run(self.chain, PChainProcessor.resume)

    async def begin(self, wanted: int, tip: int) -> int:
        """Begin with the genesis, or at a block that does not decide about the one before it."""
        wanted = max(wanted, await self._desk.run(self.chain, PChainProcessor.least_height))
        first = await self._retrier.call(lambda: find_first_available(self.source, wanted, tip))
        while True:
            (block,) = await self.source.read(first, 1)
            if await self._desk.run(self.chain, PChainProcessor.begin, block, first):
                return first + 1
            # Its parent where there is one, else its child: neither is a decision.
            has_parent = await self._retrier.call(partial(self.source.has, first - 1))
            first = first - 1 if has_parent else first + 1

    async def write(self, first_height: int, blocks: Sequence[RawBlock]) -> None:
        """Write the next blocks."""
        await self._desk.run(self.chain, PChainProcessor.write, first_height, blocks)


class XChainSync:
    """The X-Chain."""

    chain = PrimaryChain.X

    def __init__(
        self,
        source: LinearSource,
        clients: tuple[XChainClient, ContainersClient],
        desk: Desk,
        retrier: Retrier,
    ) -> None:
        self.source = source
        self._client, self._containers = clients
        self._desk = desk
        self._retrier = retrier
        self._past_count = 0

    async def resume(self) -> Checkpoint | None:
        """Go back to what is written."""
        return await self._desk.run(self.chain, XChainProcessor.resume)

    async def begin(self, wanted: int, tip: int) -> int:
        """Begin with the genesis and what the index API has of the time before the first block."""
        first = await self._retrier.call(lambda: find_first_available(self.source, wanted, tip))
        if first == 0:
            await self._desk.run(self.chain, XChainProcessor.begin)
            await self._read_past()
        else:
            await self._desk.run(self.chain, XChainProcessor.begin_late)
        return first

    async def write(self, first_height: int, blocks: Sequence[RawBlock]) -> None:
        """Write the next blocks; outputs that they spend and nobody knows are fetched first."""
        unknown = await self._desk.run(self.chain, XChainProcessor.prepare, first_height, blocks)
        await self._desk.run(self.chain, XChainProcessor.write, await self._fetch(unknown))

    async def _read_past(self) -> None:
        while True:
            first = max(0, await self._desk.run(self.chain, XChainProcessor.past_count))
            read = partial(self._containers.range, Stream.X_TXS, first, MAX_CONTAINERS // 4)
            containers = await self._retrier.call(read)
            if not containers:
                return
            unknown = await self._desk.run(self.chain, XChainProcessor.prepare_past, containers)
            await self._desk.run(self.chain, XChainProcessor.write_past, containers, await self._fetch(unknown))

    async def _fetch(self, tx_ids: Sequence[TxID]) -> tuple[bytes, ...]:
        """Return the bytes of those of the transactions that a node has."""
        limit = AsyncSemaphore(_FETCHED_AT_ONCE)

        async def fetch(tx_id: TxID) -> bytes | None:
            async with limit:
                return await self._retrier.call(partial(self._client.transaction, tx_id, CallOrigin.FOLLOWER))

        async with asyncio.TaskGroup() as tasks:
            fetching = [tasks.create_task(fetch(tx_id)) for tx_id in tx_ids]
        return tuple(raw for task in fetching if (raw := task.result()) is not None)


class CChainSync:
    """The C-Chain."""

    chain = PrimaryChain.C

    def __init__(self, source: CChainSource, desk: Desk, retrier: Retrier) -> None:
        self.source = source
        self._desk = desk
        self._retrier = retrier

    async def resume(self) -> Checkpoint | None:
        """Go back to what is written."""
        return await self._desk.run(self.chain, CChainProcessor.resume)

    async def begin(self, wanted: int, tip: int) -> int:
        """Begin at the first block that a node has: many of them do not keep the oldest."""
        return await self._retrier.call(lambda: find_first_available(self.source, wanted, tip))

    async def write(self, first_height: int, blocks: Sequence[EvmBlock]) -> None:
        """Write the next blocks."""
        await self._desk.run(self.chain, CChainProcessor.write, blocks)
