"""Levels of the loggers, told to the daemon's other processes over a Unix socket as they change.

Who listens gets all levels at once, then each change: a line of JSON, levels by name. It sends a line now and then, so
that the daemon knows that it lives.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from warpseal.errors import CallRefused
from warpseal.logs.levels import LEVELS
from warpseal.logs.loggers import DaemonLoggers, Levels

log = logging.getLogger(__name__)

SOCKET_NAME: Final = "levels.sock"
BEAT_S: Final = 1.0
_RETRY_S: Final = 1.0
_MAX_LISTENERS: Final = 16
_MAX_LINE_BYTES: Final = 65_536
_BEAT: Final = b"\n"


class LevelsHub:
    """The daemon's loggers, and those of the processes that listen. now: seconds that never go back."""

    def __init__(self, own: DaemonLoggers, folder: Path, now: Callable[[], float]) -> None:
        self._own = own
        self._path = folder / SOCKET_NAME
        self._now = now
        self._listeners: set[asyncio.StreamWriter] = set()
        self._heard_at: float | None = None

    def silence_s(self) -> float | None:
        """Return for how long nothing was heard of another process; None: it never was."""
        return None if self._heard_at is None else self._now() - self._heard_at

    def levels(self, name: str = "") -> Mapping[str, Levels]:
        """Return the levels of one logger, or of all. Raises CallRefused."""
        return self._own.levels(name)

    async def set_levels(self, name: str, log_level: str | None, display_level: str | None) -> None:
        """Change the levels of one logger, or of all, everywhere. Raises CallRefused, changing nothing."""
        await self._own.set_levels(name, log_level, display_level)
        line = self._line()
        for listener in tuple(self._listeners):
            if listener.transport.get_write_buffer_size() > _MAX_LINE_BYTES:
                listener.close()  # It does not read.
            else:
                listener.write(line)

    async def run(self) -> None:
        """Let others listen until cancelled; where that cannot be, they keep the levels that they began with."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path.unlink(missing_ok=True)
            server = await asyncio.start_unix_server(self._serve, self._path, limit=_MAX_LINE_BYTES)
            self._path.chmod(0o600)
        except OSError as error:
            log.warning("no other process can be told levels", extra={"reason": str(error)})
            return
        try:
            await asyncio.Event().wait()
        finally:
            server.close()
            for listener in tuple(self._listeners):
                listener.close()
            self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._listeners) >= _MAX_LISTENERS:
            writer.close()
            return
        self._listeners.add(writer)
        writer.write(self._line())
        try:
            while await reader.readline():
                self._heard_at = self._now()
        except (OSError, ValueError):
            pass
        finally:
            self._listeners.discard(writer)
            writer.close()

    def _line(self) -> bytes:
        levels = {name: [one.log, one.display] for name, one in self._own.levels().items()}
        return json.dumps(levels).encode() + b"\n"


async def follow_levels(loggers: DaemonLoggers, folder: Path) -> None:
    """Take over the levels that the daemon tells, and say that we live, until cancelled; a daemon may come and go."""
    while True:
        with suppress(OSError, ValueError):
            reader, writer = await asyncio.open_unix_connection(folder / SOCKET_NAME, limit=_MAX_LINE_BYTES)
            try:
                await _listen(loggers, reader, writer)
            finally:
                writer.close()
        await asyncio.sleep(_RETRY_S)


async def _listen(loggers: DaemonLoggers, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async with asyncio.TaskGroup() as tasks:
        beating = tasks.create_task(_beat(writer))
        while line := await reader.readline():
            await _take(loggers, json.loads(line))
        beating.cancel()


async def _beat(writer: asyncio.StreamWriter) -> None:
    while not writer.is_closing():
        writer.write(_BEAT)
        await asyncio.sleep(BEAT_S)


async def _take(loggers: DaemonLoggers, told: Any) -> None:
    for name, (log_level, display_level) in told.items():
        if log_level in LEVELS and display_level in LEVELS:
            with suppress(CallRefused):
                await loggers.set_levels(name, log_level, display_level)
