"""Repeat what fails for now: delays that grow from attempt to attempt, and calls that are repeated
until they work.

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
    """How long to wait before the next attempt.

    first_s: base of the first delay; cap_s: bound of all.
    """

    first_s: float = 1.0
    cap_s: float = 60.0

    def next_delay(self, previous_s: float, random: Random) -> float:
        """Return the delay that follows `previous_s` (0 before the first): grown by uniform [1, 2).

        Above the cap it becomes cap x uniform [0.75, 1), so that waiters who all reached it stay
        spread.
        """
        delay_s = (previous_s if previous_s > 0 else self.first_s) * (1 + random.random())
        return delay_s if delay_s <= self.cap_s else self.cap_s * (3 + random.random()) / 4


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

    name: what it waits for.
    since_s: time of its first failure, of the loop's clock.
    """

    name: str
    since_s: float
    error: Exception


class Retrier:
    """Repeats calls that raise one of some errors until they succeed, and reports which dependency
    blocks them.

    failures: what a call waits for, by the error that it raises until then, such as
        {NodeUnavailable: "nodes"}; any other error passes through.
    on_failure: called with each such error and the seconds until the next attempt.
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
        """The failure that calls wait for now, the first of `failures` if there are several; None
        if no call waits.
        """
        call = self.blocked_call
        return None if call is None else call.name

    @property
    def blocked_call(self) -> BlockedCall | None:
        """The call that waits longest, of those for the first of `failures`; None if no call waits."""
        for name in self._failures.values():
            if calls := [call for call in self._blocked.values() if call.name == name]:
                return min(calls, key=lambda call: call.since_s)
        return None

    async def call(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return what `attempt` returns, repeated after growing delays while it raises one of the
        errors.
        """
        delays = RetryDelays(self._backoff, self._random)
        since_s: float | None = None
        try:
            while True:
                try:
                    return await attempt()
                except self._errors as error:
                    delay_s = delays.next()
                    since_s = asyncio.get_running_loop().time() if since_s is None else since_s
                    name = next(
                        name for kind, name in self._failures.items() if isinstance(error, kind)
                    )
                    self._blocked[delays] = BlockedCall(name, since_s, error)
                    if self._on_failure is not None:
                        self._on_failure(error, delay_s)
                await asyncio.sleep(delay_s)
        finally:
            self._blocked.pop(delays, None)
