"""What was signed: shares and signatures by message. No method ever raises because a store is broken."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from warpseal.store import archive_rows
from warpseal.store.bloom import MessageFilter
from warpseal.store.errors import StoreDown
from warpseal.store.ports import ReadSide, WriteSide
from warpseal.store.settings import StoreSettings
from warpseal.store.values import ArchiveEntry, StoredShare, StoredSignature
from warpseal.store.write_queue import AddShares, AddSignature, MarkVerified, RejectShare
from warpseal.warp.ids import MessageID
from warpseal.warp.message import UnsignedMessage

log = logging.getLogger(__name__)

# A message that is asked for again and again is marked as used no more often than this.
_USE_INTERVAL_S: Final = 60.0


class Archive:
    """Keeps and recalls; safe from the event loop. known: what is kept, where nobody else writes to the database."""

    def __init__(
        self, reads: ReadSide, writes: WriteSide, settings: StoreSettings, known: MessageFilter | None = None
    ) -> None:
        self._reads = reads
        self._writes = writes
        self._settings = settings
        self._known = known

    async def load(self, message_id: MessageID) -> ArchiveEntry:
        """Return what is kept of a message; nothing, and that it is unread, while the store is down or slow."""
        if self._known is not None and message_id not in self._known:
            return ArchiveEntry()
        if not self._writes.is_up:
            return ArchiveEntry(is_incomplete=True)
        try:
            found = await self._reads.read(
                lambda connection: archive_rows.load_message(connection, message_id), self._settings.load_timeout_s
            )
        except StoreDown as error:
            log.debug("what is kept of a message cannot be read", extra={"reason": error.reason})
            return ArchiveEntry(is_incomplete=True)
        if found.used_at is not None and time.time() - found.used_at > _USE_INTERVAL_S:
            self._writes.queue.use(message_id)
        return found.recollection

    def keep_shares(self, message: UnsignedMessage, shares: Iterable[StoredShare]) -> None:
        """Keep shares of keys of the signing set, within half a second.

        Of a key the first stands until it is rejected; a verified one marks its equal and replaces a candidate.
        """
        kept = tuple(shares)
        if kept:
            self._note(message)
            self._writes.queue.edit(AddShares(message, kept))

    def reject_share(self, message_id: MessageID, public_key: bytes, signature: bytes) -> None:
        """Delete a share that was found bad, if it is these very bytes; in order with `keep_shares`."""
        self._writes.queue.edit(RejectShare(message_id, public_key, signature))

    def mark_verified(self, message_id: MessageID, public_key: bytes, signature: bytes) -> None:
        """Note that a share was verified alone, if it is these very bytes; in order with `keep_shares`."""
        self._writes.queue.edit(MarkVerified(message_id, public_key, signature))

    def keep_for_ever(self, message: UnsignedMessage) -> None:
        """Never evict what is kept of a message, now and later."""
        self._note(message)
        self._writes.queue.keep_for_ever(message)

    async def keep_signature(self, message: UnsignedMessage, signed: StoredSignature) -> None:
        """Return when it is committed; after a second at most, at once while the store is down or does not answer.

        Whatever happens to the wait, it is written as soon as that is possible.
        """
        self._note(message)
        if not self._writes.is_up or self._writes.is_stuck or self._reads.is_stuck:
            self._writes.queue.sign(AddSignature(message, signed, _nobody_waits))
            return
        future = asyncio.get_running_loop().create_future()
        self._writes.queue.sign(AddSignature(message, signed, _resolver(future)))
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.commit_timeout_s):
                await future

    async def unverified(self, limit: int) -> tuple[tuple[UnsignedMessage, tuple[StoredShare, ...]], ...]:
        """Return candidates of messages kept for ever, at most `limit` shares; nothing while the store is down."""
        with suppress(StoreDown):
            return await self._reads.read(
                lambda connection: archive_rows.load_unverified(connection, limit), self._settings.call_timeout_s
            )
        return ()

    def _note(self, message: UnsignedMessage) -> None:
        if self._known is not None:
            self._known.add(message.id)


def _resolver(future: asyncio.Future[None]) -> Callable[[], None]:
    """Return what resolves a future from another thread, once or more often."""
    loop = future.get_loop()

    def resolve() -> None:
        if not future.done():
            future.set_result(None)

    def done() -> None:
        with suppress(RuntimeError):  # The loop was closed, and with it whoever waited.
            loop.call_soon_threadsafe(resolve)

    return done


def _nobody_waits() -> None:
    pass
