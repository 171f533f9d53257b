"""The Unix socket over which the daemon sends commands to its other processes, such as the indexer's.

Each line is JSON. A command has a topic, a value and a number; its reply repeats the number and has the error, if any.
Each client sends an empty line every second, which shows the daemon that the process is alive.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Final

from warpseal.errors import CallRefused
from warpseal.runtime.process import error_words, os_error_text, running

log = logging.getLogger(__name__)

SOCKET_NAME: Final = "processes.sock"
MAX_LINE_BYTES: Final = 65_536
_MAX_CLIENTS: Final = 16
_MAX_ERROR_CHARACTERS: Final = 500
_SILENT_S: Final = 5.0
_POLL_S: Final = 0.5
_HEARTBEAT_S: Final = 1.0
_RECONNECT_S: Final = 1.0

CommandHandler = Callable[[Any], Awaitable[None]]
"""Executes a command of one topic, given its JSON value. The text of a raised CallRefused goes to the daemon."""


class ControlServer:
    """Sends commands to the connected processes, if any. now: seconds of a monotonic clock. For one event loop."""

    def __init__(self, folder: Path, now: Callable[[], float]) -> None:
        self._path = folder / SOCKET_NAME
        self._now = now
        self._initial: dict[str, Callable[[], Any]] = {}
        self._clients: set[_Client] = set()
        self._heard_at: float | None = None

    def silence_s(self) -> float | None:
        """Return the seconds since any process last sent something; None if none ever did."""
        return None if self._heard_at is None else self._now() - self._heard_at

    def set_initial(self, topic: str, value: Callable[[], Any]) -> None:
        """Send this command to each process when it connects; the value is JSON-ready."""
        self._initial[topic] = value

    async def broadcast(self, topic: str, value: Any, timeout_s: float) -> None:
        """Send a command to all connected processes and wait until they have executed it, or for `timeout_s`.

        A process that is silent is not waited for. Errors of the processes are logged, not raised.
        """
        commands = [self._execute(client, topic, value, timeout_s) for client in tuple(self._clients)]
        for error in filter(None, await asyncio.gather(*commands)):
            log.warning("command failed in another process", extra={"topic": topic, "reason": error})

    async def _execute(self, client: _Client, topic: str, value: Any, timeout_s: float) -> str:
        reply, started_at = client.send(topic, value), self._now()
        try:
            while not reply.done():
                now = self._now()
                if now - started_at >= timeout_s or now - max(started_at, client.heard_at) >= _SILENT_S:
                    return "no answer yet"
                await asyncio.wait((reply,), timeout=min(_POLL_S, timeout_s))
            return reply.result()
        finally:
            reply.cancel()

    async def run(self) -> None:
        """Accept processes until cancelled. Without a usable socket, they keep the settings that they started with."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path.unlink(missing_ok=True)
            server = await asyncio.start_unix_server(self._serve, self._path, limit=MAX_LINE_BYTES)
            self._path.chmod(0o600)
        except OSError as error:
            fields = {"path": self._path, "reason": os_error_text(error)}
            log.warning("cannot send commands to other processes", extra=fields)
            return
        try:
            await asyncio.Event().wait()
        finally:
            server.close()
            for client in tuple(self._clients):
                client.close()
            self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._clients) >= _MAX_CLIENTS:
            writer.close()
            return
        client = _Client(writer)
        self._clients.add(client)
        for topic, value in self._initial.items():
            client.send(topic, value())
        try:
            while line := await reader.readline():
                self._heard_at = client.heard_at = self._now()
                client.receive(line)
        except (OSError, ValueError):
            pass  # The process is gone, or its line is malformed: the connection is closed.
        finally:
            self._clients.discard(client)
            client.close()


class _Client:
    """One connected process."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.heard_at = float("-inf")
        self._writer = writer
        self._numbers = count()
        self._replies: dict[int, asyncio.Future[str]] = {}

    def send(self, topic: str, value: Any) -> asyncio.Future[str]:
        """Write a command; the future gets the error, an empty text if there is none."""
        number, reply = next(self._numbers), asyncio.get_running_loop().create_future()
        self._replies[number] = reply
        reply.add_done_callback(lambda _: self._replies.pop(number, None))
        if self._writer.transport.get_write_buffer_size() > MAX_LINE_BYTES:
            self.close()  # The process does not read.
        else:
            line = json.dumps({"topic": topic, "value": value, "number": number})
            self._writer.write(line.encode() + b"\n")
        return reply

    def receive(self, line: bytes) -> None:
        """Accept a line. Raises ValueError."""
        if not line.strip():
            return
        record = json.loads(line)
        if not isinstance(record, dict):
            raise ValueError("expected an object")
        number = record.get("number")
        reply = self._replies.get(number) if isinstance(number, int) else None
        if reply is not None and not reply.done():
            reply.set_result(str(record.get("error", ""))[:_MAX_ERROR_CHARACTERS])

    def close(self) -> None:
        """Close the connection; commands without a reply fail."""
        for reply in tuple(self._replies.values()):
            if not reply.done():
                reply.set_result("the process is gone")
        self._writer.close()


async def serve_commands(folder: Path, handlers: Mapping[str, CommandHandler]) -> None:
    """Execute commands of the daemon of a folder, by topic, until cancelled; the daemon may stop and start again."""
    while True:
        with suppress(OSError, ValueError):
            reader, writer = await asyncio.open_unix_connection(folder / SOCKET_NAME, limit=MAX_LINE_BYTES)
            try:
                await _serve(handlers, reader, writer)
            finally:
                writer.close()
        await asyncio.sleep(_RECONNECT_S)


async def _serve(
    handlers: Mapping[str, CommandHandler], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    async with running(_send_heartbeats(writer)):
        while line := await reader.readline():
            command = json.loads(line)
            error = await _execute(handlers, command)
            writer.write(json.dumps({"number": command["number"], "error": error}).encode() + b"\n")


async def _execute(handlers: Mapping[str, CommandHandler], command: Mapping[str, Any]) -> str:
    """Execute a command; return the error, an empty text if there is none."""
    handler = handlers.get(command["topic"])
    if handler is None:
        return "this process does not know the command"
    try:
        await handler(command["value"])
    except CallRefused as error:
        return str(error)
    except Exception as error:  # The daemon waits for a reply, and this process takes the next command.
        log.exception("internal error in a command of the daemon", extra={"topic": command["topic"]})
        return error_words(error)
    return ""


async def _send_heartbeats(writer: asyncio.StreamWriter) -> None:
    while not writer.is_closing():
        writer.write(b"\n")
        await asyncio.sleep(_HEARTBEAT_S)
