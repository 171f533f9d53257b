"""Copies receives of destinations into the indexes of the sources, as deliveries of the messages.

A destination writes the messages that it received with its own blocks. The joiner reads them behind
a cursor, which the source stores with the deliveries: a crash repeats a step, and loses none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, TypeVar

from warpseal.index.evm.icm_writer import IcmWriter, read_received
from warpseal.index.evm.keys import block_key
from warpseal.index.evm.records import ReceivedBatch
from warpseal.indexer.evm.chain import EvmChainContext, wait_for
from warpseal.indexer.verify import SnapshotReader
from warpseal.store.errors import StoreDown
from warpseal.warp.ids import ChainID

T = TypeVar("T")

log = logging.getLogger(__name__)

_INTERVAL_S: Final = 1.0
_POLL_S: Final = 2.0
_ROWS: Final = 20_000
# A cursor is stored this often although nothing was received: it says until when, which decides
# whether a message is stuck for five minutes.
_CURSOR_S: Final = 30.0


class _Source:
    """A chain whose messages get their deliveries.

    cursors: epoch and key by destination; None before they are read from the chain's index.
    """

    def __init__(self, context: EvmChainContext) -> None:
        self.context = context
        self.cursors: dict[ChainID, tuple[int, int]] | None = None
        # When the cursor of each destination was stored, by the clock of the event loop.
        self._stored_at: dict[ChainID, float] = {}

    def cursor(self, destination: ChainID) -> tuple[int | None, int]:
        """Return epoch and key up to which a destination was read; None and -1 if it was not."""
        return (self.cursors or {}).get(destination, (None, -1))

    def take(self, batch: ReceivedBatch, now: float) -> ReceivedBatch | None:
        """Advance the cursor behind a batch, and return the part to write; None without one."""
        cursors, destination = self.cursors, batch.destination
        assert cursors is not None
        epoch, key = self.cursor(destination)
        if epoch not in (None, batch.epoch):
            # The destination's index was made again: it is read from its start.
            cursors[destination] = batch.epoch, -1
            return None
        if batch.upto <= key:
            return None
        # A batch begins behind the lowest cursor of all sources, so that rows may be read already.
        chain_id = self.context.chain_id
        rows = [row for row in batch.rows if row.source == chain_id and row.key > key]
        cursors[destination] = batch.epoch, batch.upto
        is_due = now >= self._stored_at.get(destination, float("-inf")) + _CURSOR_S
        return batch._replace(rows=rows) if rows or is_due else None

    def note_stored(self, batches: Iterable[ReceivedBatch], now: float) -> None:
        """Remember when the cursors of destinations were stored."""
        self._stored_at.update(dict.fromkeys((batch.destination for batch in batches), now))


class IcmJoiner:
    """The joiner of all chains of an index process.

    elsewhere: readers of the indexes that another process writes.
    configured: returns all indexed chains; None if further chains may be added.
    """

    def __init__(
        self,
        elsewhere: Mapping[ChainID, Callable[[], SnapshotReader]],
        configured: Callable[[], Set[ChainID] | None],
    ) -> None:
        self._elsewhere = elsewhere
        self._configured = configured
        self._sources: dict[ChainID, _Source] = {}
        self._wake = asyncio.Event()

    @contextmanager
    def joining(self, context: EvmChainContext) -> Iterator[None]:
        """Join the messages of a chain while its index is open."""
        context.subscribe(self._wake)
        self._sources[context.chain_id] = _Source(context)
        self._wake.set()
        try:
            yield
        finally:
            del self._sources[context.chain_id]

    async def run(self) -> None:
        """Join until cancelled. A failure is tried again each second, and logged when it begins."""
        has_failed = False
        while True:
            await wait_for(self._wake, _POLL_S if self._elsewhere else None)
            self._wake.clear()
            try:
                await self.join()
                has_failed = False
            except Exception:  # An internal error must not stop the indexes.
                log.log(
                    logging.DEBUG if has_failed else logging.ERROR,
                    "joining messages failed",
                    exc_info=True,
                )
                has_failed = True
                for source in self._sources.values():
                    source.cursors = None
                self._wake.set()
            await asyncio.sleep(_INTERVAL_S)

    async def join(self) -> None:
        """Read the receives of each destination since the last time, and write their deliveries."""
        sources = [source for source in list(self._sources.values()) if await self._open(source)]
        parts: dict[ChainID, list[ReceivedBatch]] = {
            source.context.chain_id: [] for source in sources
        }
        now = asyncio.get_running_loop().time()
        for destination in {*self._sources, *self._elsewhere}:
            # One read serves all sources, from the lowest of their cursors on.
            after = min((source.cursor(destination)[1] for source in sources), default=-1)
            batch = await self._read(destination, after)
            if batch is None:
                continue
            for source in sources:
                if (part := source.take(batch, now)) is not None:
                    parts[source.context.chain_id].append(part)
            is_behind = any(source.cursor(destination)[1] < batch.upto for source in sources)
            if is_behind or len(batch.rows) >= _ROWS:
                self._wake.set()
        for source in sources:
            if batches := parts[source.context.chain_id]:
                await self._write(source, batches, now)

    async def _open(self, source: _Source) -> bool:
        """Read the cursors of a source; return whether it can be written."""
        if source.cursors is None:
            with suppress(StoreDown):
                configured = self._configured()
                if configured is not None:
                    await self._call(source, lambda writer: writer.keep_destinations(configured))
                source.cursors = dict(await self._call(source, lambda writer: writer.cursors()))
        return source.cursors is not None

    async def _read(self, destination: ChainID, after: int) -> ReceivedBatch | None:
        """Return the receives of a destination behind a key.

        Returns None if the destination has no new block, or cannot be read.
        """
        with suppress(StoreDown):
            if (own := self._sources.get(destination)) is not None:
                height = own.context.height
                if height is not None and block_key(height + 1) - 1 > after:
                    return await self._call(own, lambda writer: writer.received(after, _ROWS))
            elif destination in self._elsewhere:
                reader = self._elsewhere[destination]()
                try:
                    return await reader.read(partial(read_received, after=after, limit=_ROWS))
                finally:
                    reader.close()
        return None

    async def _write(self, source: _Source, batches: list[ReceivedBatch], now: float) -> None:
        try:
            await self._call(source, lambda writer: writer.deliver(batches))
            source.note_stored(batches, now)
        except StoreDown:
            # The cursors in memory are ahead of the index: they are read again.
            source.cursors = None
            self._wake.set()

    async def _call(self, source: _Source, method: Callable[[IcmWriter], T]) -> T:
        """Call a method of a chain's writer on the thread of the chain.

        Raises StoreDown, also if its index was closed.
        """
        if self._sources.get(source.context.chain_id) is not source:
            raise StoreDown("its index is closed")
        return await source.context.write(lambda writer: method(writer.icm))
