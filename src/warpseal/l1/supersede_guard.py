"""Ends work whose point is gone: looks every few seconds whether the message that is being signed is still true."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from warpseal.l1.validity import Superseded, Validity

T = TypeVar("T")


class Watch:
    """One look-out beside one piece of work. look: what is true now."""

    def __init__(self, look: Callable[[], Awaitable[Validity]], every_s: float) -> None:
        self._look = look
        self._every_s = every_s
        self._superseded: Superseded | None = None

    async def over(self, work: Awaitable[T]) -> T | Superseded:
        """Return the outcome of the work, or that the message is true no more: then the work is cancelled."""
        try:
            async with asyncio.timeout(None) as scope:
                with self._looking(scope):
                    return await work
        except TimeoutError:
            if self._superseded is None:
                raise
            return self._superseded

    @contextmanager
    def _looking(self, scope: asyncio.Timeout) -> Iterator[None]:
        """Look inside the block, beginning after a pause: most work is over by then, and needs no task for this."""
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[Any]] = []
        begin = loop.call_later(self._every_s, lambda: tasks.append(loop.create_task(self._run(scope))))
        try:
            yield
        finally:
            begin.cancel()
            for task in tasks:
                task.cancel()

    async def _run(self, scope: asyncio.Timeout) -> None:
        while not scope.expired():
            truth = await self._look()
            if isinstance(truth, Superseded):
                self._superseded = truth
                scope.reschedule(asyncio.get_running_loop().time())
                return
            await asyncio.sleep(self._every_s)
