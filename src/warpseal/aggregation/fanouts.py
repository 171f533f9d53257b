"""The fan-outs that are open: equal requests join the same one."""

from __future__ import annotations

import asyncio
import logging

from warpseal.aggregation.callers import Caller, Missed, Reached, Subject
from warpseal.aggregation.fanout import FanOut
from warpseal.aggregation.tools import Tools
from warpseal.errors import InternalError

log = logging.getLogger("warpseal.aggregation")

_Key = tuple[bytes, bytes, bytes]


class FanOuts:
    """At most one fan-out per subject. Used from one event loop."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._open: dict[_Key, FanOut] = {}
        self._tasks: dict[FanOut, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    async def collect(self, subject: Subject, caller: Caller) -> Reached | Missed:
        """Return what becomes of a caller; its cancellation ends the fan-out only if nobody else waits."""
        fan_out = self._join(subject)
        fan_out.enter(caller)
        try:
            return await caller.outcome
        finally:
            if fan_out.leave(caller):
                self._close(subject.key, fan_out)

    def _join(self, subject: Subject) -> FanOut:
        known = self._open.get(subject.key)
        if known is not None and not known.is_over:
            return known
        fan_out = self._open[subject.key] = FanOut(subject, self._tools)
        # Belongs to all its callers together, so it is born in no task group of one of them.
        task = self._tasks[fan_out] = asyncio.create_task(fan_out.run())
        task.add_done_callback(lambda done: self._ended(subject.key, fan_out, done))
        return fan_out

    def _close(self, key: _Key, fan_out: FanOut) -> None:
        if self._open.get(key) is fan_out:
            del self._open[key]
        task = self._tasks.get(fan_out)
        if task is not None:
            task.cancel()

    def _ended(self, key: _Key, fan_out: FanOut, task: asyncio.Task[None]) -> None:
        del self._tasks[fan_out]
        if self._open.get(key) is fan_out:
            del self._open[key]
        if not task.cancelled() and task.exception() is not None:
            log.error("a fan-out failed", exc_info=task.exception())
        fan_out.abandon(InternalError("the aggregation failed for a fault of the daemon's own"))
