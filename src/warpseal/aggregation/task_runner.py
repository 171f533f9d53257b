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
from typing import Final, Generic, TypeVar

from msgspec import Struct, field

from warpseal.errors import WarpsealError
from warpseal.store.errors import StoreDown
from warpseal.store.values import EagerTask
from warpseal.warp.ids import id_text

log = logging.getLogger(__name__)

T = TypeVar("T", bound=EagerTask)

# If the process dies during an attempt, the next attempt begins after this time.
_LEASE_S: Final = 60.0
_FIRST_RETRY_S: Final = 2.0
_MAX_RETRY_S: Final = 300.0
_MAX_DOUBLINGS: Final = 8


class TaskQueue(Struct, Generic[T], frozen=True):
    """The tasks in the store.

    due: longest due first, up to a number; schedule: at a time, with a count of attempts.
    """

    due: Callable[[float, int], Awaitable[Sequence[T]]]
    schedule: Callable[[bytes, float, int], Awaitable[None]]
    end: Callable[[bytes], Awaitable[None]]


class TaskRunner(Struct, Generic[T], eq=False):
    """Used from one event loop.

    attempt: does a task and writes its outcome; what it raises is tried again.

    permanent: errors that no retry resolves.
    is_expired: returns whether a task that failed is given up.
    most: tasks that run at a time.
    key_name: of the task's key in log lines.
    """

    queue: TaskQueue[T]
    attempt: Callable[[T], Awaitable[None]]
    is_expired: Callable[[T], Awaitable[bool]]
    permanent: tuple[type[Exception], ...]
    most: int
    key_name: str
    now_unix: Callable[[], float] = time.time
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    _random: Random = field(default_factory=Random)
    _running: set[bytes] = set()

    async def start_due(self, attempts: asyncio.TaskGroup) -> None:
        """Start tasks that are due, as far as there is room."""
        free = self.most - len(self._running)
        if free <= 0:
            return
        now = self.now_unix()
        with suppress(StoreDown):
            for task in await self.queue.due(now, free):
                await self.queue.schedule(task.key, now + _LEASE_S, task.attempts + 1)
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
            await self.attempt(task)
        except self.permanent as error:
            await self._end(task, "message prefetch failed", error)
        except Exception as error:
            if not isinstance(error, WarpsealError):
                # No caller waits for this, so an internal error ends the attempt and not the
                # daemon.
                log.exception(
                    "internal error, message prefetch failed",
                    extra={self.key_name: id_text(task.key)},
                )
            await self._reschedule(task, error)
        finally:
            self._running.discard(task.key)
            self.wake.set()

    async def _reschedule(self, task: T, error: Exception) -> None:
        if await self.is_expired(task):
            await self._end(task, "message prefetch timed out", error)
            return
        delay_s = min(_MAX_RETRY_S, _FIRST_RETRY_S * 2 ** min(task.attempts, _MAX_DOUBLINGS))
        at = self.now_unix() + delay_s * (3 + self._random.random()) / 4
        await self._write(self.queue.schedule(task.key, at, task.attempts + 1))

    async def _write(self, write: Awaitable[None]) -> None:
        """Wait for a write; if the store is down, the lease ends by itself."""
        try:
            await write
        except StoreDown:
            log.debug("message prefetch could not be recorded in the store")

    async def _end(self, task: T, event: str, error: Exception) -> None:
        fields = {
            self.key_name: id_text(task.key),
            "attempts": task.attempts + 1,
            "reason": str(error),
        }
        log.info(event, extra=fields)
        await self._write(self.queue.end(task.key))
