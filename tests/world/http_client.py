"""A caller's HTTP client: one connection for each request, and streams of server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class HttpReply(NamedTuple):
    """A response with a JSON body."""

    status: int
    headers: Mapping[str, str]
    body: Any

    @property
    def code(self) -> str:
        """The code of an error; empty for a success."""
        return str(self.body.get("code", "")) if isinstance(self.body, dict) else ""


class _Stream(asyncio.Protocol):
    """The bytes of a connection."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.is_over = False
        self.error: Exception | None = None
        self.changed = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        self.changed.set()

    def eof_received(self) -> bool:
        self.is_over = True
        self.changed.set()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over, self.error = True, exc
        self.changed.set()

    async def wait(self) -> None:
        """Wait for more bytes, or for the end."""
        self.changed.clear()
        await self.changed.wait()


async def request(
    method: str,
    url: str,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
) -> HttpReply:
    """Return the response. Raises ConnectionError if the connection ends before."""
    transport, stream = await _send(method, url, body, headers or {})
    try:
        while True:
            head, separator, content = bytes(stream.buffer).partition(b"\r\n\r\n")
            if separator:
                status, fields = _parse_head(head)
                if len(content) >= int(fields.get("content-length", "0")):
                    return HttpReply(status, fields, json.loads(content or b"null"))
            if stream.is_over:
                raise ConnectionResetError(f"{len(stream.buffer)} bytes of a response")
            await stream.wait()
    finally:
        transport.abort()


async def listen(url: str, headers: Mapping[str, str]) -> AsyncIterator[tuple[str, Any]]:
    """Yield the id and the data of each server-sent event until the connection ends.

    Raises ConnectionError if there is no connection, and ValueError for another response.
    """
    transport, stream = await _send("GET", url, None, headers)
    try:
        while b"\r\n\r\n" not in stream.buffer:
            if stream.is_over:
                raise ConnectionResetError("no response")
            await stream.wait()
        head, _, rest = bytes(stream.buffer).partition(b"\r\n\r\n")
        status, _fields = _parse_head(head)
        if status != 200:
            while not stream.is_over:
                await stream.wait()
            raise ValueError(f"{status} {bytes(stream.buffer)[len(head) :]!r}")
        stream.buffer = bytearray(rest)
        content = b""
        while True:
            content += _take_chunks(stream.buffer)
            *events, content = content.split(b"\n\n")
            for event in events:
                yield _parse_event(event.decode())
            if stream.is_over:
                return
            await stream.wait()
    finally:
        transport.abort()


async def _send(
    method: str, url: str, body: Any, headers: Mapping[str, str]
) -> tuple[asyncio.Transport, _Stream]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    stream = _Stream()
    transport, _ = await asyncio.get_running_loop().create_connection(
        lambda: stream, parts.hostname, parts.port
    )
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    content = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", f"Host: {parts.netloc}", "Connection: close"]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    transport.write("\r\n".join(lines).encode() + b"\r\n\r\n" + content)
    return transport, stream


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode().split("\r\n")
    fields = (line.partition(":") for line in lines)
    return int(first.split()[1]), {name.lower(): value.strip() for name, _, value in fields}


def _take_chunks(buffer: bytearray) -> bytes:
    """Remove the complete chunks from the buffer, and return their content."""
    content = b""
    while True:
        size_text, separator, _ = bytes(buffer).partition(b"\r\n")
        end = len(size_text) + 2 + int(size_text or b"0", 16) + 2
        if not separator or len(buffer) < end:
            return content
        content += buffer[len(size_text) + 2 : end - 2]
        del buffer[:end]


def _parse_event(text: str) -> tuple[str, Any]:
    identifier, data = "", None
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == "id":
            identifier = value.strip()
        elif name == "data":
            data = json.loads(value)
    return identifier, data
