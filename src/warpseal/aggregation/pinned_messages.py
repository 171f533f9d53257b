"""Pinned messages: the archive never evicts them, nor their shares and signatures."""

from __future__ import annotations

from typing import Final

from cachetools import LRUCache

from warpseal.aggregation.interfaces import ShareArchive
from warpseal.aggregation.resolve import ResolvedRequest
from warpseal.aggregation.result_cache import SignedResult
from warpseal.aggregation.verification import stored_signature
from warpseal.bls import SHARE_BYTES
from warpseal.warp.ids import MessageID
from warpseal.warp.message import UnsignedMessage

_MAX_PINNED: Final = 16_384


class PinnedMessages:
    """Pins messages in the archive, and ensures that their results are stored there.

    It remembers what it has done lately, so that a repeated request costs no write.
    """

    def __init__(self, archive: ShareArchive) -> None:
        self._archive = archive
        # Message ids, and message ids followed by the signature of a stored result.
        self._keys: LRUCache[bytes, bool] = LRUCache(_MAX_PINNED)

    def __contains__(self, message_id: MessageID) -> bool:
        return message_id in self._keys

    def pin(self, message: UnsignedMessage) -> None:
        """Never evict a message from the archive."""
        if self._remember(message.id):
            self._archive.pin(message)

    async def ensure_stored(
        self, request: ResolvedRequest, result: SignedResult, *, is_new: bool
    ) -> None:
        """Return when a result is committed.

        is_new: whether the result was committed after its message was pinned; the archive may have
            evicted an older one.
        """
        signature_bytes = result.signed_message[-SHARE_BYTES:]
        if self._remember(request.message.id + signature_bytes) and not is_new:
            signature = stored_signature(result, request.message, request.validators)
            await self._archive.store_signature(request.message, signature, request.subnet_id)

    def _remember(self, key: bytes) -> bool:
        """Mark a key as used lately; return whether it is new."""
        is_new = key not in self._keys
        self._keys[key] = True
        return is_new
