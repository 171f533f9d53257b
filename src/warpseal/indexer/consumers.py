"""The consumers of the primary chains: how each one begins and continues.

Blocks are written in the worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, TypeVar

from warpseal.chains.ids import TxID
from warpseal.follow.blocks import RawBlock
from warpseal.follow.chain_follower import ChainConsumer
from warpseal.follow.sources import BlockSource
from warpseal.index.checkpoint import Checkpoint
from warpseal.indexer.processors import CChainProcessor, PChainProcessor, XChainProcessor
from warpseal.indexer.worker import Worker
from warpseal.node.blocks import MAX_CONTAINERS, ContainersClient, Stream, XChainClient
from warpseal.node.containers import CChainBlock
from warpseal.resources.chains import PrimaryChain
from warpseal.runtime.retry import Retrier
from warpseal.upstream.limits import CallOrigin

log = logging.getLogger(__name__)

T = TypeVar("T")

_MAX_TX_FETCHES: Final = 8


class PrimaryConsumer(ChainConsumer[T]):
    """A primary chain.

    processor: class of the chain's processor in the worker.
    """

    chain: PrimaryChain
    processor: type[Any]
    log = log

    def __init__(self, source: BlockSource[T], worker: Worker, retrier: Retrier) -> None:
        super().__init__(source, retrier)
        self.name = self.chain.value
        self._worker = worker

    async def resume(self) -> int | None:
        checkpoint: Checkpoint | None = await self._worker.run(self.chain, self.processor.resume)
        return None if checkpoint is None else checkpoint.height

    async def _find_first(self, min_height: int, tip: int) -> int:
        return await self._retrier.call(partial(self.source.find_first, min_height, tip))


class PChainConsumer(PrimaryConsumer[RawBlock]):
    """The P-Chain."""

    chain = PrimaryChain.P
    processor = PChainProcessor

    async def begin(self, min_height: int, tip: int) -> int:
        """Begin with the genesis, or at a block that does not decide about its parent."""
        min_height = max(min_height, await self._worker.run(self.chain, PChainProcessor.min_height))
        first = await self._find_first(min_height, tip)
        while True:
            (block,) = await self.source.read(first, 1)
            if await self._worker.run(self.chain, PChainProcessor.begin, block, first):
                return first + 1
            # The parent if there is one, else the child: neither is a decision.
            has_parent = await self._retrier.call(partial(self.source.has, first - 1))
            first = first - 1 if has_parent else first + 1

    async def write(self, first_height: int, blocks: Sequence[RawBlock]) -> None:
        await self._worker.run(self.chain, PChainProcessor.write, first_height, blocks)


class XChainConsumer(PrimaryConsumer[RawBlock]):
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
        """Begin with the genesis and earlier transactions that the index API has."""
        first_block = await self._find_first(min_height, tip)
        if first_block:
            await self._worker.run(self.chain, XChainProcessor.begin_late)
            return first_block
        await self._worker.run(self.chain, XChainProcessor.begin)
        while True:
            first = max(
                0, await self._worker.run(self.chain, XChainProcessor.pre_linearization_count)
            )
            read = partial(self._containers.range, Stream.X_TXS, first, MAX_CONTAINERS // 4)
            containers = await self._retrier.call(read)
            if not containers:
                return first_block
            unknown = await self._worker.run(
                self.chain, XChainProcessor.prepare_pre_linearization, containers
            )
            fetched = await self._fetch_txs(unknown)
            await self._worker.run(
                self.chain, XChainProcessor.write_pre_linearization, containers, fetched
            )

    async def write(self, first_height: int, blocks: Sequence[RawBlock]) -> None:
        """Fetch the transactions of unknown outputs that the next blocks spend, and write these."""
        unknown = await self._worker.run(self.chain, XChainProcessor.prepare, first_height, blocks)
        await self._worker.run(self.chain, XChainProcessor.write, await self._fetch_txs(unknown))

    async def _fetch_txs(self, tx_ids: Sequence[TxID]) -> tuple[bytes, ...]:
        """Return the bytes of the transactions that a node has."""
        limit = asyncio.Semaphore(_MAX_TX_FETCHES)

        async def fetch(tx_id: TxID) -> bytes | None:
            async with limit:
                return await self._retrier.call(
                    partial(self._client.transaction, tx_id, CallOrigin.FOLLOWER)
                )

        async with asyncio.TaskGroup() as tasks:
            fetches = [tasks.create_task(fetch(tx_id)) for tx_id in tx_ids]
        return tuple(raw for task in fetches if (raw := task.result()) is not None)


class CChainConsumer(PrimaryConsumer[CChainBlock]):
    """The C-Chain, from the first block that a node has: many nodes do not keep the oldest ones."""

    chain = PrimaryChain.C
    processor = CChainProcessor

    async def write(self, first_height: int, blocks: Sequence[CChainBlock]) -> None:
        await self._worker.run(self.chain, CChainProcessor.write, blocks)
