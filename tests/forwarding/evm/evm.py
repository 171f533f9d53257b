"""EVM nodes for the tests: a small JSON-RPC server on a real socket with configured replies, and
TCP proxies for it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from io import StringIO
from typing import Any

import msgspec
from aiohttp import WSMsgType, web

from tests import paths
from tests.eventually import until
from tests.node.recorded_node import serve_app
from warpseal.forwarding.evm.chain_config import ChainConfig, chain_config
from warpseal.forwarding.evm.forwarder import (
    CallGuard,
    EvmForwarder,
    ForwardedChain,
    ForwardingObserver,
    forward_chain,
)
from warpseal.forwarding.settings import EvmRpcSettings
from warpseal.node.info import decode_upgrades
from warpseal.ops.logs.loggers import DaemonLoggers
from warpseal.upstream.endpoint import EvmChain, NodeEndpoint
from warpseal.upstream.jsonrpc import RpcCall, RpcResponse
from warpseal.upstream.node import open_sessions
from warpseal.warp.ids import ChainID

RECORDED = paths.LOCALNET / "evm-chains.jsonl"
CHAIN = ChainID(bytes([7]) * 32)
GENESIS_HASH = "0x" + "11" * 32
SETTINGS = EvmRpcSettings(
    connect_timeout_s=20.0, call_timeout_s=10.0, poll_s=0.05, retry_after_s=0.2
)
HALTS = object()
"""The result that makes a node drop the connection after it has read the call."""
HANGS = object()
"""The result that makes a node answer only when its client has given up."""


@cache
def recorded() -> tuple[dict[str, Any], ...]:
    return tuple(json.loads(line) for line in RECORDED.read_text().splitlines())


def exchanges(chain: str, *methods: str) -> list[dict[str, Any]]:
    return [row for row in recorded() if row.get("chain") == chain and row.get("method") in methods]


def recorded_genesis(chain: str) -> bytes:
    row = next(row for row in recorded() if row.get("chain") == chain and "genesis" in row)
    return json.dumps(row["genesis"]).encode()


def upgrade_times() -> Mapping[str, int]:
    row = next(row for row in recorded() if row.get("method") == "info.upgrades")
    return decode_upgrades(json.dumps(row["result"]).encode()).times_s


def recorded_config(chain: str, upgrades: object = None) -> ChainConfig:
    return chain_config(
        recorded_genesis(chain), json.dumps(upgrades or {}).encode(), upgrade_times()
    )


Rule = Callable[[str, list[Any]], Any]
"""Returns a result, or raises Refusal."""


class Refusal(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message}


def missing(method: str) -> Refusal:
    return Refusal(-32601, f"the method {method} does not exist/is not available")


def replay(chain: str, *without: str) -> Rule:
    """HttpReply as the recorded node did, as if it had not the methods `without`."""
    rows = {
        (row["method"], json.dumps(row["params"])): row
        for row in recorded()
        if row.get("params") is not None and row.get("chain") == chain
    }
    blocks = [row["result"] for row in exchanges(chain, "eth_getBlockByNumber") if "result" in row]
    by_number = {block["number"]: block for block in blocks}
    by_hash = {block["hash"]: block for block in blocks}
    head = max(blocks, key=lambda block: int(block["number"], 16))

    def result_of(method: str, params: list[Any]) -> Any:
        if method in without:
            raise missing(method)
        if method == "eth_getBlockByNumber":
            if params[0] != "latest" and int(params[0], 16) > int(head["number"], 16):
                raise Refusal(-32000, "cannot query unfinalized data")
            return head if params[0] == "latest" else by_number[params[0]]
        if method == "eth_getBlockByHash":
            return by_hash.get(params[0])
        row = rows.get((method, json.dumps(params)))
        if row is None:
            raise missing(method)
        if "error" in row:
            raise Refusal(row["error"]["code"], row["error"]["message"])
        return row["result"]

    return result_of


@dataclass
class Node:
    """A node that records calls.

    replies: results by method, instead of the defaults; rule: computes other results.

    forbids: methods whose single calls have status 403.
    socket_status: HTTP status by which the node refuses WebSockets.
    """

    replies: dict[str, Any] = field(default_factory=dict)
    rule: Rule | None = None
    calls: list[tuple[str, list[Any]]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    status: int = 200
    forbids: frozenset[str] = frozenset()
    socket_status: int | None = None
    url: str = ""
    port: int = 0
    sockets: list[web.WebSocketResponse] = field(default_factory=list)

    def count(self, method: str) -> int:
        return sum(called == method for called, _ in self.calls)

    def result(self, method: str, params: list[Any]) -> Any:
        self.calls.append((method, params))
        defaults = {
            "eth_chainId": "0x7a69",
            "eth_getBlockByNumber": {"number": "0x0", "hash": GENESIS_HASH, "timestamp": "0x5"},
            "eth_blockNumber": "0x10",
        }
        if method in self.replies:
            reply = self.replies[method]
            if isinstance(reply, Refusal):
                raise reply
            return reply
        if self.rule is not None:
            return self.rule(method, params)
        if method in defaults:
            return defaults[method]
        raise missing(method)

    def reply(self, call: Any) -> Any:
        try:
            result = self.result(call["method"], call.get("params") or [])
        except Refusal as refusal:
            return {"jsonrpc": "2.0", "id": call.get("id"), "error": refusal.error}
        return (
            result
            if result in (HALTS, HANGS)
            else {"jsonrpc": "2.0", "id": call.get("id"), "result": result}
        )

    async def serve_http(self, request: web.Request) -> web.StreamResponse:
        self.headers.append(request.headers)
        body = await request.read()
        self.bodies.append(body)
        if self.status != 200:
            return web.Response(status=self.status, text="not now")
        request_body = json.loads(body)
        if isinstance(request_body, dict) and request_body["method"] in self.forbids:
            return web.Response(status=403, text="forbidden")
        replies = [
            self.reply(call)
            for call in (request_body if isinstance(request_body, list) else [request_body])
        ]
        if HALTS in replies:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if HANGS in replies:
            assert request.transport is not None
            await until(request.transport.is_closing)
            return web.Response()
        replies = [reply for reply in replies if reply["id"] is not None]
        response = replies if isinstance(request_body, list) else (replies[0] if replies else None)
        return web.Response(
            body=json.dumps(response).encode() + b"\n" if response else b"",
            content_type="application/json",
        )

    async def serve_socket(self, request: web.Request) -> web.StreamResponse:
        if self.socket_status is not None:
            return web.Response(status=self.socket_status)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.headers.append(request.headers)
        self.sockets.append(socket)
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                request_body = json.loads(message.data)
                replies = [
                    self.reply(call)
                    for call in (request_body if isinstance(request_body, list) else [request_body])
                ]
                response = replies if isinstance(request_body, list) else replies[0]
                await socket.send_str(msgspec.json.encode(response).decode())
        return socket

    async def events(self, subscription: str, result: object, count: int) -> None:
        """Publish an event so many times, or until a connection ends."""
        with suppress(ConnectionError):
            for _ in range(count):
                await self.event(subscription, result)

    async def event(self, subscription: str, result: object) -> None:
        """Publish an event on all sockets."""
        params = {"subscription": subscription, "result": result}
        for socket in self.sockets:
            await socket.send_str(
                json.dumps({"jsonrpc": "2.0", "method": "eth_subscription", "params": params})
            )


@contextmanager
def capture_all_logs() -> Iterator[StringIO]:
    """Yield the log at the most verbose level, as the daemon writes it; restore the loggers
    afterwards.
    """
    stream, root = StringIO(), logging.getLogger()
    handlers, root_level = root.handlers, root.level
    levels = {name: logging.getLogger(name).level for name in root.manager.loggerDict}
    DaemonLoggers("verbo").attach(stream)
    try:
        yield stream
    finally:
        root.handlers = handlers
        root.setLevel(root_level)
        for name in root.manager.loggerDict:
            logging.getLogger(name).setLevel(levels.get(name, logging.NOTSET))


@asynccontextmanager
async def serve_node(node: Node) -> AsyncIterator[Node]:
    """Serve a node: HTTP at /rpc, WebSockets at /ws."""
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/rpc", node.serve_http)
    app.router.add_get("/ws", node.serve_socket)
    async with serve_app(app) as url:
        node.port = int(url.rpartition(":")[2])
        node.url = f"{url}/rpc"
        yield node


@dataclass
class TcpProxy:
    """A TCP proxy in front of a server.

    is_cut: it ends every connection and forwards nothing.
    """

    port: int = 0
    is_cut: bool = False
    cuts_replies: bool = False
    accepted: int = 0
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/rpc"

    def cut(self) -> None:
        """End all connections, and every new one."""
        self.is_cut = True
        for writer in self.writers:
            writer.transport.abort()


@asynccontextmanager
async def open_proxy(port: int) -> AsyncIterator[TcpProxy]:
    """Open a proxy for a server on this machine."""
    proxy = TcpProxy()

    async def pump(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_reply: bool
    ) -> None:
        try:
            while data := await reader.read(65_536):
                if is_reply and proxy.cuts_replies:
                    break
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        proxy.accepted += 1
        if proxy.is_cut:
            writer.transport.abort()
            return
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port)
        proxy.writers += [writer, up_writer]
        up = asyncio.create_task(pump(reader, up_writer, is_reply=False))
        await pump(up_reader, writer, is_reply=True)
        writer.transport.abort()
        await up

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.cut()


@asynccontextmanager
async def open_chain(
    *urls: str,
    config: ChainConfig | None = None,
    settings: EvmRpcSettings = SETTINGS,
    observer: ForwardingObserver | None = None,
    ws: tuple[str, ...] = (),
    deny: tuple[str, ...] = (),
    guard: CallGuard | None = None,
) -> AsyncIterator[ForwardedChain]:
    """Forward a chain to these nodes."""

    async def configured() -> ChainConfig | None:
        return config

    chain = EvmChain(
        CHAIN, tuple(map(NodeEndpoint, urls)), tuple(map(NodeEndpoint, ws)), deny_methods=deny
    )
    async with open_sessions() as sessions:
        yield forward_chain(chain, sessions, settings, configured, observer, guard)


def call(method: str, *params: Any) -> RpcCall:
    return RpcCall(method, msgspec.Raw(json.dumps(params).encode()))


def call_outcome(response: RpcResponse) -> Any:
    """Return a result, or code and message of an error."""
    if response.error is not None:
        return response.error.code, response.error.message
    return json.loads(bytes(response.result or b"null"))


async def call_in_batch(forwarder: EvmForwarder, method: str, *params: Any) -> Any:
    """Return the reply to one call of a batch."""
    return call_outcome((await forwarder.forward_batch([call(method, *params)]))[0])
