"""The profiler's files are true of what the process did, and its errors are the node's."""

from __future__ import annotations

import asyncio
import math
import stat
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tests.eventually import TIMEOUT_S, until
from tests.ops.profiles.read_profile import ReadProfile, read_profile
from warpseal.cli.process import run_on_loop
from warpseal.ops.profiles.cpu import PROFILER
from warpseal.ops.profiles.profiler import (
    AlreadyRunning,
    NotRunning,
    ProfileNotWritten,
    Profiler,
)
from warpseal.ops.profiles.stacks import NATIVE
from warpseal.ops.profiles.waits import TASK, THREAD

WORK_S = 0.3


@pytest.fixture
def profiler(tmp_path: Path) -> Iterator[Profiler]:
    """A profiler that writes to a folder which does not exist yet."""
    with closing(Profiler(tmp_path / "made" / "profiles")) as opened:
        yield opened


def folder_of(tmp_path: Path) -> Path:
    return tmp_path / "made" / "profiles"


def busy_in_python(cpu_s: float, stay: Callable[[], object] = lambda: None) -> None:
    end_s = time.thread_time() + cpu_s
    while time.thread_time() < end_s:
        math.factorial(50)
    stay()


def busy_in_another_function(cpu_s: float, stay: Callable[[], object] = lambda: None) -> None:
    end_s = time.thread_time() + cpu_s
    while time.thread_time() < end_s:
        math.factorial(50)
    stay()


def busy_without_the_interpreter(cpu_s: float, stay: Callable[[], object] = lambda: None) -> None:
    block, end_s = bytes(4 * 1024 * 1024), time.thread_time() + cpu_s
    while time.thread_time() < end_s:
        zlib.crc32(block)
    stay()


async def profile_threads(
    profiler: Profiler, *work: Callable[[float, Callable[[], object]], None]
) -> None:
    """Profile one thread for each function, while the main thread serves its event loop.

    CPU time after the last sample of a thread would not be attributed, so each stays in its
    function until then.
    """
    done, stopped = threading.Semaphore(0), threading.Event()

    def stay() -> None:
        done.release()
        stopped.wait(TIMEOUT_S)

    await profiler.start_cpu()
    running = [asyncio.create_task(asyncio.to_thread(function, WORK_S, stay)) for function in work]
    for _ in work:
        await asyncio.to_thread(done.acquire)
    be_sampled()
    await profiler.stop_cpu()
    stopped.set()
    await asyncio.gather(*running)


def be_sampled() -> None:
    """Use CPU time of some sampling periods."""
    end_s = time.process_time() + 0.05
    while time.process_time() < end_s:
        math.factorial(50)


async def test_cpu_time_is_attributed_to_threads_and_functions(
    profiler: Profiler, tmp_path: Path
) -> None:
    await profile_threads(
        profiler, busy_in_python, busy_in_another_function, busy_without_the_interpreter
    )
    profile = read_profile(folder_of(tmp_path) / "cpu.profile")
    assert profile.units == (("samples", "count"), ("cpu", "nanoseconds"))
    for function in ("busy_in_python", "busy_in_another_function", "busy_without_the_interpreter"):
        assert WORK_S * 1e9 * 0.8 < profile.amount_of(function) < WORK_S * 1e9 * 1.3
        assert profile.count_of(function) > 5
    assert profile.raw.period == 10_000_000
    assert profile.raw.duration_nanos > WORK_S * 1e9


async def test_the_samples_add_up_to_the_cpu_time_of_the_process(
    profiler: Profiler, tmp_path: Path
) -> None:
    before_ns = time.process_time_ns()
    await profile_threads(profiler, busy_in_python)
    used_ns = time.process_time_ns() - before_ns
    profile = read_profile(folder_of(tmp_path) / "cpu.profile")
    total = sum(sample.amount for sample in profile.samples)
    assert 0.8 * used_ns < total <= used_ns
    assert profile.amount_of(NATIVE) < 0.2 * total
    assert 0 < profile.amount_of(PROFILER) < 0.1 * total


async def test_cpu_time_of_the_main_thread_is_attributed_to_its_coroutines(
    profiler: Profiler, tmp_path: Path
) -> None:
    async def serve() -> None:
        busy_in_python(WORK_S, be_sampled)

    await profiler.start_cpu()
    await serve()
    await profiler.stop_cpu()
    profile = read_profile(folder_of(tmp_path) / "cpu.profile")
    (longest,) = sorted(profile.samples, key=lambda sample: sample.amount)[-1:]
    assert any(name.endswith("serve") for name in longest.functions)
    assert profile.amount_of("busy_in_python") > WORK_S * 1e9 * 0.8


def test_a_profile_is_taken_on_the_event_loop_of_the_daemon(
    profiler: Profiler, tmp_path: Path
) -> None:
    run_on_loop(profile_threads(profiler, busy_in_python))
    profile = read_profile(folder_of(tmp_path) / "cpu.profile")
    assert profile.amount_of("busy_in_python") > WORK_S * 1e9 * 0.8
    profiler.close()


async def test_start_twice_and_stop_before_start_are_refused_and_change_nothing(
    profiler: Profiler, tmp_path: Path
) -> None:
    with pytest.raises(NotRunning, match=r"^cpu profiler doesn't exist$"):
        await profiler.stop_cpu()
    await profiler.start_cpu()
    with pytest.raises(AlreadyRunning, match=r"^cpu profiler already running$"):
        await profiler.start_cpu()
    busy_in_python(WORK_S)
    await profiler.stop_cpu()
    assert read_profile(folder_of(tmp_path) / "cpu.profile").amount_of("busy_in_python") > 0
    with pytest.raises(NotRunning):
        await profiler.stop_cpu()


async def test_a_new_profile_replaces_the_previous_file(profiler: Profiler, tmp_path: Path) -> None:
    await profile_threads(profiler, busy_in_python)
    await profile_threads(profiler, busy_in_another_function)
    profile = read_profile(folder_of(tmp_path) / "cpu.profile")
    assert profile.amount_of("busy_in_python") == 0
    assert profile.amount_of("busy_in_another_function") > 0


async def test_short_lived_threads_are_sampled(profiler: Profiler, tmp_path: Path) -> None:
    await profiler.start_cpu()
    for _ in range(20):
        thread = threading.Thread(target=busy_in_python, args=(0.03,))
        thread.start()
        while thread.is_alive():  # noqa: ASYNC110 - a thread of its own, not of a pool
            await asyncio.sleep(0.001)
    await profiler.stop_cpu()
    profile = read_profile(folder_of(tmp_path) / "cpu.profile")
    # CPU time after the last sample of a thread is not attributed to the thread.
    assert 0.2e9 < profile.amount_of("busy_in_python") < 0.7e9


async def test_files_and_folder_are_not_readable_by_other_users(
    profiler: Profiler, tmp_path: Path
) -> None:
    await profiler.write_locks()
    folder = folder_of(tmp_path)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o750
    assert stat.S_IMODE((folder / "lock.profile").stat().st_mode) & 0o137 == 0


async def test_an_unusable_folder_fails_every_profile(tmp_path: Path) -> None:
    (tmp_path / "profiles").write_text("a file")
    profiler = Profiler(tmp_path / "profiles")
    for act in (
        profiler.start_cpu,
        profiler.write_memory,
        profiler.write_locks,
        profiler.write_stacks,
    ):
        with pytest.raises(ProfileNotWritten, match=f"^open {tmp_path / 'profiles'}"):
            await act()
    with pytest.raises(NotRunning):
        await profiler.stop_cpu()


class LiveObject:
    """An object to be counted."""

    def __init__(self, number: int) -> None:
        self.text = f"a text that only this one has: {number}"


async def test_memory_is_grouped_by_type_and_the_rest_is_native(
    profiler: Profiler, tmp_path: Path
) -> None:
    live_objects = [LiveObject(number) for number in range(2_000)]
    kept_bytes = [bytearray(3_000_000)]
    await profiler.write_memory()
    profile = read_profile(folder_of(tmp_path) / "mem.profile")
    assert profile.units == (("inuse_objects", "count"), ("inuse_space", "bytes"))
    assert profile.count_of("test_profiler.LiveObject") == len(live_objects)
    assert profile.amount_of("builtins.bytearray") >= len(kept_bytes[0])
    assert profile.count_of("builtins.str") > 2_000
    # It may be 0: memory that was never written to counts for its object, and is not resident.
    assert any(NATIVE in sample.functions for sample in profile.samples)
    assert profile.default_amount == "inuse_space"


async def test_shared_objects_are_counted_once(profiler: Profiler, tmp_path: Path) -> None:
    async def bytes_in_use() -> int:
        await profiler.write_memory()
        return read_profile(folder_of(tmp_path) / "mem.profile").amount_of("builtins.bytes")

    # Other tests of the process may keep tens of megabytes.
    before = await bytes_in_use()
    shared = bytes(5_000_000)
    holders = [[shared] for _ in range(20)]
    added = await bytes_in_use() - before
    assert len(holders) == 20
    assert 4_000_000 <= added < 10_000_000


async def test_garbage_is_collected_before_memory_is_measured(
    profiler: Profiler, tmp_path: Path
) -> None:
    first, second = LiveObject(1), LiveObject(2)
    first.other, second.other = second, first  # type: ignore[attr-defined]
    del first, second
    await profiler.write_memory()
    profile = read_profile(folder_of(tmp_path) / "mem.profile")
    assert profile.count_of("test_profiler.LiveObject") == 0


async def test_the_event_loop_runs_while_memory_is_measured(profiler: Profiler) -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    await profiler.write_memory()
    counting.cancel()
    assert turns > 10


async def sample(profiler: Profiler, tmp_path: Path) -> ReadProfile:
    """Return the profile of what tasks and threads wait for."""
    await profiler.write_locks()
    return read_profile(folder_of(tmp_path) / "lock.profile")


async def test_a_task_that_waits_for_a_lock_is_sampled_with_its_coroutines(
    profiler: Profiler, tmp_path: Path
) -> None:
    lock = asyncio.Lock()

    async def contend() -> None:
        async with lock:
            pass

    async with lock:
        waiting = asyncio.create_task(contend())
        profile = await sample(profiler, tmp_path)
    await waiting
    assert profile.units == (("contentions", "count"), ("delay", "nanoseconds"))
    assert profile.default_amount == "delay"
    (waits,) = [
        stack
        for stack in profile.samples
        if any(name.endswith("<locals>.contend") for name in stack.functions)
    ]
    assert (waits.functions[0], waits.functions[-1]) == ("Lock.acquire", TASK)
    assert waits.count > 1
    # The first period may have begun before.
    assert 0.8e9 < waits.amount <= profile.raw.duration_nanos


async def test_a_thread_that_waits_for_a_lock_is_sampled(
    profiler: Profiler, tmp_path: Path
) -> None:
    lock = threading.Lock()

    def contend() -> None:
        with lock:
            pass

    with lock:
        waiting = threading.Thread(target=contend)
        waiting.start()
        profile = await sample(profiler, tmp_path)
    waiting.join()
    waits = [stack for stack in profile.samples if stack.functions[0].endswith("contend")]
    assert {stack.functions[-1] for stack in waits} == {THREAD}
    assert sum(stack.count for stack in waits) > 1


async def test_a_job_that_waits_for_a_worker_thread_is_sampled_where_it_was_submitted(
    profiler: Profiler, tmp_path: Path
) -> None:
    free = threading.Event()
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as threads:

        async def submit() -> None:
            await loop.run_in_executor(threads, free.wait)

        jobs = [asyncio.create_task(submit()) for _ in range(3)]
        profile = await sample(profiler, tmp_path)
        free.set()
        await asyncio.gather(*jobs)
    assert profile.amount_of("submit") > 2 * 0.8e9


async def test_a_task_that_waits_for_nothing_is_not_sampled_after_its_end(
    profiler: Profiler, tmp_path: Path
) -> None:
    async def finish() -> None:
        await asyncio.sleep(0)

    await asyncio.create_task(finish())
    assert (await sample(profiler, tmp_path)).count_of("finish") == 0


async def test_what_holds_up_the_event_loop_is_sampled(profiler: Profiler, tmp_path: Path) -> None:
    def stall() -> None:
        time.sleep(0.4)

    async def stall_soon() -> None:
        await asyncio.sleep(0.03)
        stall()

    async def has_stall() -> bool:
        stalling = asyncio.create_task(stall_soon())
        profile = await sample(profiler, tmp_path)
        await stalling
        return profile.amount_of("<locals>.stall") > 0.3e9

    # On a busy machine the stall may begin before the sampling.
    await until(has_stall)


async def test_nothing_is_sampled_after_a_profile(profiler: Profiler) -> None:
    await profiler.write_locks()
    assert "profiler" not in {thread.name for thread in threading.enumerate()}


async def test_the_stacks_of_threads_and_tasks_are_written(
    profiler: Profiler, tmp_path: Path
) -> None:
    async def waits_here() -> None:
        await asyncio.sleep(60)

    waiting = asyncio.create_task(waits_here(), name="patient task")
    await asyncio.sleep(0)
    await profiler.write_stacks()
    text = (folder_of(tmp_path) / "stacktrace.txt").read_text()
    waiting.cancel()
    assert "'MainThread':" in text
    assert "task 'patient task', waiting in:" in text
    assert "waits_here" in text


def test_memory_outside_python_objects_is_reported_as_native(tmp_path: Path) -> None:
    """Run in a new process: the untouched buffers of other tests count for their objects and are
    not resident.
    """
    script = """
import asyncio, sys
from pathlib import Path
from warpseal.ops.profiles.profiler import Profiler

async def main():
    await Profiler(Path(sys.argv[1])).write_memory()

asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=60)
    assert read_profile(tmp_path / "mem.profile").amount_of(NATIVE) > 0
