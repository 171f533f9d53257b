"""Source of the blocks of the C-Chain: batches that adapt to what nodes return."""

from __future__ import annotations

from functools import partial
from typing import Final

from warpseal.follow.sources import BlockSource, is_range_too_large
from warpseal.node.blocks import CBlocksClient
from warpseal.node.containers import CChainBlock
from warpseal.runtime.retry import Retrier
from warpseal.upstream.errors import NodeUnavailable
from warpseal.upstream.evm_blocks import BLOCK

_MAX_BATCH: Final = 100


class CChainSource(BlockSource[CChainBlock]):
    """Blocks of the C-Chain, in JSON-RPC batches."""

    def __init__(self, client: CBlocksClient, retrier: Retrier) -> None:
        super().__init__(client.tips, retrier)
        self._client = client
        self._per_call = _MAX_BATCH

    @property
    def span(self) -> int:
        return self._per_call

    async def read(self, first: int, count: int) -> tuple[CChainBlock, ...]:
        blocks: list[CChainBlock] = []
        while len(blocks) < count:
            blocks += await self._retrier.call(
                partial(self._read_batch, first + len(blocks), count - len(blocks))
            )
        return tuple(blocks)

    async def has(self, height: int) -> bool:
        return (await self._client.blocks(height, 1))[0] is not None

    def use_fallback(self) -> None:
        """Do nothing: batches are the only way to read blocks of the C-Chain."""

    async def alternatives(self, height: int) -> tuple[CChainBlock, ...]:
        return await self._client.block_of_each(height)

    async def _read_batch(self, first: int, count: int) -> list[CChainBlock]:
        """Return one batch, up to the first block that the node lacks.

        Raises NodeUnavailable.
        """
        size = min(count, self._per_call)
        try:
            batch = await self._client.blocks(first, size)
        except NodeUnavailable as error:
            if is_range_too_large(error):
                self._per_call = max(1, size // 2)
            raise
        self._per_call = min(_MAX_BATCH, self._per_call + 1 + self._per_call // 8)
        blocks: list[CChainBlock] = []
        for block in batch:
            if block is None:
                break
            blocks.append(block)
        if not blocks:
            raise NodeUnavailable(BLOCK, replies=await self._client.describe_lack(first))
        return blocks
