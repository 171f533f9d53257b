"""The worker threads of the aggregation: its own work goes first, other work has its turn while there is none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

T = TypeVar("T")


class Workbench:
    """Runs heavy work off the event loop; executor: None means the loop's own. Used from one event loop."""

    def __init__(self, executor: Executor | None) -> None:
        self._executor = executor
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def run(self, work: Callable[[], T]) -> T:
        """Return what `work` returns; somebody waits for it."""
        self._under_way += 1
        self._idle.clear()
        try:
            return await self._run(work)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    async def run_idle(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, begun when nothing is under way that somebody waits for; keep it short."""
        while self._under_way:
            await self._idle.wait()
        return await self._run(work)

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)
