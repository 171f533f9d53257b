"""The profiles of the daemon's process and their files.

Source of truth: the specification of the profiler methods of the admin API
(`admin.startCPUProfiler`); avalanchego `utils/profiler`; of their format, `proto/profile.proto` of
github.com/google/pprof.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, Final

from msgspec import Struct

from warpseal.errors import CallRefused
from warpseal.ops.profiles.samples import PERIOD_NS, CpuSampler, memory_by_type
from warpseal.runtime.lazy import LazyModule
from warpseal.runtime.locks import CONTENTION, AsyncLock
from warpseal.runtime.process import os_error_text
from warpseal.runtime.stack_samples import NO_STACK, Frame, Stack, StackTotal, capture_stack

if TYPE_CHECKING:
    from warpseal.pb import profile_pb2
else:
    profile_pb2 = LazyModule("warpseal.pb.profile_pb2")

PROFILES_NAME: Final = "profiles"
"""Name of the folder of the profiles in the data folder."""
_FOLDER_MODE: Final = 0o750
_FILE_MODE: Final = 0o640
_NANOSECONDS: Final = "nanoseconds"


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
        self._counted_since_ns = time.time_ns()
        self._stalls = LoopStalls()
        self._lock = AsyncLock()

    async def start_cpu(self) -> None:
        """Start the CPU profile; from the first call on, waits are counted. Raises AlreadyRunning."""
        async with self._lock:
            if self._sampler is not None:
                raise AlreadyRunning
            self._file = await asyncio.to_thread(self._create, "cpu.profile")
            self._started_ns = time.time_ns()
            if not CONTENTION.is_counting:
                self._counted_since_ns = self._started_ns
            CONTENTION.begin()
            self._stalls.start()
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
            started_ns, lasted_ns = self._started_ns, time.time_ns() - self._started_ns
            units = ("samples", "cpu", _NANOSECONDS)
            contents = ProfileContents(*units, sampler.totals(), started_ns, lasted_ns, PERIOD_NS)
            await asyncio.to_thread(self._write, file, contents)

    async def write_memory(self) -> None:
        """Collect garbage and write mem.profile: live objects by type."""
        async with self._lock:
            file = await asyncio.to_thread(self._create, "mem.profile")
            totals = await memory_by_type()
            contents = ProfileContents(
                "inuse_objects", "inuse_space", "bytes", totals, time.time_ns()
            )
            await asyncio.to_thread(self._write, file, contents)

    async def write_locks(self) -> None:
        """Write lock.profile: the waits since the first start_cpu() and their durations."""
        async with self._lock:
            since_ns = self._counted_since_ns
            counted_ns = time.time_ns() - since_ns if CONTENTION.is_counting else 0
            units = ("contentions", "delay", _NANOSECONDS)
            contents = ProfileContents(*units, CONTENTION.totals(), since_ns, counted_ns)
            await asyncio.to_thread(self._save, "lock.profile", contents)

    async def write_stacks(self) -> None:
        """Write stacktrace.txt: the stacks of all threads and tasks."""
        async with self._lock:
            await asyncio.to_thread(self._save, "stacktrace.txt", stacktrace().encode())

    def close(self) -> None:
        """Stop all sampling and discard the samples."""
        self._stalls.stop()
        if self._sampler is not None:
            self._sampler.stop()
            self._sampler = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def _create(self, name: str) -> IO[bytes]:
        path = self._folder / name
        try:
            self._folder.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
            return open(
                os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE_MODE),
                "wb",
            )
        except OSError as error:
            raise ProfileNotWritten(path, error) from error

    def _save(self, name: str, contents: ProfileContents | bytes) -> None:
        self._write(self._create(name), contents)

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
        yield f"task {task.get_name()!r}{'' if task.done() else ', waiting in'}:"
        yield "".join(traceback.format_list(_task_stack(task)))
    if len(tasks) > _MAX_TASKS:
        yield f"and {len(tasks) - _MAX_TASKS} more tasks"


def _task_stack(task: asyncio.Task[Any]) -> list[traceback.FrameSummary]:
    """Return the frames of a waiting task, outermost first."""
    summaries: list[traceback.FrameSummary] = []
    awaited: Any = task.get_coro()
    while awaited is not None and len(summaries) < _MAX_FRAMES:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is None:
            break
        summaries.append(
            traceback.FrameSummary(
                frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname
            )
        )
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return summaries


STALL: Final = "[event loop stalled]"

# A late beat reveals a stall; up to one interval of the stall may be missing.
_BEAT_S: Final = 0.01
_STALL_NS: Final = 10_000_000
_BEAT_NS: Final = 10_000_000


class LoopStalls:
    """Beats on the event loop, and an alarm that captures the stack of the loop if a beat is late.

    Both run in the main thread, from start() to stop().
    """

    def __init__(self) -> None:
        self._beat: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due_ns = 0
        self._late_stack: Stack | None = None

    def start(self) -> None:
        """Start on the running loop, unless started. Raises ValueError outside of the main thread."""
        if self._loop is not None:
            return
        signal.signal(signal.SIGALRM, self._on_alarm)
        signal.siginterrupt(signal.SIGALRM, False)
        self._loop = asyncio.get_running_loop()
        self._schedule_beat()

    def stop(self) -> None:
        """Stop beats and alarm."""
        if self._beat is None:
            return
        self._beat.cancel()
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._beat = self._loop = None

    def _schedule_beat(self) -> None:
        assert self._loop is not None
        self._late_stack = None
        self._due_ns = time.monotonic_ns() + _BEAT_NS
        self._beat = self._loop.call_later(_BEAT_S, self._on_beat)
        signal.setitimer(signal.ITIMER_REAL, _BEAT_S + _STALL_NS / 1e9)

    def _on_beat(self) -> None:
        late_ns = time.monotonic_ns() - self._due_ns
        if late_ns > _STALL_NS:
            CONTENTION.add(self._late_stack or NO_STACK, late_ns, STALL)
        self._schedule_beat()

    def _on_alarm(self, _number: int, frame: FrameType | None) -> None:
        # Only the next beat counts the stall: the interrupted code may be counting.
        if self._loop is not None and self._late_stack is None:
            self._late_stack = capture_stack(frame)


_COMPRESSION_LEVEL = 6


class ProfileContents(Struct, frozen=True):
    """The content of a profile.

    count, amount, unit: names of the two values of each total, and the unit of the amount.

    started_ns: Unix time; duration_ns: 0 for the state of a moment; period: `amount` between two
        samples, 0 if everything is counted.
    """

    count: str
    amount: str
    unit: str
    totals: Iterable[StackTotal]
    started_ns: int
    duration_ns: int = 0
    period: int = 0


def encode(contents: ProfileContents) -> bytes:
    """Return the profile in the file format of pprof."""
    writer = _Writer()
    profile = writer.profile
    amount = writer.value_type(contents.amount, contents.unit)
    profile.sample_type.extend((writer.value_type(contents.count, "count"), amount))
    profile.period_type.CopyFrom(amount)
    profile.period = contents.period
    profile.default_sample_type = writer.text(contents.amount)
    profile.time_nanos = contents.started_ns
    profile.duration_nanos = contents.duration_ns
    for total in contents.totals:
        sample = profile.sample.add()
        sample.location_id.extend(map(writer.location, total.stack))
        sample.value.extend((total.count, total.amount))
    return gzip.compress(profile.SerializeToString(), _COMPRESSION_LEVEL, mtime=0)


class _Writer:
    """A profile under construction; each text, function and location is stored once."""

    def __init__(self) -> None:
        self.profile = profile_pb2.Profile()
        self._texts: dict[str, int] = {}
        self._functions: dict[tuple[str, str, int], int] = {}
        self._locations: dict[Frame, int] = {}
        self.text("")
        # Without this mapping, pprof looks for symbols in a binary.
        self.profile.mapping.add(
            id=1,
            filename=self.text("warpseal"),
            has_functions=True,
            has_filenames=True,
            has_line_numbers=True,
        )

    def text(self, text: str) -> int:
        if text not in self._texts:
            self._texts[text] = len(self._texts)
            self.profile.string_table.append(text)
        return self._texts[text]

    def value_type(self, name: str, unit: str) -> profile_pb2.ValueType:
        return profile_pb2.ValueType(type=self.text(name), unit=self.text(unit))

    def location(self, frame: Frame) -> int:
        if frame not in self._locations:
            self._locations[frame] = len(self._locations) + 1
            location = self.profile.location.add(id=self._locations[frame], mapping_id=1)
            location.line.add(function_id=self._function(frame), line=frame.line)
        return self._locations[frame]

    def _function(self, frame: Frame) -> int:
        key = (frame.function, frame.file, frame.first_line)
        if key not in self._functions:
            self._functions[key] = number = len(self._functions) + 1
            name, file = self.text(frame.function), self.text(frame.file)
            self.profile.function.add(
                id=number, name=name, system_name=name, filename=file, start_line=frame.first_line
            )
        return self._functions[key]
