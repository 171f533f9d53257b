"""The other end of the socket: a process that executes the daemon's commands and shows that it is alive."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from warpseal.errors import CallRefused
from warpseal.ops.ipc.server import MAX_LINE_BYTES, SOCKET_NAME
from warpseal.runtime.process import running

log = logging.getLogger(__name__)

HEARTBEAT_S: Final = 1.0
_RECONNECT_S: Final = 1.0
_HEARTBEAT: Final = b"\n"

CommandHandler = Callable[[Any], Awaitable[None]]
"""Executes a command of one topic, given its JSON value. The text of a raised CallRefused goes to the daemon."""


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
    except Exception as error:
        log.exception("internal error in a command of the daemon", extra={"topic": command["topic"]})
        return type(error).__name__
    return ""


async def _send_heartbeats(writer: asyncio.StreamWriter) -> None:
    while not writer.is_closing():
        writer.write(_HEARTBEAT)
        await asyncio.sleep(HEARTBEAT_S)
