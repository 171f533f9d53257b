"""Values kept for a while: bounded, the least recently used go first, each with its own end."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Kept(Generic[V]):
    """A value that is known, which may be None."""

    value: V
    until: float


class RecentCache(Generic[K, V]):
    """At most `max_entries` values. Times are seconds of one clock, the event loop's unless given."""

    def __init__(self, max_entries: int, now: Callable[[], float] | None = None) -> None:
        self._max_entries = max_entries
        self._now = now or (lambda: asyncio.get_running_loop().time())
        self._entries: OrderedDict[K, Kept[V]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> Kept[V] | None:
        """Return what is kept under `key`, or None when nothing is or its time is over."""
        kept = self._entries.get(key)
        if kept is None:
            return None
        if self._now() >= kept.until:
            del self._entries[key]
            return None
        self._entries.move_to_end(key)
        return kept

    def put(self, key: K, value: V, keep_s: float = float("inf")) -> None:
        """Keep a value for `keep_s` seconds."""
        self._entries[key] = Kept(value, self._now() + keep_s)
        self._entries.move_to_end(key)
        while len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)
