"""Runs tasks that wait in the store and that no caller asked for, and repeats those that fail.

A task is leased while it runs: if the process dies, it is due again when the lease ends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Final, Generic, Protocol, TypeVar

from warpseal.errors import WarpsealError
from warpseal.store.errors import StoreDown
from warpseal.store.values import EagerTask
from warpseal.warp.ids import id_text

log = logging.getLogger(__name__)

T = TypeVar("T", bound=EagerTask)
T_co = TypeVar("T_co", bound=EagerTask, covariant=True)

# If the process dies during an attempt, the next attempt begins after this time.
_LEASE_S: Final = 60.0
_FIRST_RETRY_S: Final = 2.0
_MAX_RETRY_S: Final = 300.0
_MAX_DOUBLINGS: Final = 8


class TaskQueue(Protocol[T_co]):
    """The tasks in the store (`store.icm_tasks.IcmTasks`, `store.l1_records.L1Tasks`).

    Methods raise StoreDown.
    """

    async def due(self, now_unix_s: float, limit: int, /) -> Sequence[T_co]:
        """Return the tasks that are due, longest due first."""

    async def schedule(self, key: bytes, at_unix_s: float, attempts: int, /) -> None:
        """Let a task be due at a time."""

    async def end(self, key: bytes, /) -> None:
        """Delete a task."""


class TaskRunner(Generic[T]):
    """Runs the tasks of a queue, on one event loop.

    attempt: does a task and writes its outcome; a task whose attempt raises is tried again.
    is_expired: returns whether a task that failed is given up.
    permanent_errors: errors that no retry resolves.
    max_running: number of tasks that run at the same time.
    key_name: name of the task's key in log lines.
    wake: event that ends `wait`, for callers with news of their own.
    """

    def __init__(
        self,
        queue: TaskQueue[T],
        attempt: Callable[[T], Awaitable[None]],
        is_expired: Callable[[T], Awaitable[bool]],
        permanent_errors: tuple[type[Exception], ...],
        *,
        max_running: int,
        key_name: str,
        now_unix: Callable[[], float] = time.time,
    ) -> None:
        self.wake: Final = asyncio.Event()
        self._queue = queue
        self._attempt_task = attempt
        self._is_expired = is_expired
        self._permanent_errors = permanent_errors
        self._max_running = max_running
        self._key_name = key_name
        self._now_unix = now_unix
        self._random = Random()
        self._running: set[bytes] = set()

    async def start_due(self, attempts: asyncio.TaskGroup) -> None:
        """Start tasks that are due, as far as there is room."""
        free = self._max_running - len(self._running)
        if free <= 0:
            return
        now = self._now_unix()
        with suppress(StoreDown):
            for task in await self._queue.due(now, free):
                # The lease is written before the attempt begins: a process that dies leaves a task
                # that is due again.
                await self._queue.schedule(task.key, now + _LEASE_S, task.attempts + 1)
                attempts.create_task(self._attempt(task))
                self._running.add(task.key)

    async def wait(self, timeout_s: float) -> None:
        """Wait until a task ends, or `wake` is set, or for some seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.wake.wait()
        self.wake.clear()

    async def _attempt(self, task: T) -> None:
        try:
            await self._attempt_task(task)
        except self._permanent_errors as error:
            await self._end(task, "message prefetch failed", error)
        except Exception as error:
            if not isinstance(error, WarpsealError):
                # No caller waits for this, so an internal error ends the attempt and not the
                # daemon.
                log.exception(
                    "internal error, message prefetch failed",
                    extra={self._key_name: id_text(task.key)},
                )
            await self._reschedule(task, error)
        finally:
            self._running.discard(task.key)
            self.wake.set()

    async def _reschedule(self, task: T, error: Exception) -> None:
        if await self._is_expired(task):
            await self._end(task, "message prefetch timed out", error)
            return
        delay_s = min(_MAX_RETRY_S, _FIRST_RETRY_S * 2 ** min(task.attempts, _MAX_DOUBLINGS))
        # Between three quarters of the delay and all of it, so that tasks that failed together are
        # not repeated together.
        at = self._now_unix() + delay_s * (3 + self._random.random()) / 4
        await self._write(self._queue.schedule(task.key, at, task.attempts + 1))

    async def _write(self, write: Awaitable[None]) -> None:
        """Wait for a write; if the store is down, the lease ends by itself."""
        try:
            await write
        except StoreDown:
            log.debug("message prefetch could not be recorded in the store")

    async def _end(self, task: T, event: str, error: Exception) -> None:
        fields = {
            self._key_name: id_text(task.key),
            "attempts": task.attempts + 1,
            "reason": str(error),
        }
        log.info(event, extra=fields)
        await self._write(self._queue.end(task.key))
