"""Profiles of all processes by one call: each writes its own beside the daemon's; no fault of theirs is the call's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.eventually import until
from tests.ops.ipc.world import acting, running
from warpseal.ops.ipc.client import CommandHandler
from warpseal.ops.ipc.server import ControlServer
from warpseal.ops.profiles.ipc import ClusterProfiler, profile_handlers
from warpseal.ops.profiles.profiler import AlreadyRunning, NotRunning, ProfileNotWritten, Profiler


class Noted(Profiler):
    """A profiler of a process that is not there: it notes what it was asked, and samples nothing of this one."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, suffix="-indexer")
        self.asked: list[str] = []
        self._is_running = False

    async def start_cpu(self) -> None:
        self.asked.append("start")
        if self._is_running:
            raise AlreadyRunning
        self._is_running = True

    async def stop_cpu(self) -> None:
        self.asked.append("stop")
        if not self._is_running:
            raise NotRunning
        self._is_running = False


@asynccontextmanager
async def beside(folder: Path, other: Profiler) -> AsyncIterator[tuple[ClusterProfiler, ControlServer]]:
    """Yield the daemon's profilers, with another process that listens already."""
    control_server, own = ControlServer(folder, asyncio.get_running_loop().time), Profiler(folder / "profiles")
    everywhere, has_come = ClusterProfiler(own, control_server), asyncio.Event()

    async def come(_: object) -> None:
        has_come.set()

    control_server.set_initial("come", lambda: None)
    acts: dict[str, CommandHandler] = {**profile_handlers(other), "come": come}
    try:
        async with running(control_server, folder), acting(folder, acts):
            await asyncio.wait_for(has_come.wait(), 20)
            yield everywhere, control_server
    finally:
        own.close()


async def test_memory_locks_and_stacks_of_the_other_process_stand_beside_ours_when_the_call_returns(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "profiles"
    async with beside(tmp_path, Profiler(folder, suffix="-indexer")) as (everywhere, _):
        await everywhere.write_memory()
        assert {file.name for file in folder.iterdir()} == {"mem.profile", "mem-indexer.profile"}
        await everywhere.write_locks()
        await everywhere.write_stacks()
    others = {"lock.profile", "lock-indexer.profile", "stacktrace.txt", "stacktrace-indexer.txt"}
    assert {file.name for file in folder.iterdir()} == {"mem.profile", "mem-indexer.profile"} | others


async def test_the_other_process_samples_while_the_daemon_does(tmp_path: Path) -> None:
    other = Noted(tmp_path / "profiles")
    async with beside(tmp_path, other) as (everywhere, _):
        assert other.asked == ["stop"], "a process that comes while nothing is sampled samples nothing"
        await everywhere.start_cpu()
        with pytest.raises(AlreadyRunning):
            await everywhere.start_cpu()
        assert other.asked == ["stop", "start"]
        await everywhere.stop_cpu()
        with pytest.raises(NotRunning):
            await everywhere.stop_cpu()
        assert other.asked == ["stop", "start", "stop"]


async def test_a_process_that_comes_while_the_cpu_is_sampled_samples_too(tmp_path: Path) -> None:
    first, late = Noted(tmp_path), Noted(tmp_path)
    async with beside(tmp_path, first) as (everywhere, _):
        await everywhere.start_cpu()
        async with acting(tmp_path, profile_handlers(late)):
            await until(lambda: late.asked == ["start"])
            await everywhere.stop_cpu()
        assert late.asked == ["start", "stop"]


async def test_what_the_other_process_cannot_write_is_no_fault_of_the_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    async with beside(tmp_path, Profiler(tmp_path / "file")) as (everywhere, _):
        await everywhere.write_locks()
    assert (tmp_path / "profiles" / "lock.profile").exists()
    assert "another process did not do as told" in caplog.text


async def test_what_the_daemon_cannot_write_is_asked_of_nobody(tmp_path: Path) -> None:
    (tmp_path / "profiles").write_text("")
    other = Profiler(tmp_path / "theirs")
    async with beside(tmp_path, other) as (everywhere, _):
        with pytest.raises(ProfileNotWritten):
            await everywhere.write_locks()
        assert not (tmp_path / "theirs").exists()
