"""Memory that several caches share: each says what it takes, and they give up their oldest in turn. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Lookups:
    """How often a cache had what was looked for."""

    hits: int = 0
    misses: int = 0


class ByteBudget:
    """Keeps the sum of what was taken at `limit_bytes` or less, as long as anybody can give something up."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._evictions: list[Callable[[], bool]] = []

    @property
    def used_bytes(self) -> int:
        """What is taken now."""
        return self._used_bytes

    def attach(self, evict: Callable[[], bool]) -> None:
        """Add a cache; those attached first give up first. evict: drops the oldest entry, False: nothing left."""
        self._evictions.append(evict)

    def take(self, count: int) -> None:
        """Take bytes, or give them back (negative); entries are evicted until the sum fits."""
        self._used_bytes += count
        while self._used_bytes > self._limit_bytes and any(evict() for evict in self._evictions):
            pass
