"""Waiting in tests: for a condition that has no event, for work that must not wait, and for time
that need not pass.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

T = TypeVar("T")

TIMEOUT_S: Final = 60.0
"""More than any machine needs; a test that reaches it fails."""
_INTERVAL_S: Final = 0.005
_LONGEST_INTERVAL_S: Final = 0.1


async def until(
    condition: Callable[[], object | Awaitable[object]], timeout_s: float = TIMEOUT_S
) -> None:
    """Wait until the condition, a function or a coroutine function, returns a true value.

    Raises TimeoutError.

    Many conditions are HTTP requests, so the intervals become longer: up to a tenth of the time
    waited so far.
    """
    clock = asyncio.get_running_loop().time
    started_s = clock()
    async with asyncio.timeout(timeout_s):
        while True:
            holds = condition()
            if inspect.isawaitable(holds):
                holds = await holds
            if holds:
                return
            waited_s = clock() - started_s
            await asyncio.sleep(min(max(_INTERVAL_S, waited_s / 10), _LONGEST_INTERVAL_S))


async def finish(work: Awaitable[T], timeout_s: float = TIMEOUT_S) -> T:
    """Return the result of work that must not wait for a longer timeout, which the test sets far
    beyond `timeout_s`.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await work
    except TimeoutError:
        raise AssertionError(f"not finished after {timeout_s:g} s") from None


@dataclass
class StoppedClock:
    """The time of the running loop, in seconds."""

    now_s: float

    def advance(self, seconds: float) -> None:
        """Let time pass; timers that are due by then fire next."""
        self.now_s += seconds


@contextmanager
def stopped_clock() -> Iterator[StoppedClock]:
    """Stop the clock of the running loop: only the test lets time pass. Sockets work."""
    loop = asyncio.get_running_loop()
    clock = StoppedClock(loop.time())
    loop.time = lambda: clock.now_s  # type: ignore[method-assign]
    try:
        yield clock
    finally:
        del loop.time
