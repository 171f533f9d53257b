"""Values that are kept for a limited time, each for its own; the least recently used go first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from cachetools import TLRUCache
from msgspec import Struct

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def loop_time() -> float:
    """Return the time of the running event loop, seconds."""
    return asyncio.get_running_loop().time()


class CachedValue(Struct, Generic[V], frozen=True):
    """A value in the cache; the value itself may be None."""

    value: V
    ttl_s: float


class TtlCache(Generic[K, V]):
    """At most `max_entries` values.

    `get` of cachetools looks at its clock twice, and raises KeyError for an entry that expires in
    between.
    now: returns seconds of a clock; None: that of the event loop.
    """

    def __init__(self, max_entries: int, now: Callable[[], float] | None = None) -> None:
        self._entries: TLRUCache[K, CachedValue[V]] = TLRUCache(
            max_entries, _expiry, now or loop_time
        )

    def get(self, key: K) -> CachedValue[V] | None:
        """Return the value of a key; None without a value, or after its time."""
        try:
            return self._entries[key]
        except KeyError:
            return None

    def put(self, key: K, value: V, ttl_s: float = float("inf")) -> None:
        """Keep a value for `ttl_s` seconds."""
        self._entries[key] = CachedValue(value, ttl_s)


def _expiry(key: Hashable, entry: CachedValue[V], now: float) -> float:
    return now + entry.ttl_s
