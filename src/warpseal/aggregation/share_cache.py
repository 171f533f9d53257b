"""Shares by message and public key: they serve every round of their message, now and later. Pure.

A share is decoded once, without a subgroup check. It is a candidate until it was verified alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

from msgspec import Struct

from warpseal.bls import Share, decode_share
from warpseal.warp.ids import MessageID

# Measured and rounded up: the decoded point, 96 raw bytes, the objects around them and the slot in
# the table.
SHARE_COST_BYTES: Final = 832
_MESSAGE_COST_BYTES: Final = 512


class CacheLookups(Struct):
    """Numbers of lookups of results, or of shares of validators."""

    hits: int = 0
    misses: int = 0


class SharedByteLimit:
    """Keeps the memory of several caches together at `limit_bytes` or less.

    More is used only if no cache can evict an entry.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.used_bytes = 0
        self._limit_bytes = limit_bytes
        self._evictions: list[Callable[[], bool]] = []

    def attach(self, evict: Callable[[], bool]) -> None:
        """Add a cache; caches that are attached first evict first.

        evict: drops the oldest entry of the cache; returns False if nothing is left.
        """
        self._evictions.append(evict)

    def add(self, count: int) -> None:
        """Count bytes as used, or as free if negative; evict entries until the sum fits."""
        self.used_bytes += count
        if count < 0:
            # Each eviction frees bytes: it must not begin the next one inside itself.
            return
        while self.used_bytes > self._limit_bytes and any(evict() for evict in self._evictions):
            pass


class CachedShare(Struct, eq=False, gc=False):
    """One share: 96 compressed bytes and the point that they encode.

    is_verified: the share was verified alone.
    """

    raw: bytes
    point: Share
    is_verified: bool = False


class ShareListener(Protocol):
    """An open round, which is notified of the shares of its message in other rounds."""

    def on_share_added(self, public_key: bytes, share: CachedShare) -> None:
        """Take a new share."""

    def on_share_rejected(self, public_key: bytes, share: CachedShare) -> None:
        """Drop a share that was found bad."""


class ShareCache:
    """Shares of at most `max_messages` messages, within the byte limit.

    The least recently used message is evicted first.
    """

    def __init__(self, max_messages: int, limit: SharedByteLimit) -> None:
        self.lookups: Final = CacheLookups()
        self._max_messages = max_messages
        self._limit = limit
        self._messages: OrderedDict[MessageID, dict[bytes, CachedShare]] = OrderedDict()
        self._listeners: dict[MessageID, list[ShareListener]] = {}
        limit.attach(self._evict_oldest)

    def __len__(self) -> int:
        return len(self._messages)

    def subscribe(self, message_id: MessageID, listener: ShareListener) -> dict[bytes, CachedShare]:
        """Notify `listener` of a message's shares from now on; return the cached shares by key."""
        self._listeners.setdefault(message_id, []).append(listener)
        shares = self._messages.get(message_id)
        if shares is None:
            return {}
        self._messages.move_to_end(message_id)
        return dict(shares)

    def unsubscribe(self, message_id: MessageID, listener: ShareListener) -> None:
        """Stop notifying `listener`."""
        listeners = self._listeners[message_id]
        listeners.remove(listener)
        if not listeners:
            del self._listeners[message_id]

    def get_or_add(
        self,
        message_id: MessageID,
        public_key: bytes,
        raw: bytes,
        sender: ShareListener | None = None,
    ) -> CachedShare:
        """Return the share that stands for a key: the cached share, else `raw` (96 bytes), decoded.

        A validator has only one signature of a message: if two differ, the first is judged first.
        Every listener but `sender` is notified of a new share. Raises bls.MalformedShare.
        """
        shares = self._messages.get(message_id)
        if shares is not None:
            cached = shares.get(public_key)
            if cached is not None:
                return cached
        share = CachedShare(raw, decode_share(raw))
        cost_bytes = SHARE_COST_BYTES
        if shares is None:
            shares = self._messages[message_id] = {}
            cost_bytes += _MESSAGE_COST_BYTES
        shares[public_key] = share
        self._limit.add(cost_bytes)
        if len(self._messages) > self._max_messages:
            self._evict_oldest()
        for listener in self._listeners.get(message_id, ()):
            if listener is not sender:
                listener.on_share_added(public_key, share)
        return share

    def find(self, message_id: MessageID, public_key: bytes) -> CachedShare | None:
        """Return the cached share of a key."""
        shares = self._messages.get(message_id)
        return None if shares is None else shares.get(public_key)

    def discard(self, message_id: MessageID, public_key: bytes, share: CachedShare) -> None:
        """Drop a share that could not be cleared of suspicion."""
        shares = self._messages.get(message_id)
        if shares is not None and shares.get(public_key) is share:
            del shares[public_key]
            self._limit.add(-SHARE_COST_BYTES)

    def reject(self, message_id: MessageID, public_key: bytes, share: CachedShare) -> None:
        """Drop a share that was found bad, and notify every round of the message."""
        self.discard(message_id, public_key, share)
        for listener in tuple(self._listeners.get(message_id, ())):
            listener.on_share_rejected(public_key, share)

    def _evict_oldest(self) -> bool:
        if not self._messages:
            return False
        _, shares = self._messages.popitem(last=False)
        self._limit.add(-_MESSAGE_COST_BYTES - SHARE_COST_BYTES * len(shares))
        return True
