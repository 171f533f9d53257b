"""Waits for nodes and a store that do not answer, as long as it takes, and tells for which of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import TypeVar

from warpseal.errors import NodeUnavailable
from warpseal.runtime.backoff import Backoff
from warpseal.store.errors import StoreDown

T = TypeVar("T")


class Patience:
    """Repeats calls with growing delays until they are answered."""

    def __init__(self, retry: Backoff, random: Random) -> None:
        self._retry = retry
        self._random = random
        self._waiting: Counter[str] = Counter()

    @property
    def waiting_for(self) -> str | None:
        """Whom calls wait for right now: "store" or "nodes"; None while everything answers."""
        return next((name for name in ("store", "nodes") if self._waiting[name]), None)

    async def nodes(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return what `ask` returns once it does not raise NodeUnavailable."""
        try:
            return await ask()
        except NodeUnavailable:
            pass
        return await self._repeat("nodes", ask, NodeUnavailable)

    async def store(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return what `ask` returns once it does not raise StoreDown."""
        try:
            return await ask()
        except StoreDown:
            pass
        return await self._repeat("store", ask, StoreDown)

    async def _repeat(self, name: str, ask: Callable[[], Awaitable[T]], failure: type[Exception]) -> T:
        """Ask again, and say so, until it works; it has failed once already."""
        delay_s = 0.0
        self._waiting[name] += 1
        try:
            while True:
                delay_s = self._retry.next_delay(delay_s, self._random)
                await asyncio.sleep(delay_s)
                with suppress(failure):
                    return await ask()
        finally:
            self._waiting[name] -= 1
