"""The follower's blocks from the index where it has them, so that each is read from the node once.

The index is asked first; what it does not have yet, but is about to, is awaited for a moment. Everything else comes
from the node, and waits in a file until the index gets there: who follows for signing never depends on who indexes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final, Protocol

from sqlalchemy.exc import SQLAlchemyError

from warpseal.errors import StoreDown
from warpseal.index.database import reading_index
from warpseal.index.keys import P
from warpseal.index.raw_blocks import blocks_between
from warpseal.index.settings import IndexSettings
from warpseal.indexer.meeting import Meeting
from warpseal.indexer.proposervm_blocks import inner_of
from warpseal.indexer.read_ahead import ReadAhead
from warpseal.l1.follower.ports import Blocks
from warpseal.node.upgrades import Upgrades
from warpseal.runtime.locks import AsyncLock
from warpseal.store.access import snapshot
from warpseal.store.url import StoreUrl

AWAITED_S: Final = 3.0
LOOKED_UP_EVERY_S: Final = 5.0
_LOOKED_UP_WITHIN_S: Final = 1.0
_LOOK_EVERY_S: Final = 0.1
# Blocks that are about to be written: no more than this above the last one.
_NEAR: Final = 64
_AT_ONCE: Final = 32
_KEPT: Final = 1_024


class RawBlocks(Protocol):
    """The P-Chain's blocks of an index. Both raise StoreDown."""

    async def height(self) -> int | None:
        """Return the last height that is written; None: nothing is."""
        ...

    async def read(self, first: int, last: int) -> tuple[bytes, ...]:
        """Return the blocks as they came, as far as they are there."""
        ...


class IndexedBlocks:
    """The blocks in an index that another process writes."""

    def __init__(self, url: StoreUrl, settings: IndexSettings) -> None:
        self._engine = reading_index(url, settings)

    async def height(self) -> int | None:
        """Return the last height that is written; None: nothing is."""
        return await asyncio.to_thread(self._height)

    async def read(self, first: int, last: int) -> tuple[bytes, ...]:
        """Return the blocks as they came, as far as they are there."""
        return await asyncio.to_thread(self._read, first, last)

    def close(self) -> None:
        """Let go of the database."""
        self._engine.dispose()

    def _height(self) -> int | None:
        try:
            with self._engine.connect() as connection:
                text = "SELECT height FROM chains WHERE chain = 0 AND height >= first_height"
                rows = connection.exec_driver_sql(text).fetchall()
        except SQLAlchemyError as error:
            raise StoreDown(type(error).__name__) from None
        return int(rows[0][0]) if rows else None

    def _read(self, first: int, last: int) -> tuple[bytes, ...]:
        try:
            with self._engine.connect() as connection, snapshot(connection):
                return tuple(blocks_between(connection, P, first, last))
        except SQLAlchemyError as error:
            raise StoreDown(type(error).__name__) from None


class SharedBlocks:
    """Blocks for the follower: of the index, else of the node. Used from one event loop.

    ahead: where those of the node wait for the index; None: nowhere, and the index reads them once more.
    """

    def __init__(self, nodes: Blocks, indexed: RawBlocks, ahead: ReadAhead | None = None) -> None:
        self._nodes = nodes
        self._indexed = indexed
        self._ahead = ahead
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self._looking = AsyncLock()
        self._height: int | None = None
        self._looked_up_at = float("-inf")
        self._meeting = Meeting()
        self._is_late = False
        self.from_index = 0

    @property
    def at_once(self) -> int:
        """How many calls may be under way."""
        return self._nodes.at_once

    @property
    def per_s(self) -> int:
        """How many calls a second are made at most."""
        return self._nodes.per_s

    async def tip(self) -> int:
        """Return the height of the node's last accepted block."""
        if _now() - self._looked_up_at >= LOOKED_UP_EVERY_S:
            await self._look_up_soon()
        return await self._nodes.tip()

    async def block_at(self, height: int) -> bytes:
        """Return the bytes of the accepted block."""
        async with self._looking:
            found = await self._of_index(height)
            if found is None and self._ahead is not None and self._is_ahead(height):
                found = await self._read_ahead(self._ahead, height)
        if found is not None:
            return inner_of(found)
        raw = await self._nodes.block_at(height)
        if self._ahead is not None and self._is_ahead(height):
            self._ahead.keep(height, raw)
        return raw

    async def block_at_each(self, height: int) -> tuple[bytes, ...]:
        """Return the different bytes that the nodes give for it."""
        if self._ahead is not None:
            self._ahead.take_out(height)
        return await self._nodes.block_at_each(height)

    async def upgrades(self) -> Upgrades:
        """Return when upgrades activate."""
        return await self._nodes.upgrades()

    async def are_coming(self, low: int, high: int) -> bool:
        """Tell whether the index has the blocks from `low` to `high` in a moment, so that they are best left to it."""
        return await self._look_up_soon() and self._meeting.is_near(low, high, _now())

    def _is_ahead(self, height: int) -> bool:
        return self._height is None or height > self._height

    async def _read_ahead(self, ahead: ReadAhead, height: int) -> bytes | None:
        found = await ahead.read(height, -1 if self._height is None else self._height)
        return self._keep({each: block.raw for each, block in found.items()}, height)

    async def _look_up(self) -> None:
        """Learn how far the index is. Raises StoreDown."""
        self._height = await self._indexed.height()
        self._looked_up_at = _now()
        self._meeting.note(self._height, self._looked_up_at)
        if self._ahead is not None and self._height is not None:
            self._ahead.forget(self._height)

    async def _look_up_soon(self) -> bool:
        """Learn how far the index is, if that is told at once; tell whether it was."""
        self._looked_up_at = _now()
        try:
            async with asyncio.timeout(_LOOKED_UP_WITHIN_S):
                await self._look_up()
        except (StoreDown, TimeoutError):
            return False
        return True

    async def _of_index(self, height: int) -> bytes | None:
        try:
            return await self._look(height)
        except StoreDown:
            return None

    async def _look(self, height: int) -> bytes | None:
        """Return the block once it is written, if that is soon; the index that let us wait once is not awaited."""
        clock = asyncio.get_running_loop().time
        until = clock() + AWAITED_S
        while height not in self._kept:
            if self._height is None or self._height < height:
                await self._look_up()
            if self._height is None or self._height + _NEAR < height:
                return None
            if self._height >= height:
                return await self._load(height)
            if self._is_late or clock() >= until:
                self._is_late = True
                return None
            await asyncio.sleep(_LOOK_EVERY_S)
        return self._kept.pop(height)

    async def _load(self, height: int) -> bytes | None:
        """Read some blocks at once: the follower goes down from the newest, and asks for each once."""
        assert self._height is not None
        self._is_late = False
        low = max(1, height - _AT_ONCE + 1)
        blocks = await self._indexed.read(low, height)
        if low + len(blocks) - 1 != height:
            # What is not there from `low` on is not there at all: the index begins later.
            blocks = await self._indexed.read(height, height)
            low = height
        found = self._keep(dict(enumerate(blocks, low)), height)
        self.from_index += found is not None
        return found

    def _keep(self, blocks: dict[int, bytes], height: int) -> bytes | None:
        """Keep blocks until they are asked for; return the one that was."""
        self._kept |= blocks
        found = self._kept.pop(height, None)
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return found


def _now() -> float:
    return asyncio.get_running_loop().time()
