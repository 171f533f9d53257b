"""Messages, with their shares and signatures.

Only `find_message` raises an error while the store is down.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from warpseal.store import archive_rows
from warpseal.store.database import Database
from warpseal.store.errors import StoreDown
from warpseal.store.values import ArchiveEntry, StoredShare, StoredSignature
from warpseal.store.write_queue import AddShares, AddSignature, JudgeShare
from warpseal.warp.ids import MessageID, SubnetID
from warpseal.warp.message import UnsignedMessage

log = logging.getLogger(__name__)

# A message in use is marked as used no more often than this.
_USE_INTERVAL_S: Final = 60.0


class Archive:
    """The stored messages, used from the event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queue = database.queue

    def may_hold(self, message_id: MessageID) -> bool:
        """Return whether the store may have rows of a message."""
        return self._database.may_hold(message_id)

    async def load(self, message_id: MessageID) -> ArchiveEntry:
        """Return the stored shares and signatures of a message.

        While the store is down or slow the entry is incomplete.
        """
        if not self.may_hold(message_id):
            return ArchiveEntry()
        if not self._database.is_up:
            return ArchiveEntry(is_incomplete=True)
        try:
            entry, used_at = await self._database.read(
                lambda connection: archive_rows.load_message(connection, message_id),
                self._database.settings.load_timeout_s,
            )
        except StoreDown as error:
            log.debug("cannot load a message", extra={"reason": error.reason})
            return ArchiveEntry(is_incomplete=True)
        if used_at is not None and time.time() - used_at > _USE_INTERVAL_S:
            self._queue.mark_used(message_id)
        return entry

    async def find_signed(self, message_ids: Iterable[MessageID]) -> frozenset[MessageID] | None:
        """Return the messages that have a signature of any validator set.

        None is returned while the store is down or slow.
        """
        possible = [message_id for message_id in message_ids if self.may_hold(message_id)]
        if not possible:
            return frozenset()
        with suppress(StoreDown):
            return await self._database.read(
                lambda connection: archive_rows.find_signed(connection, possible),
                self._database.settings.load_timeout_s,
            )
        return None

    async def find_message(self, message_id: MessageID) -> UnsignedMessage | None:
        """Return a stored message. Raises StoreDown."""
        if not self.may_hold(message_id):
            return None
        wait_s = self._database.settings.load_timeout_s
        rows = await self._database.records(archive_rows.LOAD_RAW, message_id, wait_s=wait_s)
        return UnsignedMessage.parse(rows[0].raw) if rows else None

    def store_shares(self, message: UnsignedMessage, shares: Iterable[StoredShare]) -> None:
        """Store shares of keys of the signing set, within half a second.

        The first share of a key stays until it is rejected; a verified share marks its equal and
        replaces a candidate.
        """
        stored_shares = tuple(shares)
        if stored_shares:
            self._database.note(message.id)
            self._queue.update_shares(AddShares(message, stored_shares))

    def reject_share(self, message_id: MessageID, public_key: bytes, signature: bytes) -> None:
        """Delete a bad share if its bytes are the stored ones; in order with `store_shares`."""
        self._queue.update_shares(JudgeShare(message_id, public_key, signature, is_valid=False))

    def mark_verified(self, message_id: MessageID, public_key: bytes, signature: bytes) -> None:
        """Mark a share as verified if its bytes are the stored ones.

        It is done in order with `store_shares`.
        """
        self._queue.update_shares(JudgeShare(message_id, public_key, signature, is_valid=True))

    def pin(self, message: UnsignedMessage) -> None:
        """Never evict the shares and signatures of a message, present and future ones."""
        self._database.note(message.id)
        self._queue.pin(message)

    def store_signature(
        self,
        message: UnsignedMessage,
        signed: StoredSignature,
        signing_subnet_id: SubnetID | None = None,
    ) -> asyncio.Future[None]:
        """Store a signature; the future waits for the commit, for a second at most.

        The writer begins before the future is awaited. While the store is down the future is done
        at once, and the signature is written later.
        """
        self._database.note(message.id)
        loop = asyncio.get_running_loop()
        commit: asyncio.Future[None] = loop.create_future()

        def end() -> None:
            if not commit.done():
                commit.set_result(None)

        def notify() -> None:
            with suppress(RuntimeError):  # The loop is closed.
                loop.call_soon_threadsafe(end)

        if self._database.is_up and not self._database.is_stuck:
            alarm = loop.call_later(self._database.settings.commit_timeout_s, end)
            commit.add_done_callback(lambda _: alarm.cancel())
        else:
            end()
        self._queue.add_signature(AddSignature(message, signed, notify, signing_subnet_id))
        return commit

    async def unverified(
        self, limit: int
    ) -> tuple[tuple[UnsignedMessage, tuple[StoredShare, ...]], ...]:
        """Return at most `limit` unverified shares of pinned messages; none while it is down."""
        with suppress(StoreDown):
            return await self._database.read(
                lambda connection: archive_rows.load_unverified(connection, limit)
            )
        return ()
