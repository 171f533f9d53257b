"""Counts the transactions before the first indexed block, behind all other calls of the chain."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from warpseal.index.evm.writer import EvmIndexWriter
from warpseal.indexer.evm.chain import EvmChainContext, wait_for
from warpseal.upstream.errors import CallFailure, NodeUnavailable
from warpseal.upstream.json_values import decode_number
from warpseal.upstream.jsonrpc import MALFORMED, rpc_call

COUNT: Final = "eth_getBlockTransactionCountByNumber"
_BLOCKS_PER_WRITE: Final = 10_000
_RETRY_S: Final = 60.0


class EarlierTransactions:
    """Counts while the chain is caught up; a block counts once a node has it."""

    def __init__(self, chain: EvmChainContext) -> None:
        self._chain = chain
        self._blocks_written = chain.subscribe()

    async def run(self) -> None:
        """Count until every block before the first indexed one is counted."""
        while self._chain.first_height is None:
            self._blocks_written.clear()
            await self._blocks_written.wait()
        up_to, _ = await self._chain.write(lambda writer: writer.earlier_txs.read())
        while up_to < self._chain.first_height:
            if not self._chain.is_caught_up:
                self._blocks_written.clear()
                await wait_for(self._blocks_written, _RETRY_S)
                continue
            end = min(up_to + _BLOCKS_PER_WRITE, self._chain.first_height)
            counts = await self._count(up_to, end)
            if counts:
                up_to += len(counts)
                await self._chain.write(_add, up_to, sum(counts))
            else:
                await asyncio.sleep(_RETRY_S)

    async def _count(self, first: int, end: int) -> list[int]:
        """Return the numbers of transactions of blocks from `first` on, up to the first missing."""
        try:
            nodes = await self._chain.nodes.require_candidates()
        except NodeUnavailable:
            return []
        for node in nodes:
            end = min(end, first + node.batch_size(COUNT))
            try:
                calls = [rpc_call(COUNT, hex(height)) for height in range(first, end)]
                responses = await node.call_batch(calls, is_background=True)
            except CallFailure:
                continue
            counts: list[int] = []
            with suppress(*MALFORMED):
                # The first block that a node lacks ends its counts.
                for response in responses:
                    counts.append(decode_number(response.result or b""))
            if counts:
                return counts
        return []


def _add(writer: EvmIndexWriter, up_to: int, count: int) -> None:
    writer.earlier_txs.add(up_to, count)
