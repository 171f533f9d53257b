"""The profiles of the daemon's process and their files.

Source of truth: the specification of the profiler methods of the admin API
(`admin.startCPUProfiler`); avalanchego `utils/profiler`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

from warpseal.errors import CallRefused
from warpseal.ops.profiles.cpu import PERIOD_NS, CpuSampler
from warpseal.ops.profiles.memory import memory_by_type
from warpseal.ops.profiles.pprof import NANOSECONDS, ProfileContents, encode
from warpseal.ops.profiles.stacks import task_frames
from warpseal.ops.profiles.waits import THREADS_PERIOD_NS, sample_waits
from warpseal.runtime.process import os_error_text

PROFILES_NAME: Final = "profiles"
"""Name of the folder of the profiles in the data folder."""
_FOLDER_MODE: Final = 0o750
_FILE_MODE: Final = 0o640
_WAITS_SAMPLED_S: Final = 1.0


class Profiler:
    """Writes cpu.profile, mem.profile, lock.profile and stacktrace.txt into a folder, replacing
    earlier files.

    Call all methods on the event loop of the main thread; they raise ProfileNotWritten.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sampler: CpuSampler | None = None
        self._file: IO[bytes] | None = None
        self._started_ns = 0
        self._lock = asyncio.Lock()

    async def start_cpu(self) -> None:
        """Start the CPU profile. Raises AlreadyRunning."""
        async with self._lock:
            if self._sampler is not None:
                raise AlreadyRunning
            self._file = await asyncio.to_thread(self._create, "cpu.profile")
            self._started_ns = time.time_ns()
            sampler = CpuSampler()
            sampler.start()
            self._sampler = sampler

    async def stop_cpu(self) -> None:
        """Stop the CPU profile and write cpu.profile. Raises NotRunning."""
        async with self._lock:
            sampler, file = self._sampler, self._file
            if sampler is None or file is None:
                raise NotRunning
            sampler.stop()
            self._sampler = self._file = None
            contents = ProfileContents(
                count="samples",
                amount="cpu",
                unit=NANOSECONDS,
                totals=sampler.totals(),
                started_ns=self._started_ns,
                duration_ns=time.time_ns() - self._started_ns,
                period=PERIOD_NS,
            )
            await asyncio.to_thread(self._write, file, contents)

    async def write_memory(self) -> None:
        """Collect garbage and write mem.profile: live objects by type."""
        async with self._lock:
            file = await asyncio.to_thread(self._create, "mem.profile")
            contents = ProfileContents(
                count="inuse_objects",
                amount="inuse_space",
                unit="bytes",
                totals=await memory_by_type(),
                started_ns=time.time_ns(),
            )
            await asyncio.to_thread(self._write, file, contents)

    async def write_locks(self) -> None:
        """Sample for a second where tasks and threads wait, and write lock.profile."""
        async with self._lock:
            file = await asyncio.to_thread(self._create, "lock.profile")
            started_ns = time.time_ns()
            contents = ProfileContents(
                count="contentions",
                amount="delay",
                unit=NANOSECONDS,
                totals=await sample_waits(_WAITS_SAMPLED_S),
                started_ns=started_ns,
                duration_ns=time.time_ns() - started_ns,
                period=THREADS_PERIOD_NS,
            )
            await asyncio.to_thread(self._write, file, contents)

    async def write_stacks(self) -> None:
        """Write stacktrace.txt: the stacks of all threads and tasks."""
        async with self._lock:
            file = await asyncio.to_thread(self._create, "stacktrace.txt")
            await asyncio.to_thread(self._write, file, stacktrace().encode())

    def close(self) -> None:
        """Stop the CPU profile and discard its samples."""
        if self._sampler is not None:
            self._sampler.stop()
            self._sampler = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def _create(self, name: str) -> IO[bytes]:
        path = self._folder / name
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        try:
            self._folder.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
            return open(os.open(path, flags, _FILE_MODE), "wb")
        except OSError as error:
            raise ProfileNotWritten(path, error) from error

    def _write(self, file: IO[bytes], contents: ProfileContents | bytes) -> None:
        content = contents if isinstance(contents, bytes) else encode(contents)
        try:
            with file:
                file.write(content)
        except OSError as error:
            raise ProfileNotWritten(self._folder, error) from error


class AlreadyRunning(CallRefused):
    """The CPU profile is already running; nothing changes."""

    def __init__(self) -> None:
        super().__init__("cpu profiler already running")


class NotRunning(CallRefused):
    """The CPU profile is not running; nothing changes."""

    def __init__(self) -> None:
        super().__init__("cpu profiler doesn't exist")


class ProfileNotWritten(CallRefused):
    """The operating system refused to create or write a file."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"open {path}: {os_error_text(error)}")


_MAX_TASKS: Final = 10_000
_MAX_FRAMES: Final = 50


def stacktrace() -> str:
    """Return the stacks of all threads, then of all tasks of the running loop; names and places, no
    values.
    """
    return "\n".join((*_thread_stacks(), *_task_stacks()))


def _thread_stacks() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        yield f"thread {ident} {names.get(ident, 'not of Python')!r}:"
        yield "".join(traceback.format_stack(frame, _MAX_FRAMES))


def _task_stacks() -> Iterator[str]:
    tasks = asyncio.all_tasks()
    for task in islice(tasks, _MAX_TASKS):
        state = "" if task.done() else ", waiting in"
        yield f"task {task.get_name()!r}{state}:"
        yield "".join(traceback.format_list(_task_stack(task)))
    if len(tasks) > _MAX_TASKS:
        yield f"and {len(tasks) - _MAX_TASKS} more tasks"


def _task_stack(task: asyncio.Task[Any]) -> list[traceback.FrameSummary]:
    """Return the calls of a waiting task, the outermost first."""
    return [
        traceback.FrameSummary(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)
        for frame in task_frames(task, _MAX_FRAMES)
    ]
