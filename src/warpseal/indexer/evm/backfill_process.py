"""The process that decodes and checks the blocks of chains that are far behind.

Both keep a Python interpreter busy. In a process of their own they leave that of the indexer to downloading and
writing. They only compute, so they may run on a thread of the indexer as well, and do so when little is to be decoded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from concurrent.futures.process import BrokenProcessPool
from typing import Final, TypeVar

from warpseal.indexer.worker import Worker, gc_disabled, open_worker_process
from warpseal.runtime.settings import MEBIBYTE

log = logging.getLogger(__name__)

T = TypeVar("T")

_START_BYTES: Final = 16 * MEBIBYTE
_CHECK_S: Final = 60.0


class BackfillProcess:
    """Runs calls of all chains, one after another. Used from one event loop.

    The process is started once `start_bytes` were decoded, and ends when it decodes less in `check_s` seconds.
    """

    def __init__(self, start_bytes: int = _START_BYTES, check_s: float = _CHECK_S) -> None:
        self._start_bytes = start_bytes
        self._check_s = check_s
        self._worker: Worker | None = None
        self._calls = 0
        self._decoded_bytes = 0
        self._is_needed = asyncio.Event()

    @property
    def is_running(self) -> bool:
        """Whether the process takes calls."""
        return self._worker is not None

    async def run(self) -> None:
        """Start and end the process as needed, until cancelled."""
        while True:
            await self._is_needed.wait()
            async with open_worker_process(self._note_exit) as worker:
                try:
                    await worker.call(_run, _load)
                    self._worker = worker
                    while self._worker is not None and (self._calls or self._decoded_bytes >= self._start_bytes):
                        self._decoded_bytes = 0
                        await asyncio.sleep(self._check_s)
                except BrokenProcessPool:
                    await asyncio.sleep(self._check_s)
                finally:
                    self._worker = None
            self._decoded_bytes = 0
            self._is_needed.clear()

    async def call(self, function: Callable[[], T], size_bytes: int, thread: Executor) -> T:
        """Return what a picklable function returns that decodes so many bytes, on the thread if there is no process."""
        self._decoded_bytes += size_bytes
        if self._decoded_bytes >= self._start_bytes:
            self._is_needed.set()
        if self._worker is not None:
            self._calls += 1
            try:
                return await self._worker.call(_run, function)
            except BrokenProcessPool:
                pass
            finally:
                self._calls -= 1
        return await asyncio.get_running_loop().run_in_executor(thread, function)

    def _note_exit(self) -> None:
        """Decode on threads: the process has ended by itself."""
        if self._worker is not None:
            log.warning("the process that decodes blocks ended by itself")
        self._worker = None


def _run(function: Callable[[], T]) -> T:
    with gc_disabled():
        return function()


def _load() -> None:
    """Do nothing: the process has imported what it needs."""
