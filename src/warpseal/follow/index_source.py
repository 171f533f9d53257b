"""Blocks of the P-Chain from the index, so that the follower does not ask nodes for them."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from cachetools import LRUCache

from warpseal.chains.proposervm import inner_block
from warpseal.index import consistency
from warpseal.index.database import UNDECODABLE, reading_index
from warpseal.index.keys import P
from warpseal.index.raw_blocks import read_blocks
from warpseal.index.settings import IndexSettings
from warpseal.resources.chains import PrimaryChain
from warpseal.store.connection import DriverError
from warpseal.store.url import StoreUrl

HEIGHT_CHECK_INTERVAL_S: Final = 1.0
_BLOCKS_PER_READ: Final = 32
_MAX_CACHED_BLOCKS: Final = 1_024


class IndexedBlocks:
    """Blocks of the P-Chain from an index that another process writes. Used from one event loop.

    An index that does not exist yet, or cannot be read, has no blocks.
    """

    def __init__(self, url: StoreUrl, settings: IndexSettings) -> None:
        self._engine = reading_index(url, settings)
        self._cache: LRUCache[int, bytes] = LRUCache(_MAX_CACHED_BLOCKS)
        self._loading = asyncio.Lock()
        self._indexed_height: int | None = None
        self._checked_at = float("-inf")

    async def block_at(self, height: int) -> bytes | None:
        """Return the bytes of an accepted block, without the wrapping of the proposervm; None if it
        is not indexed.
        """
        async with self._loading:
            if height not in self._cache:
                try:
                    await asyncio.to_thread(self._load, height)
                except (DriverError, *UNDECODABLE):
                    self._indexed_height = None
            # The follower asks for each block once.
            raw = self._cache.pop(height, None)
        return None if raw is None else inner_block(raw)

    def close(self) -> None:
        """Close the connections to the index."""
        self._engine.dispose()

    def _load(self, height: int) -> None:
        """Read the block and some above it: chains are read upwards. Raises DriverError."""
        now = time.monotonic()
        is_indexed = self._indexed_height is not None and height <= self._indexed_height
        # A follower at the tip asks for each new block, which nodes have before the index has it.
        if not is_indexed and now - self._checked_at < HEIGHT_CHECK_INTERVAL_S:
            return
        if not is_indexed:
            self._checked_at = now
        with self._engine.connect() as connection, connection.snapshot():
            if not is_indexed:
                self._indexed_height = consistency.indexed_height(connection, PrimaryChain.P)
            if self._indexed_height is None or height > self._indexed_height:
                return
            blocks = list(read_blocks(connection, P, height, height + _BLOCKS_PER_READ - 1))
        self._cache.update(enumerate(blocks, height))
