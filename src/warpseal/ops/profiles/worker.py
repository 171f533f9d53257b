"""Profiles of a worker process without an event loop, which takes each step as a job between two other jobs.

The process that sends the jobs writes its own profiles by the same calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path
from typing import Final

from warpseal.errors import CallRefused
from warpseal.ops.profiles.profiler import AlreadyRunning, NotRunning, Profiler


class ProfileStep(Enum):
    """One call of a profiler."""

    START_CPU = auto()
    STOP_CPU = auto()
    MEMORY = auto()
    LOCKS = auto()
    STACKS = auto()


JobRunner = Callable[[Callable[[Path, str, ProfileStep], str], Path, str, ProfileStep], Awaitable[str]]
"""Calls a function in the main thread of the worker, between two jobs; returns its result."""

_STEPS: Final[dict[ProfileStep, Callable[[Profiler], Awaitable[None]]]] = {
    ProfileStep.START_CPU: Profiler.start_cpu,
    ProfileStep.STOP_CPU: Profiler.stop_cpu,
    ProfileStep.MEMORY: Profiler.write_memory,
    ProfileStep.LOCKS: Profiler.write_locks,
    ProfileStep.STACKS: Profiler.write_stacks,
}
_profilers: dict[tuple[Path, str], Profiler] = {}


def profile_in_worker(folder: Path, suffix: str, step: ProfileStep) -> str:
    """Take one step in this process, in its main thread; return the error, an empty text if there is none.

    Starting a profile that runs, or stopping one that does not run, is no error.
    """
    profiler = _profilers.setdefault((folder, suffix), Profiler(folder, suffix=suffix, has_loop=False))

    async def take_step() -> None:
        with suppress(AlreadyRunning, NotRunning):
            await _STEPS[step](profiler)

    try:
        asyncio.run(take_step())
    except CallRefused as error:
        return str(error)
    return ""


class PairedProfiler:
    """The profiler of this process, and that of its worker once `join` was called. Every method raises CallRefused."""

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

    async def start_cpu(self) -> None:
        """Start sampling the CPU. Raises AlreadyRunning."""
        await self._own.start_cpu()
        self._is_sampling = True
        await self._in_worker(ProfileStep.START_CPU)

    async def stop_cpu(self) -> None:
        """Stop sampling and write the samples. Raises NotRunning."""
        self._is_sampling = False
        await self._own.stop_cpu()
        await self._in_worker(ProfileStep.STOP_CPU)

    async def write_memory(self) -> None:
        """Write the use of memory."""
        await self._own.write_memory()
        await self._in_worker(ProfileStep.MEMORY)

    async def write_locks(self) -> None:
        """Write the contention of locks."""
        await self._own.write_locks()
        await self._in_worker(ProfileStep.LOCKS)

    async def write_stacks(self) -> None:
        """Write the stack of every thread and every task."""
        await self._own.write_stacks()
        await self._in_worker(ProfileStep.STACKS)

    async def _in_worker(self, step: ProfileStep) -> None:
        if self._run_job is not None and (error := await self._run_job(profile_in_worker, *self._worker_files, step)):
            raise CallRefused(error)
