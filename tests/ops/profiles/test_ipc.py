"""Profiles of all processes by one call: each writes its own beside the daemon's; no fault of theirs is the call's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.eventually import until
from tests.ops.ipc.fixtures import process, running_server
from warpseal.ops.ipc import CommandHandler, ControlServer
from warpseal.ops.profiles.ipc import ClusterProfiler, profile_handlers
from warpseal.ops.profiles.profiler import AlreadyRunning, NotRunning, ProfileNotWritten, Profiler, ProfileStep


class RecordingProfiler(Profiler):
    """A profiler of an absent process: it records its calls and samples nothing."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, suffix="-indexer")
        self.calls: list[str] = []
        self._is_running = False

    async def start_cpu(self) -> None:
        self.calls.append("start")
        if self._is_running:
            raise AlreadyRunning
        self._is_running = True

    async def stop_cpu(self) -> None:
        self.calls.append("stop")
        if not self._is_running:
            raise NotRunning
        self._is_running = False


@asynccontextmanager
async def cluster_with(folder: Path, other: Profiler) -> AsyncIterator[tuple[ClusterProfiler, ControlServer]]:
    """Yield the daemon's profilers, with another process that listens already."""
    control_server, own = ControlServer(folder, asyncio.get_running_loop().time), Profiler(folder / "profiles")
    cluster, is_connected = ClusterProfiler(own, control_server), asyncio.Event()

    async def connect(_: object) -> None:
        is_connected.set()

    control_server.set_initial("come", lambda: None)
    handlers: dict[str, CommandHandler] = {**profile_handlers(other.take), "come": connect}
    try:
        async with running_server(control_server, folder), process(folder, handlers):
            await until(is_connected.is_set)
            yield cluster, control_server
    finally:
        own.close()


async def test_files_of_the_other_process_lie_beside_the_daemons_when_the_call_returns(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "profiles"
    async with cluster_with(tmp_path, Profiler(folder, suffix="-indexer")) as (cluster, _):
        await cluster.take(ProfileStep.MEMORY)
        assert {file.name for file in folder.iterdir()} == {"mem.profile", "mem-indexer.profile"}
        await cluster.take(ProfileStep.LOCKS)
        await cluster.take(ProfileStep.STACKS)
    others = {"lock.profile", "lock-indexer.profile", "stacktrace.txt", "stacktrace-indexer.txt"}
    assert {file.name for file in folder.iterdir()} == {"mem.profile", "mem-indexer.profile"} | others


async def test_the_other_process_samples_while_the_daemon_does(tmp_path: Path) -> None:
    other = RecordingProfiler(tmp_path / "profiles")
    async with cluster_with(tmp_path, other) as (cluster, _):
        assert other.calls == ["stop"], "a process that comes while nothing is sampled samples nothing"
        await cluster.take(ProfileStep.START_CPU)
        with pytest.raises(AlreadyRunning):
            await cluster.take(ProfileStep.START_CPU)
        assert other.calls == ["stop", "start"]
        await cluster.take(ProfileStep.STOP_CPU)
        with pytest.raises(NotRunning):
            await cluster.take(ProfileStep.STOP_CPU)
        assert other.calls == ["stop", "start", "stop"]


async def test_a_process_that_connects_while_the_cpu_is_sampled_starts_sampling(tmp_path: Path) -> None:
    first, late = RecordingProfiler(tmp_path), RecordingProfiler(tmp_path)
    async with cluster_with(tmp_path, first) as (cluster, _):
        await cluster.take(ProfileStep.START_CPU)
        async with process(tmp_path, profile_handlers(late.take)):
            await until(lambda: late.calls == ["start"])
            await cluster.take(ProfileStep.STOP_CPU)
        assert late.calls == ["start", "stop"]


async def test_a_write_error_of_the_other_process_does_not_fail_the_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    async with cluster_with(tmp_path, Profiler(tmp_path / "file")) as (cluster, _):
        await cluster.take(ProfileStep.LOCKS)
    assert (tmp_path / "profiles" / "lock.profile").exists()
    assert "command failed in another process" in caplog.text


async def test_a_write_error_of_the_daemon_is_raised_and_other_processes_are_not_asked(tmp_path: Path) -> None:
    (tmp_path / "profiles").write_text("")
    other = Profiler(tmp_path / "theirs")
    async with cluster_with(tmp_path, other) as (cluster, _):
        with pytest.raises(ProfileNotWritten):
            await cluster.take(ProfileStep.LOCKS)
        assert not (tmp_path / "theirs").exists()
