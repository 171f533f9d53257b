"""Profiles of a process that has no event loop but does one job after another: each step is such a job.

Who gives it the jobs writes its own profiles by the same calls.
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
    """What such a process is told."""

    START_CPU = auto()
    STOP_CPU = auto()
    MEMORY = auto()
    LOCKS = auto()
    STACKS = auto()


JobRunner = Callable[[Callable[[Path, str, ProfileStep], str], Path, str, ProfileStep], Awaitable[str]]
"""Has a function called in the main thread of the other process, between two jobs; returns what it returned."""

_STEPS: Final[dict[ProfileStep, Callable[[Profiler], Awaitable[None]]]] = {
    ProfileStep.START_CPU: Profiler.start_cpu,
    ProfileStep.STOP_CPU: Profiler.stop_cpu,
    ProfileStep.MEMORY: Profiler.write_memory,
    ProfileStep.LOCKS: Profiler.write_locks,
    ProfileStep.STACKS: Profiler.write_stacks,
}
_here: dict[tuple[Path, str], Profiler] = {}


def profile_in_worker(folder: Path, suffix: str, step: ProfileStep) -> str:
    """Do one step in this process; return why it could not be done, an empty text where it was.

    For the main thread. What began already, or ended already, is nothing to complain of.
    """
    profiler = _here.setdefault((folder, suffix), Profiler(folder, suffix=suffix, has_loop=False))

    async def act() -> None:
        with suppress(AlreadyRunning, NotRunning):
            await _STEPS[step](profiler)

    try:
        asyncio.run(act())
    except CallRefused as error:
        return str(error)
    return ""


class PairedProfiler:
    """This process's profiler, and that of the one that does its jobs, once it is there.

    Every method raises CallRefused.
    """

    def __init__(self, own: Profiler, folder: Path, suffix: str) -> None:
        self._own = own
        self._other = (folder, suffix)
        self._jobs: JobRunner | None = None
        self._is_sampling = False

    async def join(self, jobs: JobRunner) -> None:
        """Have the other process do as this one does from now on."""
        self._jobs = jobs
        if self._is_sampling:
            await self._too(ProfileStep.START_CPU)

    async def start_cpu(self) -> None:
        """Begin to sample the CPU. Raises AlreadyRunning."""
        await self._own.start_cpu()
        self._is_sampling = True
        await self._too(ProfileStep.START_CPU)

    async def stop_cpu(self) -> None:
        """End sampling and write what was found. Raises NotRunning."""
        self._is_sampling = False
        await self._own.stop_cpu()
        await self._too(ProfileStep.STOP_CPU)

    async def write_memory(self) -> None:
        """Write what holds memory."""
        await self._own.write_memory()
        await self._too(ProfileStep.MEMORY)

    async def write_locks(self) -> None:
        """Write what was waited for."""
        await self._own.write_locks()
        await self._too(ProfileStep.LOCKS)

    async def write_stacks(self) -> None:
        """Write what every thread and every task is doing."""
        await self._own.write_stacks()
        await self._too(ProfileStep.STACKS)

    async def _too(self, step: ProfileStep) -> None:
        if self._jobs is not None and (fault := await self._jobs(profile_in_worker, *self._other, step)):
            raise CallRefused(fault)
