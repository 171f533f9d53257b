"""Levels that other processes take over: at once, at each change, after a restart of the daemon."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.eventually import until
from tests.ops.ipc.world import acting, running
from warpseal.errors import CallRefused
from warpseal.ops.ipc.server import ControlServer
from warpseal.ops.logs.ipc import ClusterLoggers, level_handlers
from warpseal.ops.logs.loggers import DaemonLoggers, Levels


@asynccontextmanager
async def listening(folder: Path) -> AsyncIterator[DaemonLoggers]:
    """The loggers of another process, which all are at INFO at first."""
    loggers = DaemonLoggers()
    async with acting(folder, level_handlers(loggers)):
        yield loggers


def siblings_of(folder: Path) -> ControlServer:
    return ControlServer(folder, asyncio.get_running_loop().time)


async def test_who_listens_gets_the_levels_at_once_and_each_change(tmp_path: Path) -> None:
    control_server = siblings_of(tmp_path)
    everywhere = ClusterLoggers(DaemonLoggers("debug"), control_server)
    async with running(control_server, tmp_path), listening(tmp_path) as there:
        await until(lambda: there.levels()["main"] == Levels("debug", "debug"))
        await everywhere.set_levels("indexer", "verbo", "off")
        assert there.levels()["indexer"] == Levels("verbo", "off"), "once the call returns"
        assert there.levels()["main"] == Levels("debug", "debug")
        assert everywhere.levels("indexer") == {"indexer": Levels("verbo", "off")}


async def test_a_daemon_that_starts_again_is_found_and_one_that_is_gone_changes_nothing(tmp_path: Path) -> None:
    async with listening(tmp_path) as there:
        for level in ("debug", "warn"):
            control_server = siblings_of(tmp_path)
            ClusterLoggers(DaemonLoggers(level), control_server)
            async with running(control_server, tmp_path):
                await until(lambda level=level: there.levels()["main"].log == level)  # type: ignore[misc]
        assert there.levels()["main"].log == "warn"


async def test_a_name_that_is_none_is_refused_and_told_to_nobody(tmp_path: Path) -> None:
    control_server = siblings_of(tmp_path)
    everywhere = ClusterLoggers(DaemonLoggers("debug"), control_server)
    async with running(control_server, tmp_path), listening(tmp_path) as there:
        await until(lambda: there.levels()["main"].log == "debug")
        with pytest.raises(CallRefused):
            await everywhere.set_levels("nope", "error", None)
        assert there.levels()["main"].log == "debug"
