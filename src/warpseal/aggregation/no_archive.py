"""The archive of a daemon that keeps nothing."""

from __future__ import annotations

from collections.abc import Iterable

from warpseal.store.values import ArchiveEntry, StoredShare, StoredSignature
from warpseal.warp.ids import MessageID
from warpseal.warp.message import UnsignedMessage


class NoArchive:
    """Remembers nothing and never waits; see ports.Archive."""

    async def load(self, message_id: MessageID) -> ArchiveEntry:
        """Return nothing."""
        return ArchiveEntry()

    def keep_shares(self, message: UnsignedMessage, shares: Iterable[StoredShare]) -> None:
        """Do nothing."""

    def reject_share(self, message_id: MessageID, public_key: bytes, signature: bytes) -> None:
        """Do nothing."""

    async def keep_signature(self, message: UnsignedMessage, signed: StoredSignature) -> None:
        """Do nothing."""

    def keep_for_ever(self, message: UnsignedMessage) -> None:
        """Do nothing."""

    async def unverified(self, limit: int) -> tuple[tuple[UnsignedMessage, tuple[StoredShare, ...]], ...]:
        """Return nothing."""
        return ()

    def mark_verified(self, message_id: MessageID, public_key: bytes, signature: bytes) -> None:
        """Do nothing."""
