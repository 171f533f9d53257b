"""Work in the background that signing does not need; after an error it starts again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from msgspec import Struct

from warpseal.runtime.retry import Backoff, RetryDelays
from warpseal.runtime.ttl_cache import loop_time

# The work is the daemon's, and so are its lines: those of the logger `main`.
log = logging.getLogger("warpseal.daemon.background")

_BACKOFF: Final = Backoff(first_s=1.0, cap_s=60.0)
# A part that ran for so long had no error at its start.
_HEALTHY_AFTER_S: Final = 60.0
_SHOWN_S: Final = 300.0


class _Failures(Struct):
    """The errors of a part since the start.

    last_at: time of the last error, in seconds of the loop's clock.
    """

    count: int = 0
    last_at: float = float("-inf")


class BackgroundWork:
    """The parts of a process that may fail; used from one event loop.

    on_failure: called with the name of a part that failed.
    """

    def __init__(
        self, on_failure: Callable[[str], object] = lambda part: None, backoff: Backoff = _BACKOFF
    ) -> None:
        self._on_failure = on_failure
        self._backoff = backoff
        self._failures: dict[str, _Failures] = {}

    async def keep_running(
        self,
        part: str,
        run: Callable[[], Awaitable[object]],
        waits_for: tuple[type[Exception], ...] = (),
    ) -> None:
        """Run a part until it returns; after an error it starts again, with growing delays.

        part: name of the part in the log and in sentences.
        waits_for: errors from which the part recovers by a new start, and which are no failures.
        """
        delays = RetryDelays(self._backoff)
        while True:
            started_at = loop_time()
            # A task of its own: before Python 3.13 a task group that fails may leave a cancellation
            # in its task, which would look like a cancellation of this one.
            running = asyncio.ensure_future(run())
            try:
                await running
                return
            except Exception as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    # A task group that fails while it is cancelled raises its errors in place of
                    # the cancellation.
                    raise asyncio.CancelledError from error
                if loop_time() - started_at >= _HEALTHY_AFTER_S:
                    delays.reset()
                delay_s = delays.next()
                if isinstance(error, waits_for):
                    log.debug("background work waits", extra={"part": part, "reason": str(error)})
                else:
                    self._note_failure(part, error, delay_s)
            await asyncio.sleep(delay_s)

    def failing(self) -> Iterator[str]:
        """Yield a sentence about each part that failed in the last minutes."""
        now = loop_time()
        for part, failures in self._failures.items():
            if now - failures.last_at < _SHOWN_S:
                times = "once" if failures.count == 1 else f"{failures.count} times"
                failed = f"{part} failed {times} since the start"
                yield f"{failed}, and starts again by itself: see the log"

    def _note_failure(self, part: str, error: Exception, delay_s: float) -> None:
        failures = self._failures.setdefault(part, _Failures())
        failures.count += 1
        failures.last_at = loop_time()
        fields = {"part": part, "next_start_s": round(delay_s, 1)}
        log.error("internal error of background work", exc_info=error, extra=fields)
        self._on_failure(part)
