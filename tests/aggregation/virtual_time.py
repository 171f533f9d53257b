"""An event loop whose clock jumps to the next timer, so that seconds of waiting take no time and
every run is equal.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Never waits, but adds up how long it should have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if not ready:
            if timeout is None:
                raise AssertionError("every task waits for ever")
            self.waited_s += max(0.0, timeout)
        return ready


class ClockworkLoop(asyncio.SelectorEventLoop):
    """Time passes only while nothing else is to be done."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return 1_000.0 + self._jumping.waited_s


class InlineExecutor(Executor):
    """Does the work at once, where it is asked for."""

    def submit(self, work: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(work(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


def run(main: Coroutine[Any, Any, T]) -> T:
    """Return what `main` returns, run on a clockwork loop."""
    with asyncio.Runner(loop_factory=ClockworkLoop) as runner:
        return runner.run(main)


def now() -> float:
    """Return the loop's time."""
    return asyncio.get_running_loop().time()
