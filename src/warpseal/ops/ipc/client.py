"""The other end: a process beside the daemon that does what the daemon tells, and shows that it lives."""

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

log = logging.getLogger(__name__)

BEAT_S: Final = 1.0
_RETRY_S: Final = 1.0
_BEAT: Final = b"\n"

CommandHandler = Callable[[Any], Awaitable[None]]
"""Does what is told of a topic; the value is JSON. Raises CallRefused, whose text the daemon is told."""


async def serve_commands(folder: Path, acts: Mapping[str, CommandHandler]) -> None:
    """Do what the daemon of a folder tells, by topic, until cancelled; a daemon may come and go."""
    while True:
        with suppress(OSError, ValueError):
            reader, writer = await asyncio.open_unix_connection(folder / SOCKET_NAME, limit=MAX_LINE_BYTES)
            try:
                await _listen(acts, reader, writer)
            finally:
                writer.close()
        await asyncio.sleep(_RETRY_S)


async def _listen(
    acts: Mapping[str, CommandHandler], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    beating = asyncio.create_task(_beat(writer))
    try:
        while line := await reader.readline():
            told = json.loads(line)
            fault = await _fault(acts, told)
            writer.write(json.dumps({"number": told["number"], "fault": fault}).encode() + b"\n")
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)


async def _fault(acts: Mapping[str, CommandHandler], told: Mapping[str, Any]) -> str:
    """Do what is told; return why it could not be done, an empty text where it was."""
    act = acts.get(told["topic"])
    if act is None:
        return "this process does not know how"
    try:
        await act(told["value"])
    except CallRefused as error:
        return str(error)
    except Exception as error:
        log.exception("what the daemon told could not be done", extra={"topic": told["topic"]})
        return type(error).__name__
    return ""


async def _beat(writer: asyncio.StreamWriter) -> None:
    while not writer.is_closing():
        writer.write(_BEAT)
        await asyncio.sleep(BEAT_S)
