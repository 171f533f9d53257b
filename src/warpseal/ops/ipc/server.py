"""The daemon's end of the Unix socket over which its other processes are told what to do, such as the indexer's.

Each line is JSON. The daemon's has a topic, its value and a number; the answer repeats the number, and says what went
wrong. Whoever listens sends an empty line now and then, so that the daemon knows that it lives.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, Final

log = logging.getLogger(__name__)

SOCKET_NAME: Final = "processes.sock"
MAX_LINE_BYTES: Final = 65_536
_MAX_LISTENERS: Final = 16
_MAX_SHOWN: Final = 500
_SILENT_S: Final = 5.0
_LOOK_S: Final = 0.5


class ControlServer:
    """The other processes of a daemon, there or not. now: seconds that never go back. Used from one event loop."""

    def __init__(self, folder: Path, now: Callable[[], float]) -> None:
        self._path = folder / SOCKET_NAME
        self._now = now
        self._first: dict[str, Callable[[], Any]] = {}
        self._listeners: set[_Listener] = set()
        self._heard_at: float | None = None

    def silence_s(self) -> float | None:
        """Return for how long nothing was heard of another process; None: it never was."""
        return None if self._heard_at is None else self._now() - self._heard_at

    def set_initial(self, topic: str, value: Callable[[], Any]) -> None:
        """Tell this to each process as it comes; JSON-ready."""
        self._first[topic] = value

    async def broadcast(self, topic: str, value: Any, patience_s: float) -> None:
        """Tell this to all that are there now, and wait until they have done it, or for `patience_s`.

        Who is silent is not waited for. What they could not do is logged: none of it is a fault of who tells.
        """
        told = [self._tell(listener, topic, value, patience_s) for listener in tuple(self._listeners)]
        for fault in filter(None, await asyncio.gather(*told)):
            log.warning("another process did not do as told", extra={"topic": topic, "reason": fault})

    async def _tell(self, listener: _Listener, topic: str, value: Any, patience_s: float) -> str:
        told, since = listener.tell(topic, value), self._now()
        try:
            while not told.done():
                now = self._now()
                if now - since >= patience_s or now - max(since, listener.heard_at) >= _SILENT_S:
                    return "no answer yet"
                await asyncio.wait((told,), timeout=min(_LOOK_S, patience_s))
            return told.result()
        finally:
            told.cancel()

    async def run(self) -> None:
        """Let others listen until cancelled; where that cannot be, they keep to what they began with."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path.unlink(missing_ok=True)
            server = await asyncio.start_unix_server(self._serve, self._path, limit=MAX_LINE_BYTES)
            self._path.chmod(0o600)
        except OSError as error:
            log.warning("no other process can be told anything", extra={"reason": str(error)})
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
        listener = _Listener(writer)
        self._listeners.add(listener)
        for topic, value in self._first.items():
            listener.tell(topic, value())
        try:
            while line := await reader.readline():
                self._heard_at = listener.heard_at = self._now()
                listener.hear(line)
        except (OSError, ValueError):
            pass  # It is let go: what it says makes no sense, or it is gone.
        finally:
            self._listeners.discard(listener)
            listener.close()


class _Listener:
    """One process that listens."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.heard_at = float("-inf")
        self._writer = writer
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[str]] = {}

    def tell(self, topic: str, value: Any) -> asyncio.Future[str]:
        """Write a line; the future has what went wrong, an empty text where nothing did."""
        number, told = next(self._numbers), asyncio.get_running_loop().create_future()
        self._waiting[number] = told
        told.add_done_callback(lambda _: self._waiting.pop(number, None))
        if self._writer.transport.get_write_buffer_size() > MAX_LINE_BYTES:
            self.close()  # It does not read.
        else:
            line = json.dumps({"topic": topic, "value": value, "number": number})
            self._writer.write(line.encode() + b"\n")
        return told

    def hear(self, line: bytes) -> None:
        """Take a line. Raises ValueError."""
        if not line.strip():
            return
        said = json.loads(line)
        if not isinstance(said, dict):
            raise ValueError("no object")
        number = said.get("number")
        told = self._waiting.get(number) if isinstance(number, int) else None
        if told is not None and not told.done():
            told.set_result(str(said.get("fault", ""))[:_MAX_SHOWN])

    def close(self) -> None:
        """Let it go; who waits for it is told."""
        for told in tuple(self._waiting.values()):
            if not told.done():
                told.set_result("the process is gone")
        self._writer.close()
