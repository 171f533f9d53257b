"""Single flight: work that several callers want at once is done once, and ends when nobody wants it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(slots=True, eq=False)
class _Flight(Generic[V]):
    task: asyncio.Task[V]
    waiters: int = 0


class SingleFlight(Generic[K, V]):
    """One task per key, whoever asks for it.

    The task belongs to its waiters together, not to the task group of any of them: one waiter's cancellation
    never ends what others wait for, and the last one to leave cancels it. The context is the first caller's.
    """

    __slots__ = ("_flights",)

    def __init__(self) -> None:
        self._flights: dict[K, _Flight[V]] = {}

    @property
    def in_flight(self) -> int:
        """How many keys have work under way."""
        return len(self._flights)

    async def run(self, key: K, factory: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """Return the outcome of the work under way for `key`, or start it with `factory()`.

        An exception of the work goes to everyone who waits. A result is not kept: the next call starts anew.
        """
        flight = self._join(key, factory)
        flight.waiters += 1
        try:
            await asyncio.wait((flight.task,))
        finally:
            flight.waiters -= 1
            if not flight.waiters:
                self._forget(key, flight)
                flight.task.cancel()
        return flight.task.result()

    def _join(self, key: K, factory: Callable[[], Coroutine[Any, Any, V]]) -> _Flight[V]:
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight(asyncio.create_task(factory()))
            flight.task.add_done_callback(lambda task: self._landed(key, flight, task))
        return flight

    def _landed(self, key: K, flight: _Flight[V], task: asyncio.Task[V]) -> None:
        self._forget(key, flight)
        if not task.cancelled():
            # Marks the exception as seen: its waiters may all have left in the tick in which it was raised.
            task.exception()

    def _forget(self, key: K, flight: _Flight[V]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
