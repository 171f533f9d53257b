"""Profiles of a worker process without an event loop, which takes each step as a job between two other jobs.

The process that sends the jobs writes its own profiles by the same calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from warpseal.errors import CallRefused
from warpseal.ops.profiles.profiler import AlreadyRunning, NotRunning, Profiler, ProfileStep

JobRunner = Callable[[Callable[[Path, str, ProfileStep], str], Path, str, ProfileStep], Awaitable[str]]
"""Calls a function in the main thread of the worker, between two jobs; returns its result."""

_profilers: dict[tuple[Path, str], Profiler] = {}


def profile_in_worker(folder: Path, suffix: str, step: ProfileStep) -> str:
    """Take one step in this process, in its main thread; return the error, an empty text if there is none.

    Starting a profile that runs, or stopping one that does not run, is no error.
    """
    profiler = _profilers.setdefault((folder, suffix), Profiler(folder, suffix=suffix, has_loop=False))

    async def take_step() -> None:
        with suppress(AlreadyRunning, NotRunning):
            await profiler.take(step)

    try:
        asyncio.run(take_step())
    except CallRefused as error:
        return str(error)
    return ""


class PairedProfiler:
    """The profiler of this process, and that of its worker once `join` was called."""

    def __init__(self, own: Profiler, folder: Path, suffix: str) -> None:
        self._own = own
        self._worker_files = (folder, suffix)
        self._run_job: JobRunner | None = None
        self._is_sampling = False

    async def join(self, run_job: JobRunner) -> None:
        """Profile the worker as well from now on."""
        self._run_job = run_job
        if self._is_sampling:
            await self._in_worker(ProfileStep.START_CPU)

    async def take(self, step: ProfileStep) -> None:
        """Take a step in this process, then in the worker. Raises CallRefused."""
        if step is ProfileStep.STOP_CPU:
            self._is_sampling = False
        await self._own.take(step)
        if step is ProfileStep.START_CPU:
            self._is_sampling = True
        await self._in_worker(step)

    async def _in_worker(self, step: ProfileStep) -> None:
        if self._run_job is not None and (error := await self._run_job(profile_in_worker, *self._worker_files, step)):
            raise CallRefused(error)
