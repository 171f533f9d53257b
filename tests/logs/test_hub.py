"""Levels that are told to other processes: at once, at each change, after a restart; who listens is known to live."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.integration.daemon import until
from warpseal.errors import CallRefused
from warpseal.logs.hub import SOCKET_NAME, LevelsHub, follow_levels
from warpseal.logs.loggers import DaemonLoggers, Levels


@asynccontextmanager
async def running(hub: LevelsHub, folder: Path) -> AsyncIterator[None]:
    task = asyncio.create_task(hub.run())
    try:
        await until((folder / SOCKET_NAME).exists)
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))


@asynccontextmanager
async def listening(folder: Path) -> AsyncIterator[DaemonLoggers]:
    """The loggers of another process, which all are at INFO at first."""
    loggers = DaemonLoggers()
    task = asyncio.create_task(follow_levels(loggers, folder))
    try:
        yield loggers
    finally:
        task.cancel()
        await asyncio.wait((task,))


def hub_of(folder: Path, level: str = "debug") -> LevelsHub:
    return LevelsHub(DaemonLoggers(level), folder, asyncio.get_running_loop().time)


async def test_who_listens_gets_the_levels_at_once_and_each_change(tmp_path: Path) -> None:
    hub = hub_of(tmp_path)
    async with running(hub, tmp_path), listening(tmp_path) as there:
        await until(lambda: there.levels()["main"] == Levels("debug", "debug"))
        await hub.set_levels("indexer", "verbo", "off")
        await until(lambda: there.levels()["indexer"] == Levels("verbo", "off"))
        assert there.levels()["main"] == Levels("debug", "debug")
        assert hub.levels("indexer") == {"indexer": Levels("verbo", "off")}


async def test_a_daemon_that_starts_again_is_found_and_one_that_is_gone_changes_nothing(tmp_path: Path) -> None:
    async with listening(tmp_path) as there:
        for level in ("debug", "warn"):
            async with running(hub_of(tmp_path, level), tmp_path):
                await until(lambda level=level: there.levels()["main"].log == level)  # type: ignore[misc]
        assert there.levels()["main"].log == "warn"


async def test_a_process_that_lives_is_heard_of(tmp_path: Path) -> None:
    hub = hub_of(tmp_path)
    async with running(hub, tmp_path):
        assert hub.silence_s() is None
        async with listening(tmp_path):
            await until(lambda: hub.silence_s() is not None)
        silent_s = hub.silence_s()
        await asyncio.sleep(0.05)
        assert (hub.silence_s() or 0) > (silent_s or 0)


async def test_nobody_else_may_use_the_socket_and_it_is_gone_afterwards(tmp_path: Path) -> None:
    async with running(hub_of(tmp_path), tmp_path):
        assert (tmp_path / SOCKET_NAME).stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / SOCKET_NAME).exists()


async def test_a_listener_that_writes_without_end_of_line_is_let_go(tmp_path: Path) -> None:
    async with running(hub_of(tmp_path), tmp_path):
        reader, writer = await asyncio.open_unix_connection(tmp_path / SOCKET_NAME)
        await reader.readline()
        writer.write(b"x" * 200_000)
        async with asyncio.timeout(10):
            with suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()


async def test_a_name_that_is_none_is_refused_and_told_to_nobody(tmp_path: Path) -> None:
    hub = hub_of(tmp_path)
    with pytest.raises(CallRefused):
        await hub.set_levels("nope", "debug", None)


async def test_without_a_usable_folder_the_daemon_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    await hub_of(tmp_path / "file").run()
    await hub_of(tmp_path / ("x" * 120)).run()
