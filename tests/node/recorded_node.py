"""A loopback HTTP node that answers JSON-RPC from recordings, or as a test configures it."""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from tests import paths
from warpseal.node.settings import NodeSettings
from warpseal.node.upstream import Upstream, connect_upstream
from warpseal.upstream.endpoint import NodeEndpoint
from warpseal.upstream.node import CallObserver, open_session
from warpseal.warp.ids import ChainID, NodeID, SubnetID, parse_id, parse_node_id
from warpseal_simnet.listener import reserve_port

RECORDINGS = paths.LOCALNET
NETWORK_ID = 88_888
L1 = SubnetID(parse_id("2XvG1bxvmQNASMVQXBFCsuXScDv3VDCMee6MaLNfDkkmvrjvy5"))
L1_CHAIN = ChainID(parse_id("vs2wd1aY1xQNEe22GQGQQBssHsZwjYJSUCC9bq65eCX4KAHBj"))
PERMISSIONED = SubnetID(parse_id("aYNnvyVdUEhfDP5T3c8WKNfxHAkzk5yweAoTYk5YnW6J4wREb"))
PERMISSIONED_CHAIN = ChainID(parse_id("2BE97L3n6gJdGkoMVywr939LzNQkayRD8im3w9MZDq7DJpKQBN"))
C_CHAIN = ChainID(parse_id("Z3JEMq6QeeFWrpb2AdkQCj92FrArAqN8Y9bTyWinz4VsD8AZ7"))
NO_CHAIN = ChainID(b"\x77" * 32)
_reserved: list[socket.socket] = []

Params = Mapping[str, Any]
ReplyOf = Callable[[Params], Awaitable[Any] | Any]


class RefusedCall(Exception):
    """A JSON-RPC error that a test wants."""

    def __init__(self, message: str, code: int = -32_000) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class RecordedNode:
    """A node that answers JSON-RPC from the recordings of a local network.

    replies: replies by method in place of the recorded ones: a value, or a function of the params,
        which may be async. A reply that is a web.Response is sent as it is.
    paths: beginnings of the paths that are served; others are 404.
    """

    replies: dict[str, Any] = field(default_factory=dict)
    paths: tuple[str, ...] = ("/ext/P", "/ext/bc/P", "/ext/info", "/ext/bc/")
    calls: Counter[str] = field(default_factory=Counter)
    seen: list[tuple[str, str, Params]] = field(default_factory=list)
    requests: list[Mapping[str, str]] = field(default_factory=list)
    prefix: str = ""
    uri: str = ""

    async def serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        path = request.path.removeprefix(self.prefix)
        if not path.startswith(self.paths) or not request.path.startswith(self.prefix):
            return web.Response(status=404, text="404 page not found\n")
        method, params = body["method"], body["params"]
        if method.startswith("warp_") or (isinstance(params, list) and "pending" in params):
            # ACP-194 deprecates both on the C-Chain.
            raise AssertionError(f"{method} {params}")
        self.calls[method] += 1
        self.seen.append((path, method, params))
        self.requests.append({**request.headers, **request.query, "path": request.path})
        return await self._respond(path, method, params)

    async def _respond(self, path: str, method: str, params: Params) -> web.StreamResponse:
        try:
            reply = self.replies.get(method, lambda params: _recorded(path, method, params))
            result = reply(params) if callable(reply) else reply
            if isinstance(result, Awaitable):
                result = await result
        except RefusedCall as refusal:
            error = {"code": refusal.code, "message": str(refusal), "data": None}
            return web.json_response({"jsonrpc": "2.0", "error": error, "id": 1})
        except LookupError:
            return web.Response(status=404, text="404 page not found\n")
        if isinstance(result, web.StreamResponse):
            return result
        return web.json_response({"jsonrpc": "2.0", "result": result, "id": 1})


def _recorded(path: str, method: str, params: Params) -> Any:
    if method == "platform.validatedBy":
        return _validated_by(params["blockchainID"])
    if method == "platform.validates":
        chains = [
            chain["id"] for chain in _blockchains() if chain["subnetID"] == params["subnetID"]
        ]
        return {"blockchainIDs": chains}
    for entry in RECORDED:
        if entry["method"] == method and _same(entry, path, params):
            if "error" in entry:
                raise RefusedCall(entry["error"]["message"], entry["error"]["code"])
            return entry["result"]
    raise LookupError(method)


def _same(entry: Mapping[str, Any], path: str, params: Params) -> bool:
    if "/proposervm" in path and entry["path"] != path:
        return False
    if isinstance(entry["params"], list):
        return entry["params"] == list(params)
    return {str(k): str(v) for k, v in entry["params"].items()} == {
        str(k): str(v) for k, v in params.items()
    }


def _validated_by(blockchain_id: str) -> Any:
    # No recording has this call: the reply is in the recorded getBlockchains, the error in the
    # source of the node.
    for chain in _blockchains():
        if chain["id"] == blockchain_id:
            return {"subnetID": chain["subnetID"]}
    raise RefusedCall(f'problem retrieving blockchain "{blockchain_id}": not found')


def _blockchains() -> list[dict[str, str]]:
    return next(
        e["result"]["blockchains"] for e in RECORDED if e["method"] == "platform.getBlockchains"
    )


def _load() -> list[dict[str, Any]]:
    names = (
        "platform.jsonl",
        "info.jsonl",
        "proposervm.jsonl",
        "l1.jsonl",
        "ledger.jsonl",
        "genesis-txs.jsonl",
    )
    return [
        json.loads(line) for name in names for line in (RECORDINGS / name).read_text().splitlines()
    ]


RECORDED = _load()


def recorded_result(method: str, **params: Any) -> Any:
    """Return the recorded result of a call."""
    return _recorded("", method, params)


def node_id(text: str) -> NodeID:
    """Return a node id given without its prefix."""
    return parse_node_id("NodeID-" + text)


@asynccontextmanager
async def serve_app(app: web.Application) -> AsyncIterator[str]:
    """Serve an application on a free port of loopback; yield its URL."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def serve_nodes(*nodes: RecordedNode) -> AsyncIterator[list[str]]:
    """Serve each node on a loopback port; yield their base URLs, which are also their `uri`."""
    async with AsyncExitStack() as stack:
        for node in nodes:
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", node.serve)
            node.uri = await stack.enter_async_context(serve_app(app)) + node.prefix
        yield [node.uri for node in nodes]


def build_settings(*uris: str, **changes: Any) -> NodeSettings:
    """Return settings whose P-Chain and info nodes are the same."""
    endpoints = tuple(NodeEndpoint(uri) for uri in uris)
    return NodeSettings(**{"p_chain_api": endpoints, "info_api": endpoints, **changes})


@asynccontextmanager
async def open_upstream(
    *nodes: RecordedNode, observer: CallObserver | None = None, **changes: Any
) -> AsyncIterator[Upstream]:
    """Serve the nodes and yield clients of them."""
    async with serve_nodes(*nodes) as uris, open_session() as session:
        yield connect(session, build_settings(*uris, **changes), observer)


def connect(
    session: aiohttp.ClientSession, settings: NodeSettings, observer: CallObserver | None = None
) -> Upstream:
    """Return clients with the given settings."""
    return connect_upstream(settings, session, observer=observer)


def closed_port() -> int:
    """Return a port without a listener, which no other process gets before the tests end."""
    reserved = reserve_port(0)
    _reserved.append(reserved)
    return int(reserved.getsockname()[1])


def refusing_uri() -> str:
    """Return the base URL of a port without a listener."""
    return f"http://127.0.0.1:{closed_port()}"
