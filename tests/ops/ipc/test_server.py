"""Commands for other processes: an initial one, later ones, replies; errors of a process do not reach the daemon."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import TIMEOUT_S, finish, until
from tests.ops.ipc.fixtures import process, running_server
from warpseal.errors import CallRefused
from warpseal.ops.ipc import SOCKET_NAME, ControlServer


def control_server_in(folder: Path) -> ControlServer:
    return ControlServer(folder, asyncio.get_running_loop().time)


class RecordingHandler:
    """Records the commands of a process."""

    def __init__(self, error: Exception | None = None) -> None:
        self.values: list[Any] = []
        self._error = error

    async def __call__(self, value: Any) -> None:
        self.values.append(value)
        if self._error is not None:
            raise self._error


async def test_a_process_gets_the_initial_command_and_later_ones_before_the_call_returns(
    tmp_path: Path,
) -> None:
    control_server, done = control_server_in(tmp_path), RecordingHandler()
    control_server.set_initial("x", lambda: {"a": 1})
    async with running_server(control_server, tmp_path), process(tmp_path, {"x": done}):
        await until(lambda: done.values == [{"a": 1}])
        await control_server.broadcast("x", [2], TIMEOUT_S)
        assert done.values == [{"a": 1}, [2]]


async def test_every_process_gets_a_command(tmp_path: Path) -> None:
    control_server, first, second = control_server_in(tmp_path), RecordingHandler(), RecordingHandler()
    control_server.set_initial("x", lambda: 0)
    async with (
        running_server(control_server, tmp_path),
        process(tmp_path, {"x": first}),
        process(tmp_path, {"x": second}),
    ):
        await until(lambda: first.values == second.values == [0])
        await control_server.broadcast("x", 1, TIMEOUT_S)
        assert first.values == second.values == [0, 1]


async def test_a_broadcast_without_processes_does_nothing(tmp_path: Path) -> None:
    control_server = control_server_in(tmp_path)
    await control_server.broadcast("x", 1, TIMEOUT_S)
    async with running_server(control_server, tmp_path):
        await control_server.broadcast("x", 1, TIMEOUT_S)


@pytest.mark.parametrize(
    ("topic", "error", "reason"),
    [
        ("x", CallRefused("no space"), "no space"),
        ("x", KeyError("k"), "key error"),
        ("y", None, "not know the command"),
    ],
)
async def test_a_failed_command_is_logged_and_the_process_takes_further_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, topic: str, error: Exception | None, reason: str
) -> None:
    control_server, fails, done = control_server_in(tmp_path), RecordingHandler(error), RecordingHandler()
    control_server.set_initial("z", lambda: 0)
    async with running_server(control_server, tmp_path), process(tmp_path, {"x": fails, "z": done}):
        await until(lambda: done.values == [0])
        await control_server.broadcast(topic, 1, TIMEOUT_S)
        reasons = [str(vars(record)["reason"]) for record in caplog.records if record.msg.startswith("command failed")]
        assert len(reasons) == 1
        assert reason in reasons[0]
        await control_server.broadcast("z", 1, TIMEOUT_S)
        assert done.values == [0, 1]


async def test_a_process_that_does_not_answer_is_waited_for_until_the_timeout(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    control_server, begun = control_server_in(tmp_path), asyncio.Event()

    async def never(_: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    control_server.set_initial("x", lambda: 0)
    async with running_server(control_server, tmp_path), process(tmp_path, {"x": never}):
        await asyncio.wait_for(begun.wait(), TIMEOUT_S)
        await control_server.broadcast("x", 1, 0.05)
    assert "command failed in another process" in caplog.text


async def test_a_process_that_disconnects_is_not_waited_for(tmp_path: Path) -> None:
    control_server = control_server_in(tmp_path)
    control_server.set_initial("x", lambda: 0)
    async with running_server(control_server, tmp_path):
        reader, writer = await asyncio.open_unix_connection(tmp_path / SOCKET_NAME)
        await reader.readline()
        broadcast = asyncio.create_task(control_server.broadcast("x", 1, 3600))
        await reader.readline()
        writer.close()
        await asyncio.wait_for(broadcast, TIMEOUT_S)


async def test_heartbeats_end_the_silence_of_a_process(tmp_path: Path) -> None:
    control_server = control_server_in(tmp_path)
    async with running_server(control_server, tmp_path):
        assert control_server.silence_s() is None
        async with process(tmp_path, {}):
            await until(lambda: control_server.silence_s() is not None)
        silent_s = control_server.silence_s()
        await asyncio.sleep(0.05)
        assert (control_server.silence_s() or 0) > (silent_s or 0)


async def test_only_the_owner_may_use_the_socket_and_it_is_deleted_afterwards(tmp_path: Path) -> None:
    async with running_server(control_server_in(tmp_path), tmp_path):
        assert (tmp_path / SOCKET_NAME).stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / SOCKET_NAME).exists()


@pytest.mark.parametrize(
    "lines", [b"x" * 200_000, b"nonsense\n", b"[]\n", b"\xff\n", json.dumps({"number": [1]}).encode() + b"\n[]\n"]
)
async def test_a_client_that_sends_malformed_lines_is_disconnected(tmp_path: Path, lines: bytes) -> None:
    control_server = control_server_in(tmp_path)
    control_server.set_initial("x", lambda: 0)
    async with running_server(control_server, tmp_path):
        reader, writer = await asyncio.open_unix_connection(tmp_path / SOCKET_NAME)
        await reader.readline()
        writer.write(lines)
        with suppress(ConnectionError):
            assert await finish(reader.read()) == b""
        writer.close()


async def test_a_reply_to_an_unknown_command_is_ignored(tmp_path: Path) -> None:
    control_server, done = control_server_in(tmp_path), RecordingHandler()
    control_server.set_initial("x", lambda: 0)
    async with running_server(control_server, tmp_path):
        reader, writer = await asyncio.open_unix_connection(tmp_path / SOCKET_NAME)
        await reader.readline()
        writer.write(b'{"number": 99, "error": ""}\n{}\n{"number": null}\n')
        async with process(tmp_path, {"x": done}):
            await until(lambda: done.values == [0])
        writer.close()


async def test_the_daemon_runs_without_a_usable_socket_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    await control_server_in(tmp_path / "file").run()
    await control_server_in(tmp_path / ("x" * 120)).run()
