"""Delays that grow from attempt to attempt, and calls that are repeated until they succeed.

Source of truth of the delays: avalanchego `network/tracked_ip.go`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from random import Random, SystemRandom
from typing import TypeVar

from msgspec import Struct

T = TypeVar("T")


class Backoff(Struct, frozen=True):
    """The rule for the delays between attempts.

    first_s: base of the first delay.
    cap_s: bound of all delays.
    """

    first_s: float = 1.0
    cap_s: float = 60.0

    def next_delay(self, previous_s: float, random: Random) -> float:
        """Return the delay that follows `previous_s` (0 before the first): grown by uniform [1, 2).

        Above the cap it becomes cap x uniform [0.75, 1), so that callers that all reached it stay
        spread.
        """
        base_s = previous_s if previous_s > 0 else self.first_s
        delay_s = base_s * (1 + random.random())
        if delay_s > self.cap_s:
            return self.cap_s * (3 + random.random()) / 4
        return delay_s


class Pace(Struct, frozen=True):
    """How often a loop polls, and tries again after failures.

    poll_s: seconds between two polls.
    retry: delays after a call that failed.
    stopped_s: seconds before input that cannot be right is read again.
    """

    poll_s: float
    retry: Backoff
    stopped_s: float


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


class BlockedCall(Struct, frozen=True):
    """A call that is repeated.

    name: dependency that the call waits for.
    since_s: time of the first failure, in seconds of the loop's clock.
    error: error of the last attempt.
    """

    name: str
    since_s: float
    error: Exception


class Retrier:
    """Repeats calls until they succeed, and reports which dependency blocks them.

    failures: dependencies by the error of a call that waits for them, such as
        {NodeUnavailable: "nodes"}. Any other error passes through.
    on_failure: called with each of these errors and the seconds until the next attempt.
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
        self._blocked: dict[RetryDelays, BlockedCall] = {}

    @property
    def blocked_on(self) -> str | None:
        """The dependency that calls wait for, the first of `failures`; None if no call waits."""
        call = self.blocked_call
        return None if call is None else call.name

    @property
    def blocked_call(self) -> BlockedCall | None:
        """The call that waits longest for the first of `failures`; None if no call waits."""
        for name in self._failures.values():
            if calls := [call for call in self._blocked.values() if call.name == name]:
                return min(calls, key=lambda call: call.since_s)
        return None

    async def call(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `attempt`, which is repeated while it raises one of the errors."""
        delays = RetryDelays(self._backoff, self._random)
        since_s: float | None = None
        try:
            while True:
                try:
                    return await attempt()
                except self._errors as error:
                    delay_s = delays.next()
                    if since_s is None:
                        since_s = asyncio.get_running_loop().time()
                    self._blocked[delays] = BlockedCall(self._name_of(error), since_s, error)
                    if self._on_failure is not None:
                        self._on_failure(error, delay_s)
                await asyncio.sleep(delay_s)
        finally:
            self._blocked.pop(delays, None)

    def _name_of(self, error: Exception) -> str:
        return next(name for kind, name in self._failures.items() if isinstance(error, kind))
