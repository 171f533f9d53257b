"""Profiles of a worker process that only runs jobs, like the writer of the indexer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.ops.profiles.read_profile import read_profile
from warpseal.errors import CallRefused
from warpseal.ops.profiles.profiler import Profiler, ProfileStep
from warpseal.ops.profiles.worker import PairedProfiler

SUFFIX = "-other"


@pytest.fixture
async def profilers_and_executor(tmp_path: Path) -> AsyncIterator[tuple[PairedProfiler, ProcessPoolExecutor]]:
    own = Profiler(tmp_path)
    with ProcessPoolExecutor(1, get_context("spawn")) as executor:
        yield PairedProfiler(own, tmp_path, SUFFIX), executor
    own.close()


def jobs_of(executor: ProcessPoolExecutor) -> Callable[..., asyncio.Future[str]]:
    def run(
        function: Callable[[Path, str, ProfileStep], str], folder: Path, suffix: str, step: ProfileStep
    ) -> asyncio.Future[str]:
        return asyncio.get_running_loop().run_in_executor(executor, function, folder, suffix, step)

    return run


def work() -> int:
    return sum(number * number for number in range(2_000_000))


async def test_the_worker_writes_its_own_files_beside_the_callers(
    profilers_and_executor: tuple[PairedProfiler, ProcessPoolExecutor], tmp_path: Path
) -> None:
    profilers, executor = profilers_and_executor
    await profilers.take(ProfileStep.START_CPU)
    await profilers.join(jobs_of(executor))
    await asyncio.get_running_loop().run_in_executor(executor, work)
    await profilers.take(ProfileStep.STOP_CPU)
    await profilers.take(ProfileStep.MEMORY)
    await profilers.take(ProfileStep.LOCKS)
    await profilers.take(ProfileStep.STACKS)
    assert read_profile(tmp_path / f"cpu{SUFFIX}.profile").amount_of("work") > 0
    assert read_profile(tmp_path / "cpu.profile").amount_of("work") == 0
    assert read_profile(tmp_path / f"mem{SUFFIX}.profile").samples
    read_profile(tmp_path / f"lock{SUFFIX}.profile")
    assert (tmp_path / f"stacktrace{SUFFIX}.txt").exists()


async def test_a_worker_that_joins_between_two_profiles_samples_only_during_the_next(
    profilers_and_executor: tuple[PairedProfiler, ProcessPoolExecutor], tmp_path: Path
) -> None:
    profilers, executor = profilers_and_executor
    await profilers.take(ProfileStep.LOCKS)
    assert not (tmp_path / f"lock{SUFFIX}.profile").exists()
    await profilers.join(jobs_of(executor))
    assert not (tmp_path / f"cpu{SUFFIX}.profile").exists()
    for _ in range(2):
        await profilers.take(ProfileStep.START_CPU)
        await profilers.take(ProfileStep.STOP_CPU)
    assert (tmp_path / f"cpu{SUFFIX}.profile").exists()


async def test_a_write_error_of_the_worker_is_raised(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with ProcessPoolExecutor(1, get_context("spawn")) as executor:
        profilers = PairedProfiler(Profiler(tmp_path), tmp_path / "file", SUFFIX)
        await profilers.join(jobs_of(executor))
        with pytest.raises(CallRefused, match="open "):
            await profilers.take(ProfileStep.LOCKS)
