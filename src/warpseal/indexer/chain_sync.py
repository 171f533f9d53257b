"""How each chain begins and continues: blocks are read on the event loop, everything else runs elsewhere.

For the primary chains it runs in the worker.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar

from warpseal.chains.ids import TxID
from warpseal.follow.blocks import RawBlock
from warpseal.follow.sources import BlockSource
from warpseal.index.checkpoint import Checkpoint
from warpseal.indexer.processors import CChainProcessor, PChainProcessor, XChainProcessor
from warpseal.indexer.worker import Worker
from warpseal.node.blocks import MAX_CONTAINERS, ContainersClient, Stream, XChainClient
from warpseal.node.containers import CChainBlock
from warpseal.resources.chains import PrimaryChain
from warpseal.runtime.locks import AsyncSemaphore
from warpseal.runtime.retry import Retrier
from warpseal.upstream.limits import CallOrigin

T = TypeVar("T")

_MAX_TX_FETCHES: Final = 8


class ChainSync(ABC, Generic[T]):
    """One chain, with the source of its blocks. name: the chain's, for its status and for log lines.

    notice: what readers of the status should know until the chain is caught up; empty: nothing.
    """

    name: str
    notice = ""

    def __init__(self, source: BlockSource[T], retrier: Retrier) -> None:
        self.source = source
        self._retrier = retrier

    @abstractmethod
    async def resume(self) -> int | None:
        """Return to the last written block and return its height; None: nothing is written.

        Raises ChainStopped, StoreDown.
        """

    async def begin(self, min_height: int, tip: int) -> int:
        """Begin at `min_height`, or at the lowest height above it that a node has; return the next height to write."""
        return await self._retrier.call(partial(self.source.find_first, min_height, tip))

    @abstractmethod
    async def write(self, first_height: int, blocks: Sequence[T]) -> None:
        """Write the next blocks. Raises ChainStopped, StoreDown."""


class PrimarySync(ChainSync[T]):
    """A primary chain. processor: its class in the worker."""

    chain: PrimaryChain
    processor: type[Any]

    def __init__(self, source: BlockSource[T], worker: Worker, retrier: Retrier) -> None:
        super().__init__(source, retrier)
        self.name = self.chain.value
        self._worker = worker

    async def resume(self) -> int | None:
        checkpoint: Checkpoint | None = await self._worker.run(self.chain, self.processor.resume)
        return None if checkpoint is None else checkpoint.height


class PChainSync(PrimarySync[RawBlock]):
    """The P-Chain."""

    chain = PrimaryChain.P
    processor = PChainProcessor

    async def begin(self, min_height: int, tip: int) -> int:
        """Begin with the genesis, or at a block that does not decide about its parent."""
        min_height = max(min_height, await self._worker.run(self.chain, PChainProcessor.min_height))
        first = await super().begin(min_height, tip)
        while True:
            (block,) = await self.source.read(first, 1)
            if await self._worker.run(self.chain, PChainProcessor.begin, block, first):
                return first + 1
            # The parent if there is one, else the child: neither is a decision.
            has_parent = await self._retrier.call(partial(self.source.has, first - 1))
            first = first - 1 if has_parent else first + 1

    async def write(self, first_height: int, blocks: Sequence[RawBlock]) -> None:
        await self._worker.run(self.chain, PChainProcessor.write, first_height, blocks)


class XChainSync(PrimarySync[RawBlock]):
    """The X-Chain."""

    chain = PrimaryChain.X
    processor = XChainProcessor

    def __init__(
        self,
        source: BlockSource[RawBlock],
        client: XChainClient,
        containers: ContainersClient,
        worker: Worker,
        retrier: Retrier,
    ) -> None:
        super().__init__(source, worker, retrier)
        self._client = client
        self._containers = containers

    async def begin(self, min_height: int, tip: int) -> int:
        """Begin with the genesis and the transactions from before the first block, as far as the index API has them."""
        first_block = await super().begin(min_height, tip)
        if first_block:
            await self._worker.run(self.chain, XChainProcessor.begin_late)
            return first_block
        await self._worker.run(self.chain, XChainProcessor.begin)
        while True:
            first = max(0, await self._worker.run(self.chain, XChainProcessor.pre_linearization_count))
            read = partial(self._containers.range, Stream.X_TXS, first, MAX_CONTAINERS // 4)
            containers = await self._retrier.call(read)
            if not containers:
                return first_block
            unknown = await self._worker.run(self.chain, XChainProcessor.prepare_pre_linearization, containers)
            fetched = await self._fetch_txs(unknown)
            await self._worker.run(self.chain, XChainProcessor.write_pre_linearization, containers, fetched)

    async def write(self, first_height: int, blocks: Sequence[RawBlock]) -> None:
        """Write the next blocks; the transactions of unknown outputs that they spend are fetched first."""
        unknown = await self._worker.run(self.chain, XChainProcessor.prepare, first_height, blocks)
        await self._worker.run(self.chain, XChainProcessor.write, await self._fetch_txs(unknown))

    async def _fetch_txs(self, tx_ids: Sequence[TxID]) -> tuple[bytes, ...]:
        """Return the bytes of the transactions that a node has."""
        limit = AsyncSemaphore(_MAX_TX_FETCHES)

        async def fetch(tx_id: TxID) -> bytes | None:
            async with limit:
                return await self._retrier.call(partial(self._client.transaction, tx_id, CallOrigin.FOLLOWER))

        async with asyncio.TaskGroup() as tasks:
            fetches = [tasks.create_task(fetch(tx_id)) for tx_id in tx_ids]
        return tuple(raw for task in fetches if (raw := task.result()) is not None)


class CChainSync(PrimarySync[CChainBlock]):
    """The C-Chain. It begins at the first block that a node has: many nodes do not keep the oldest."""

    chain = PrimaryChain.C
    processor = CChainProcessor

    async def write(self, first_height: int, blocks: Sequence[CChainBlock]) -> None:
        await self._worker.run(self.chain, CChainProcessor.write, blocks)
