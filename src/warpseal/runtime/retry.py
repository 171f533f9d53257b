"""Repeat what fails for now: delays that grow from attempt to attempt, and calls that are repeated until they work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from random import Random, SystemRandom
from typing import TypeVar

from warpseal.runtime.backoff import Backoff

T = TypeVar("T")


class RetryDelays:
    """The delays between the attempts of one job, in seconds."""

    def __init__(self, backoff: Backoff, random: Random | None = None) -> None:
        self._backoff = backoff
        self._random = random or SystemRandom()
        self._previous_s = 0.0

    def next(self) -> float:
        """Return the delay before the next attempt."""
        self._previous_s = self._backoff.next_delay(self._previous_s, self._random)
        return self._previous_s

    def reset(self) -> None:
        """Begin with the first delay again, because an attempt succeeded."""
        self._previous_s = 0.0


class Retrier:
    """Repeats calls that raise one of some errors until they succeed, and reports which dependency blocks them.

    failures: what a call waits for, by the error that it raises meanwhile, such as {NodeUnavailable: "nodes"};
    any other error passes through. on_failure: called with each such error and the seconds until the next attempt.
    """

    def __init__(
        self,
        backoff: Backoff,
        failures: Mapping[type[Exception], str],
        on_failure: Callable[[Exception, float], None] | None = None,
        random: Random | None = None,
    ) -> None:
        self._backoff = backoff
        self._failures = dict(failures)
        self._errors = tuple(self._failures)
        self._on_failure = on_failure
        self._random = random or SystemRandom()
        self._blocked: dict[RetryDelays, str] = {}

    @property
    def blocked_on(self) -> str | None:
        """What calls wait for right now, the first of `failures` if they wait for several; None if none waits."""
        names = set(self._blocked.values())
        return next((name for name in self._failures.values() if name in names), None)

    async def call(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return what `attempt` returns, repeated after growing delays while it raises one of the errors."""
        delays = RetryDelays(self._backoff, self._random)
        try:
            while True:
                try:
                    return await attempt()
                except self._errors as error:
                    delay_s = delays.next()
                    self._blocked[delays] = self._dependency(error)
                    if self._on_failure is not None:
                        self._on_failure(error, delay_s)
                await asyncio.sleep(delay_s)
        finally:
            self._blocked.pop(delays, None)

    def _dependency(self, error: Exception) -> str:
        return next(name for kind, name in self._failures.items() if isinstance(error, kind))
