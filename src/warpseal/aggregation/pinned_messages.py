"""Pinned messages, which the archive never evicts, and the audit of their stored shares.

The share audit verifies stored shares of pinned messages one at a time while no aggregation verifies.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import thread_time
from typing import Final

from cachetools import LRUCache

from warpseal.aggregation.ports import ShareArchive
from warpseal.aggregation.result_cache import SignedResult
from warpseal.aggregation.share_cache import ShareCache
from warpseal.aggregation.verification import CryptoPool, stored_signature
from warpseal.bls import SHARE_BYTES, MalformedKey, parse_public_key, verify
from warpseal.store.values import StoredShare
from warpseal.warp.ids import MessageID, id_text
from warpseal.warp.message import UnsignedMessage
from warpseal.warp.validator_set import CanonicalValidatorSet

log = logging.getLogger(__name__)

_MAX_PINNED: Final = 16_384
_AUDIT_BATCH: Final = 64
# After a share that took a millisecond the audit pauses for nineteen: a twentieth of a core.
_PAUSE_PER_WORK: Final = 19
_AUDIT_PAUSE_S: Final = 1.0
_AUDIT_POLL_S: Final = 60.0


class PinnedMessages:
    """Messages, and signatures of them, that are known to be stored and never evicted; the least recently used
    are pinned again."""

    def __init__(self, archive: ShareArchive) -> None:
        self._archive = archive
        self._names: LRUCache[bytes, bool] = LRUCache(_MAX_PINNED)

    def __contains__(self, message_id: MessageID) -> bool:
        return message_id in self._names

    def pin(self, message: UnsignedMessage) -> None:
        """Never evict a message from the archive."""
        if self._add(message.id):
            self._archive.pin(message)

    async def ensure_stored(
        self, message: UnsignedMessage, result: SignedResult, validators: CanonicalValidatorSet
    ) -> None:
        """Return when a cached result is committed: the archive may have evicted it before the message was pinned."""
        if self._add(_name(message.id, result)):
            await self._archive.store_signature(message, stored_signature(result, validators))

    def mark_stored(self, message: UnsignedMessage, result: SignedResult) -> None:
        """Take that a result was committed after its message was pinned."""
        self._add(_name(message.id, result))

    def _add(self, name: bytes) -> bool:
        is_new = self._names.get(name) is None
        self._names[name] = True
        return is_new


class ShareAuditor:
    """Verifies stored shares of pinned messages; marks the right ones and deletes the bad ones.

    clock: CPU seconds of the thread that calls it.
    """

    def __init__(
        self, archive: ShareArchive, shares: ShareCache, pool: CryptoPool, *, clock: Callable[[], float] = thread_time
    ) -> None:
        self._archive = archive
        self._shares = shares
        self._pool = pool
        self._clock = clock
        self._has_new = asyncio.Event()
        self._audited: set[tuple[MessageID, bytes, bytes]] = set()

    def notify(self) -> None:
        """Look for new shares in a moment; without a call they are found within a minute."""
        self._has_new.set()

    async def run(self) -> None:
        """Verify until cancelled."""
        while True:
            while await self._audit_batch():
                pass
            try:
                async with asyncio.timeout(_AUDIT_POLL_S):
                    await self._has_new.wait()
            except TimeoutError:
                pass
            self._has_new.clear()
            # New shares are committed in a moment.
            await asyncio.sleep(_AUDIT_PAUSE_S)

    async def _audit_batch(self) -> bool:
        """Verify some shares; return whether there were any."""
        batch = await self._archive.unverified(_AUDIT_BATCH)
        found = {
            (message.id, share.public_key, share.signature): (message, share)
            for message, shares in batch
            for share in shares
        }
        # The outcome is committed a little later, so a share may be returned twice.
        self._audited &= found.keys()
        new = [key for key in found if key not in self._audited]
        for key in new:
            self._audited.add(key)
            await self._audit(*found[key])
        if found and not new:
            await asyncio.sleep(_AUDIT_PAUSE_S)
        return bool(found)

    async def _audit(self, message: UnsignedMessage, share: StoredShare) -> None:
        is_right, took_s = await self._pool.run_low_priority(lambda: self._timed(message, share))
        cached = self._shares.find(message.id, share.public_key)
        if cached is not None and cached.raw != share.signature:
            cached = None
        if is_right:
            self._archive.mark_verified(message.id, share.public_key, share.signature)
            if cached is not None:
                cached.is_verified = True
        else:
            self._archive.reject_share(message.id, share.public_key, share.signature)
            if cached is not None:
                self._shares.reject(message.id, share.public_key, cached)
            fields = {"message_id": id_text(message.id), "public_key": share.public_key.hex()}
            log.warning("deleted a bad stored share", extra=fields)
        await asyncio.sleep(took_s * _PAUSE_PER_WORK)

    def _timed(self, message: UnsignedMessage, share: StoredShare) -> tuple[bool, float]:
        started_s = self._clock()
        try:
            is_right = verify(parse_public_key(share.public_key), message.raw, share.signature)
        except MalformedKey:
            is_right = False
        return is_right, self._clock() - started_s


def _name(message_id: MessageID, result: SignedResult) -> bytes:
    return message_id + result.signed_message[-SHARE_BYTES:]
