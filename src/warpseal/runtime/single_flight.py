"""Single flight: work that several callers request at once runs once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from msgspec import Struct

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Flight(Struct, Generic[V], eq=False):
    task: asyncio.Task[V]
    waiters: int = 0


class SingleFlight(Generic[K, V]):
    """A task per key, shared by its callers.

    The task belongs to no caller's task group, so that the cancellation of a caller does not end it
    for the others. Its context is that of the first caller.

    outlives_callers: the task goes on after the last caller has left; otherwise it is cancelled.
    """

    __slots__ = ("_flights", "_outlives_callers")

    def __init__(self, *, outlives_callers: bool = False) -> None:
        self._flights: dict[K, _Flight[V]] = {}
        self._outlives_callers = outlives_callers

    @property
    def in_flight(self) -> int:
        """The number of keys whose work is running."""
        return len(self._flights)

    async def run(self, key: K, factory: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """Return the result of the running work for `key`, or start it with `factory()`.

        An exception goes to every caller. A result is not kept: the next call starts the work
        again.
        """
        flight = self._join(key, factory)
        flight.waiters += 1
        try:
            await asyncio.wait((flight.task,))
        finally:
            flight.waiters -= 1
            if not flight.waiters and not self._outlives_callers:
                self._remove(key, flight)
                flight.task.cancel()
        return flight.task.result()

    def _join(self, key: K, factory: Callable[[], Coroutine[Any, Any, V]]) -> _Flight[V]:
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight(asyncio.create_task(factory()))
            flight.task.add_done_callback(lambda task: self._finish(key, flight, task))
        return flight

    def _finish(self, key: K, flight: _Flight[V], task: asyncio.Task[V]) -> None:
        self._remove(key, flight)
        if not task.cancelled():
            # Marks the exception as retrieved: all callers may have left in the tick in which it
            # was raised.
            task.exception()

    def _remove(self, key: K, flight: _Flight[V]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
