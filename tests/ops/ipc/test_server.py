"""What other processes are told: they begin with what holds, do what comes, answer; none of their faults is ours."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import until
from tests.ops.ipc.world import acting, running
from warpseal.errors import CallRefused
from warpseal.ops.ipc.server import SOCKET_NAME, ControlServer

PATIENCE_S = 20.0


def siblings_of(folder: Path) -> ControlServer:
    return ControlServer(folder, asyncio.get_running_loop().time)


class Done:
    """What a process did."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.values: list[Any] = []
        self._fault = fault

    async def __call__(self, value: Any) -> None:
        self.values.append(value)
        if self._fault is not None:
            raise self._fault


async def test_a_process_begins_with_what_holds_and_does_what_comes_before_the_call_returns(tmp_path: Path) -> None:
    control_server, done = siblings_of(tmp_path), Done()
    control_server.set_initial("x", lambda: {"a": 1})
    async with running(control_server, tmp_path), acting(tmp_path, {"x": done}):
        await until(lambda: done.values == [{"a": 1}])
        await control_server.broadcast("x", [2], PATIENCE_S)
        assert done.values == [{"a": 1}, [2]]


async def test_all_that_listen_are_told(tmp_path: Path) -> None:
    control_server, first, second = siblings_of(tmp_path), Done(), Done()
    control_server.set_initial("x", lambda: 0)
    async with running(control_server, tmp_path), acting(tmp_path, {"x": first}), acting(tmp_path, {"x": second}):
        await until(lambda: first.values == second.values == [0])
        await control_server.broadcast("x", 1, PATIENCE_S)
        assert first.values == second.values == [0, 1]


async def test_with_nobody_there_telling_does_nothing(tmp_path: Path) -> None:
    control_server = siblings_of(tmp_path)
    await control_server.broadcast("x", 1, PATIENCE_S)
    async with running(control_server, tmp_path):
        await control_server.broadcast("x", 1, PATIENCE_S)


@pytest.mark.parametrize(
    ("topic", "fault", "told"),
    [("x", CallRefused("no room"), "no room"), ("x", KeyError("k"), "KeyError"), ("y", None, "does not know how")],
)
async def test_what_a_process_cannot_do_is_logged_and_it_goes_on_listening(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, topic: str, fault: Exception | None, told: str
) -> None:
    control_server, fails, done = siblings_of(tmp_path), Done(fault), Done()
    control_server.set_initial("z", lambda: 0)
    async with running(control_server, tmp_path), acting(tmp_path, {"x": fails, "z": done}):
        await until(lambda: done.values == [0])
        await control_server.broadcast(topic, 1, PATIENCE_S)
        reasons = [str(vars(one)["reason"]) for one in caplog.records if one.msg.startswith("another process did not")]
        assert len(reasons) == 1
        assert told in reasons[0]
        await control_server.broadcast("z", 1, PATIENCE_S)
        assert done.values == [0, 1]


async def test_who_does_not_answer_is_not_waited_for_longer_than_the_patience(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    control_server, begun = siblings_of(tmp_path), asyncio.Event()

    async def never(_: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    control_server.set_initial("x", lambda: 0)
    async with running(control_server, tmp_path), acting(tmp_path, {"x": never}):
        await asyncio.wait_for(begun.wait(), PATIENCE_S)
        await control_server.broadcast("x", 1, 0.05)
    assert "another process did not do as told" in caplog.text


async def test_who_goes_away_is_not_waited_for(tmp_path: Path) -> None:
    control_server = siblings_of(tmp_path)
    control_server.set_initial("x", lambda: 0)
    async with running(control_server, tmp_path):
        reader, writer = await asyncio.open_unix_connection(tmp_path / SOCKET_NAME)
        await reader.readline()
        telling = asyncio.create_task(control_server.broadcast("x", 1, 3600))
        await reader.readline()
        writer.close()
        await asyncio.wait_for(telling, PATIENCE_S)


async def test_a_process_that_lives_is_heard_of(tmp_path: Path) -> None:
    control_server = siblings_of(tmp_path)
    async with running(control_server, tmp_path):
        assert control_server.silence_s() is None
        async with acting(tmp_path, {}):
            await until(lambda: control_server.silence_s() is not None)
        silent_s = control_server.silence_s()
        await asyncio.sleep(0.05)
        assert (control_server.silence_s() or 0) > (silent_s or 0)


async def test_nobody_else_may_use_the_socket_and_it_is_gone_afterwards(tmp_path: Path) -> None:
    async with running(siblings_of(tmp_path), tmp_path):
        assert (tmp_path / SOCKET_NAME).stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / SOCKET_NAME).exists()


@pytest.mark.parametrize(
    "said", [b"x" * 200_000, b"nonsense\n", b"[]\n", b"\xff\n", json.dumps({"number": [1]}).encode() + b"\n[]\n"]
)
async def test_a_listener_that_makes_no_sense_is_let_go(tmp_path: Path, said: bytes) -> None:
    control_server = siblings_of(tmp_path)
    control_server.set_initial("x", lambda: 0)
    async with running(control_server, tmp_path):
        reader, writer = await asyncio.open_unix_connection(tmp_path / SOCKET_NAME)
        await reader.readline()
        writer.write(said)
        async with asyncio.timeout(10):
            with suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()


async def test_an_answer_to_what_nobody_asked_changes_nothing(tmp_path: Path) -> None:
    control_server, done = siblings_of(tmp_path), Done()
    control_server.set_initial("x", lambda: 0)
    async with running(control_server, tmp_path):
        reader, writer = await asyncio.open_unix_connection(tmp_path / SOCKET_NAME)
        await reader.readline()
        writer.write(b'{"number": 99, "fault": ""}\n{}\n{"number": null}\n')
        async with acting(tmp_path, {"x": done}):
            await until(lambda: done.values == [0])
        writer.close()


async def test_without_a_usable_folder_the_daemon_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    await siblings_of(tmp_path / "file").run()
    await siblings_of(tmp_path / ("x" * 120)).run()
