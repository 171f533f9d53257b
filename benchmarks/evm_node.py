"""An EVM node that answers from memory as fast as Python can, and sends heads over WebSockets; for
benchmarks only.

python -m benchmarks.evm_node; its first line of output names the URLs of calls and WebSockets.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec
import uvloop
from aiohttp import WSMsgType, web

GENESIS_HASH = "0x" + "11" * 32
SUBSCRIPTION = "0xcd0c3e8af590364c09d0fa6a1210faf5"
OK = b"200 OK"
_HEAD = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
_RESULTS = {
    "eth_chainId": b'"0x7a69"',
    "eth_blockNumber": b'"0x10"',
    "eth_getBalance": b'"0xde0b6b3a7640000"',
    "eth_getBlockByNumber": (
        b'{"number":"0x0","hash":"%s","timestamp":"0x5"}' % GENESIS_HASH.encode()
    ),
    "info.getNetworkID": b'{"networkID":"5"}',
    "platform.getHeight": b'{"height":"16"}',
    "avm.getHeight": b'{"height":"16"}',
    "platform.getTxStatus": b'{"status":"Committed"}',
    "eth_subscribe": b'"%s"' % SUBSCRIPTION.encode(),
}
# As long as the head of a real block.
_BLOOM = "0x" + "00" * 256


class Call(msgspec.Struct):
    """One JSON-RPC request."""

    method: str
    id: msgspec.Raw


_CALLS = msgspec.json.Decoder(Call | list[Call])


def respond(body: bytes | str) -> bytes:
    """Return the body that answers a call or a batch."""
    calls = _CALLS.decode(body)
    if isinstance(calls, list):
        return b"[" + b",".join(map(_call_reply, calls)) + b"]"
    return _call_reply(calls)


def _call_reply(call: Call) -> bytes:
    result = _RESULTS.get(call.method, b"null")
    return b'{"jsonrpc":"2.0","id":%s,"result":%s}' % (bytes(call.id), result)


class HttpConnection(asyncio.Protocol):
    """One client of a node: requests one after another, by HTTP.

    respond: returns the status line and the body of the response to a path and a body.
    """

    def __init__(self, respond: Callable[[bytes, bytes], tuple[bytes, bytes]]) -> None:
        self._respond = respond
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport of the responses."""
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        """Answer every complete request."""
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end]
            body_end = end + 4 + _content_length(head)
            if len(self._buffer) < body_end:
                return
            body, self._buffer = self._buffer[end + 4 : body_end], self._buffer[body_end:]
            status, reply = self._respond(head.split(b" ", 2)[1], body)
            self._transport.writelines([_HEAD % (status, len(reply)), reply])


def _content_length(head: bytes) -> int:
    at = head.lower().find(b"content-length:")
    return 0 if at < 0 else int(head[at + 15 :].split(b"\r\n", 1)[0])


class HeadPublisher:
    """The WebSocket clients.

    Each head carries the moment at which it is sent (CLOCK_MONOTONIC, ns) in `extraData`.
    """

    def __init__(self) -> None:
        self._sockets: set[web.WebSocketResponse] = set()

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        """Answer calls on one WebSocket, until it ends."""
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self._sockets.add(socket)
        try:
            async for message in socket:
                if message.type is WSMsgType.TEXT:
                    await socket.send_str(respond(message.data).decode())
        finally:
            self._sockets.discard(socket)
        return socket

    async def publish(self, request: web.Request) -> web.Response:
        """Send a new head to all clients."""
        for socket in list(self._sockets):
            moment = f"{time.monotonic_ns():020d}"
            head = f'{{"number":"0x10","logsBloom":"{_BLOOM}","extraData":"{moment}"}}'
            params = f'{{"subscription":"{SUBSCRIPTION}","result":{head}}}'
            await socket.send_str(
                f'{{"jsonrpc":"2.0","method":"eth_subscription","params":{params}}}'
            )
        return web.Response()


async def serve() -> None:
    """Answer until standard input ends."""
    loop = asyncio.get_running_loop()
    calls = await loop.create_server(
        lambda: HttpConnection(lambda _, body: (OK, respond(body))),
        "127.0.0.1",
        0,
        backlog=2_048,
    )
    publisher = HeadPublisher()
    app = web.Application()
    app.router.add_get("/ws", publisher.serve)
    app.router.add_post("/publish", publisher.publish)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=2_048)
    await site.start()
    ports = calls.sockets[0].getsockname()[1], runner.addresses[0][1]
    print(f"rpc=http://127.0.0.1:{ports[0]} ws=http://127.0.0.1:{ports[1]}", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    uvloop.run(serve())
