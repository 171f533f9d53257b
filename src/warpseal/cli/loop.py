"""Runs a coroutine on the fastest event loop at hand."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from warpseal.runtime.locks import WorkerThreads

T = TypeVar("T")

# As many as asyncio makes by itself.
_THREADS: Final = min(32, (os.cpu_count() or 1) + 4)


def run_on_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end on uvloop where there is one, else on asyncio's own loop."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(_with_counted_threads(work))
    return uvloop.run(_with_counted_threads(work))


async def _with_counted_threads(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` where waiting for a thread of asyncio.to_thread is counted as it is elsewhere."""
    asyncio.get_running_loop().set_default_executor(WorkerThreads(_THREADS, "asyncio"))
    return await work
