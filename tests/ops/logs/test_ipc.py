"""Levels that other processes take over: at once, at each change, after a restart of the daemon."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.eventually import until
from tests.ops.ipc.fixtures import process, running_server
from warpseal.errors import CallRefused
from warpseal.ops.ipc import ControlServer
from warpseal.ops.logs.ipc import ClusterLoggers, level_handlers
from warpseal.ops.logs.loggers import DaemonLoggers, Levels


@asynccontextmanager
async def connected_loggers(folder: Path) -> AsyncIterator[DaemonLoggers]:
    """The loggers of another process, which all are at INFO at first."""
    loggers = DaemonLoggers()
    async with process(folder, level_handlers(loggers)):
        yield loggers


def control_server_in(folder: Path) -> ControlServer:
    return ControlServer(folder, asyncio.get_running_loop().time)


async def test_a_process_gets_the_levels_when_it_connects_and_each_change(tmp_path: Path) -> None:
    control_server = control_server_in(tmp_path)
    cluster = ClusterLoggers(DaemonLoggers("debug"), control_server)
    async with running_server(control_server, tmp_path), connected_loggers(tmp_path) as there:
        await until(lambda: there.levels()["main"] == Levels("debug", "debug"))
        await cluster.set_levels("indexer", "verbo", "off")
        assert there.levels()["indexer"] == Levels("verbo", "off"), "once the call returns"
        assert there.levels()["main"] == Levels("debug", "debug")
        assert cluster.levels("indexer") == {"indexer": Levels("verbo", "off")}


async def test_a_process_reconnects_to_a_restarted_daemon_and_keeps_its_levels_until_then(tmp_path: Path) -> None:
    async with connected_loggers(tmp_path) as there:
        for level in ("debug", "warn"):
            control_server = control_server_in(tmp_path)
            ClusterLoggers(DaemonLoggers(level), control_server)
            async with running_server(control_server, tmp_path):
                await until(lambda level=level: there.levels()["main"].log == level)  # type: ignore[misc]
        assert there.levels()["main"].log == "warn"


async def test_an_unknown_logger_is_refused_and_not_sent_to_processes(tmp_path: Path) -> None:
    control_server = control_server_in(tmp_path)
    cluster = ClusterLoggers(DaemonLoggers("debug"), control_server)
    async with running_server(control_server, tmp_path), connected_loggers(tmp_path) as there:
        await until(lambda: there.levels()["main"].log == "debug")
        with pytest.raises(CallRefused):
            await cluster.set_levels("nope", "error", None)
        assert there.levels()["main"].log == "debug"
