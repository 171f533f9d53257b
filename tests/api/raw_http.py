"""HTTP over real sockets: requests as bytes, parsed responses, and clients that send slowly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from tests.api.fixtures import KEBAB, MESSAGE, SETTINGS, ApiSetup, serving
from tests.eventually import TIMEOUT_S
from warpseal.api.http.server import HttpServer
from warpseal.api.http.settings import ApiSettings

BODY = json.dumps({"message": MESSAGE.raw.hex()}).encode()
QUICK = replace(
    SETTINGS, receive_timeout_s=0.3, keep_alive_s=0.3, max_body_bytes=4096, max_header_bytes=2048
)


def post(body: bytes = BODY, path: str = KEBAB, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@dataclass
class Reply:
    """One parsed HTTP response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        assert self.headers["content-type"] == "application/json"
        content: dict[str, Any] = json.loads(self.body)
        return content


def replies(raw: bytes) -> list[Reply]:
    parsed_replies = []
    while raw:
        head, _, rest = raw.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        length = int(headers.get("content-length", "0"))
        parsed_replies.append(Reply(int(first.split()[1]), headers, rest[:length]))
        raw = rest[length:]
    return parsed_replies


@asynccontextmanager
async def quick_server(
    settings: ApiSettings = QUICK, setup: ApiSetup | None = None
) -> AsyncIterator[HttpServer]:
    async with serving((setup or ApiSetup(settings)).app(), settings) as server:
        yield server


async def trickle(port: int, pieces: list[bytes], pause_s: float) -> tuple[bytes, int]:
    """Send pieces with pauses until the server closes; return the response bytes and the number of
    pieces sent.
    """
    pieces_sent = 0
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def send() -> None:
        nonlocal pieces_sent
        for piece in pieces:
            writer.write(piece)
            pieces_sent += 1
            await asyncio.sleep(pause_s)

    sending = asyncio.create_task(send())
    try:
        async with asyncio.timeout(TIMEOUT_S):
            output = b""
            while chunk := await reader.read(65536):
                output += chunk
    except ConnectionResetError:
        pass
    finally:
        sending.cancel()
        writer.close()
    return output, pieces_sent
