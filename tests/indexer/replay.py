"""A node on loopback that answers from the recordings of the local network: blocks, containers,
balances, UTXOs.
"""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from aiohttp import web

from tests.chains.exchanges import lines, results
from tests.chains.p_vectors import checked_hex, genesis_bytes, recorded
from tests.ledger.recorded import p_blocks, x_blocks
from warpseal.chains.p_blocks import parse_p_genesis
from warpseal_simnet.listener import reserve_port

Message = dict[str, Any]
# Until then the genesis locks its stakeable outputs: 2026-11-28.
_LOCKED_UNTIL_S: Final = 1_795_831_359


class Refused(Exception):
    """A JSON-RPC error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass
class Chains:
    """The data of a node: blocks by height, and containers in the order of the index API, by its
    path.
    """

    p: list[bytes]
    x: list[bytes]
    c: list[Message]
    containers: dict[str, list[Message]] = field(default_factory=dict)
    x_txs: dict[str, str] = field(default_factory=dict)


@cache
def recorded_chains() -> Chains:
    """Return the recorded network's chains."""
    p = [parse_p_genesis(genesis_bytes("localnet")).block.raw, *(block.raw for block in p_blocks())]
    x = [block.raw for block in x_blocks()]
    reply = (call for call in lines("index-node.jsonl") if call["method"] == "eth_getBlockByNumber")
    c = sorted((call["result"] for call in reply), key=lambda block: int(block["number"], 16))
    containers = {
        call["path"].removeprefix("/ext/index/"): call["result"]["containers"]
        for call in lines("index.jsonl")
    }
    txs = {
        params["txID"]: result["tx"]
        for params, result in results("avm.jsonl", "avm.getTx", encoding="hex")
    }
    return Chains(p, x, c, containers, txs)


@dataclass
class ReplayNode:
    """One node.

    tips: the newest height of the node by chain; None: all blocks.
    first: the lowest height of the node.
    has_index: whether the node has the index API.
    replies: other replies by method: a value, an error, or a function of the params.
    busy: number of next requests that get 429.
    call_counts: calls by method.
    replaced: other blocks, by chain and height.
    reserved: socket that keeps the port while the node is not served.
    """

    chains: Chains = field(default_factory=recorded_chains)
    network_id: int = 88888
    has_index: bool = True
    tips: dict[str, int] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)
    busy: int = 0
    most_in_batch: int = 1000
    replaced: dict[tuple[str, int], bytes] = field(default_factory=dict)
    call_counts: Counter[str] = field(default_factory=Counter)
    heights: Counter[tuple[str, int]] = field(default_factory=Counter)
    bootstrapped: bool = True
    url: str = ""
    replies: dict[str, Any] = field(default_factory=dict)
    reserved: socket.socket | None = None

    def tip(self, chain: str) -> int:
        """Return the height of the last block that the node has."""
        counts = {"P": len(self.chains.p), "X": len(self.chains.x), "C": len(self.chains.c)}
        return self.tips.get(chain, counts[chain] - 1)

    def has(self, chain: str, height: int) -> bool:
        """Return whether the node has a block."""
        return self.first.get(chain, 0) <= height <= self.tip(chain)

    def block(self, chain: str, height: int) -> bytes:
        """Return the bytes of a block of the P- or X-Chain."""
        self.heights[chain, height] += 1
        if not self.has(chain, height):
            raise Refused(-32000, f"couldn't get block at height {height}: not found")
        blocks = self.chains.p if chain == "P" else self.chains.x
        return self.replaced.get((chain, height), blocks[min(height, len(blocks) - 1)])

    async def handle(self, request: web.Request) -> web.Response:
        """Answer one request, or a batch of the C-Chain."""
        if self.busy:
            self.busy -= 1
            return web.Response(status=429, headers={"Retry-After": "0"})
        body = await request.json()
        if isinstance(body, list):
            if len(body) > self.most_in_batch:
                return web.json_response(
                    {
                        "jsonrpc": "2.0",
                        "id": None,
                        "error": {"code": -32600, "message": "batch too large"},
                    }
                )
            return web.json_response([self._reply(request.path, call) for call in body])
        if request.path.startswith("/ext/index/") and not self.has_index:
            return web.Response(status=404)
        return web.json_response(self._reply(request.path, body))

    def _reply(self, path: str, call: Message) -> Message:
        method, params = call["method"], call.get("params") or {}
        self.call_counts[method] += 1
        head = {"jsonrpc": "2.0", "id": call["id"]}
        try:
            return head | {"result": self._result(path, method, params)}
        except Refused as error:
            return head | {"error": {"code": error.code, "message": error.message}}

    def _result(self, path: str, method: str, params: Any) -> Any:
        if method in self.replies:
            reply = self.replies[method]
            if isinstance(reply, Refused):
                raise reply
            return reply(params) if callable(reply) else reply
        if method.startswith("index."):
            return self._index(path.removeprefix("/ext/index/"), method, params)
        match method:
            case "info.getNetworkID":
                return {"networkID": str(self.network_id)}
            case "info.isBootstrapped":
                return {"isBootstrapped": self.bootstrapped}
            case "platform.getHeight":
                return {"height": str(self.tip("P"))}
            case "avm.getHeight":
                return {"height": str(self.tip("X"))}
            case "eth_blockNumber":
                return hex(self.tip("C"))
            case "platform.getBlockByHeight" | "avm.getBlockByHeight":
                chain = "P" if method.startswith("platform") else "X"
                return {
                    "block": checked_hex(self.block(chain, int(params["height"]))),
                    "encoding": "hex",
                }
            case "eth_getBlockByNumber":
                number = int(params[0], 16)
                self.heights["C", number] += 1
                return self.chains.c[number] if self.has("C", number) else None
            case "avm.getTx":
                if params["txID"] not in self.chains.x_txs:
                    raise Refused(-32000, "not found")
                return {"tx": self.chains.x_txs[params["txID"]], "encoding": "hex"}
            case "platform.getBalance":
                return _balance_at(_recorded_result(method, params), time.time())
        return _recorded_result(method, params)

    def _index(self, stream: str, method: str, params: Message) -> Any:
        chain = stream[0]
        containers = self.chains.containers.get(stream, [])
        if stream.endswith("block"):
            containers = containers[: max(0, self.tip(chain))]
        if not containers:
            raise Refused(-32000, "no containers have been accepted")
        if method == "index.getLastAccepted":
            return containers[-1]
        if method != "index.getContainerRange":
            raise Refused(-32000, f"rpc: can't find method {method!r}")
        start, count = int(params["startIndex"]), int(params["numToFetch"])
        if count > 1024 or start >= len(containers):
            raise Refused(
                -32000, f"start index ({start}) > last accepted index ({len(containers) - 1})"
            )
        for container in containers[start : start + count]:
            self.heights[chain, int(container["index"]) + 1] += 1
        return {"containers": containers[start : start + count]}


@asynccontextmanager
async def serving(node: ReplayNode) -> AsyncIterator[ReplayNode]:
    """Serve a node at its `url`, whose port it keeps afterwards."""
    app = web.Application(client_max_size=2**24)
    app.router.add_post("/{path:.*}", node.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    port = int(node.url.rpartition(":")[2]) if node.url else 0
    site = web.TCPSite(runner, "127.0.0.1", port, reuse_port=True)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    node.url = f"http://127.0.0.1:{port}"
    node.reserved = node.reserved or reserve_port(port)
    try:
        yield node
    finally:
        await runner.cleanup()


@cache
def _exchanges() -> dict[str, Any]:
    reply: dict[str, Any] = {}
    names = ("info", "index-node", "ledger", "platform", "l1", "avm", "genesis-txs")
    for name in names:
        for call in lines(f"{name}.jsonl"):
            reply.setdefault(_key(call["method"], call["params"]), call)
    for method in ("getUTXOs", "getTx"):
        for params, result in recorded(method, "hex"):
            reply.setdefault(_key(f"platform.{method}", params), {"result": result})
    return reply


def _key(method: str, params: Any) -> str:
    if isinstance(params, dict):
        params = {name: value for name, value in params.items() if value is not False}
    return json.dumps([method, params], sort_keys=True)


def _balance_at(recorded_balance: Message, unix_s: float) -> Message:
    """Return a balance as a node reports it at a time: what the genesis locked may be unlocked
    since the recording.
    """
    if unix_s < _LOCKED_UNTIL_S:
        return recorded_balance
    locked, unlocked = recorded_balance["lockedStakeables"], recorded_balance["unlockeds"]
    return recorded_balance | {
        "unlocked": str(
            int(recorded_balance["unlocked"]) + int(recorded_balance["lockedStakeable"])
        ),
        "lockedStakeable": "0",
        "unlockeds": unlocked
        | {asset: str(int(unlocked.get(asset, 0)) + int(locked[asset])) for asset in locked},
        "lockedStakeables": {},
    }


def _recorded_result(method: str, params: Any) -> Any:
    call = _exchanges().get(_key(method, params))
    if call is None:
        raise Refused(-32000, f"rpc: can't find method {method!r}")
    if "error" in call:
        raise Refused(call["error"]["code"], call["error"]["message"])
    return call["result"]
