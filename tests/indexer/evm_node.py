"""A node of one EVM chain on loopback: HTTP, batches and WebSockets, with what real nodes lack and
hostile ones do.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import msgspec
from aiohttp import WSMsgType, web

from tests.indexer.evm_chains import ServedChain
from warpseal_simnet.listener import reserve_port

UNFINALIZED: Final = (-32000, "cannot query unfinalized data")
LENGTH_MISMATCH: Final = (-32000, "receipts length mismatch: 1 vs 2")
MISSING_STATE: Final = (-32000, "missing trie node 12ab (path ) state 0x12ab is not available")
# Of the C-Chain with ACP-194. No chain here has it, so that nothing can depend on it.
NO_PENDING_STATE: Final = (-32000, "state not available for pending block")
REVERTED: Final = (3, "execution reverted")
_SUBSCRIPTION: Final = "0xcd0c3e8af590364c09d0fa6a1210faf5"
_NULL: Final = b"null"


class Refused(Exception):
    """A JSON-RPC error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class BatchLimit(Enum):
    """How a node refuses a batch with more than `most_in_batch` calls.

    RESPONSE: the calls beyond it get -32003, as geth's limit of bytes.
    REQUESTS: -32600 for the whole, as geth's limit of calls.
    HTTP: status 413.
    NONE: nothing but single calls is understood.
    """

    RESPONSE = "response"
    REQUESTS = "requests"
    HTTP = "http"
    NONE = "none"


class Call(msgspec.Struct):
    """One JSON-RPC request."""

    method: str
    id: msgspec.Raw = msgspec.Raw(b"null")
    params: list[Any] = []


_CALLS: Final = msgspec.json.Decoder(Call | list[Call])


@dataclass
class EvmReplayNode:
    """One node of a chain. Fields may be changed while it serves.

    tip: height of its newest block; None: the newest block of the chain.
    first, first_receipts: lowest heights of blocks and of receipts, as after a state sync or when
        pruned; the node returns null below them. The genesis is always there.
    tip_receipts: highest block with receipts.
    is_async: whether the node returns null for blocks above the tip, as the C-Chain after Helicon,
        or else -32000.
    has_block_receipts: whether it knows eth_getBlockReceipts.
    first_trace: lowest height that it traces, None: it has no debug API; has_genesis_state: it also
        traces block 1, as every pruned node.
    most_in_batch, batch_limit: see BatchLimit.
    busy: number of next requests that get 429, with `retry_after`.
    delay_s: delay of each response.
    is_down: requests get 503.
    is_endless: responses never end.
    forbids: methods that get 403, as gateways answer what a key may not call.
    respond: sends another response to a request, whose body it gets.
    headers, receipts: other headers and receipts by height.
    replies: result, or JSON-RPC error as (code, message), by method.
    call: result of eth_call(address, data, block) as bytes; None: it reverts.
    reserved: keeps the port while the node is not served.
    """

    chain: ServedChain
    tip: int | None = None
    first: int = 0
    first_receipts: int = 0
    tip_receipts: int | None = None
    is_async: bool = False
    has_block_receipts: bool = True
    first_trace: int | None = None
    has_genesis_state: bool = False
    most_in_batch: int = 1_000
    batch_limit: BatchLimit = BatchLimit.REQUESTS
    busy: int = 0
    retry_after: str = "0"
    delay_s: float = 0.0
    is_down: bool = False
    is_endless: bool = False
    forbids: frozenset[str] = frozenset()
    respond: Callable[[web.Request, bytes], Awaitable[web.StreamResponse]] | None = None
    headers: dict[int, bytes] = field(default_factory=dict)
    receipts: dict[int, bytes] = field(default_factory=dict)
    replies: dict[str, Any] = field(default_factory=dict)
    call: Callable[[bytes, bytes, Any], bytes | None] = lambda to, data, block: None
    url: str = ""
    requests: int = 0
    call_counts: Counter[str] = field(default_factory=Counter)
    heights: Counter[int] = field(default_factory=Counter)
    batch_sizes: list[int] = field(default_factory=list)
    reserved: socket.socket | None = None
    _tx_places: dict[str, tuple[int, int]] = field(default_factory=dict)
    _sockets: set[web.WebSocketResponse] = field(default_factory=set)

    @property
    def ws_url(self) -> str:
        """Return the URL of its WebSockets."""
        return self.url.replace("http", "ws", 1)

    @property
    def height(self) -> int:
        """Return the height of its newest block."""
        return self.chain.tip if self.tip is None else min(self.tip, self.chain.tip)

    def reply_to(self, body: bytes | str) -> bytes:
        """Return the JSON that answers a call or a batch."""
        calls = _CALLS.decode(body)
        if isinstance(calls, Call):
            return self._call_reply(calls)
        self.batch_sizes.append(len(calls))
        if len(calls) > self.most_in_batch:
            if self.batch_limit is BatchLimit.HTTP:
                raise web.HTTPRequestEntityTooLarge(self.most_in_batch, len(calls))
            if self.batch_limit is not BatchLimit.RESPONSE:
                return _error(_NULL, -32600, "batch too large")
        elif self.batch_limit is BatchLimit.NONE:
            return _error(_NULL, -32600, "invalid request")
        replies = [self._call_reply(call) for call in calls[: self.most_in_batch]]
        for call in calls[self.most_in_batch :]:
            replies.append(_error(bytes(call.id), -32003, "response too large"))
        return b"[" + b",".join(replies) + b"]"

    async def add_to_tip(self, count: int = 1) -> None:
        """Have more blocks of the chain, and send their headers to the subscribers."""
        for _ in range(count):
            self.tip = self.height + 1
            header = self.chain.headers[self.tip].decode()
            params = f'{{"subscription":"{_SUBSCRIPTION}","result":{header}}}'
            for client in list(self._sockets):
                await client.send_str(
                    f'{{"jsonrpc":"2.0","method":"eth_subscription","params":{params}}}'
                )

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one HTTP request, or serve one WebSocket."""
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return await self._serve_socket(request)
        if self.is_down:
            return web.Response(status=503)
        if self.busy:
            self.busy -= 1
            return web.Response(status=429, headers={"Retry-After": self.retry_after})
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        body = await request.read()
        self.requests += 1
        if self.is_endless:
            return await _send_forever(request)
        if any(method.encode() in body for method in self.forbids):
            return web.Response(status=403, text="<html>forbidden</html>", content_type="text/html")
        if self.respond is not None:
            return await self.respond(request, body)
        return web.Response(body=self.reply_to(body), content_type="application/json")

    async def _serve_socket(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        try:
            async for message in socket:
                if message.type is WSMsgType.TEXT:
                    await socket.send_str(self.reply_to(message.data).decode())
                    if '"eth_subscribe"' in message.data:
                        self._sockets.add(socket)
        finally:
            self._sockets.discard(socket)
        return socket

    def _call_reply(self, call: Call) -> bytes:
        self.call_counts[call.method] += 1
        try:
            return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (
                bytes(call.id),
                self._result(call.method, call.params),
            )
        except Refused as error:
            return _error(bytes(call.id), error.code, error.message)

    def _result(self, method: str, params: list[Any]) -> bytes:
        if method in self.replies:
            if isinstance(reply := self.replies[method], tuple):
                raise Refused(*reply)
            return json.dumps(reply).encode()
        match method:
            case "eth_getBlockByNumber":
                return self._header(self._number(params[0]))
            case "eth_getBlockReceipts" if self.has_block_receipts:
                return self._block_receipts(self._number(params[0]))
            case "eth_getTransactionReceipt":
                return self._tx_receipt(params[0])
            case "eth_getBlockTransactionCountByNumber":
                header = self._header(self._number(params[0]))
                return (
                    _NULL if header == _NULL else b'"%#x"' % len(json.loads(header)["transactions"])
                )
            case "eth_getBlockByHash":
                is_indexed = params[0] in self.chain.hashes
                return self._header(self.chain.hashes.index(params[0])) if is_indexed else _NULL
            case "eth_blockNumber":
                return b'"%#x"' % self.height
            case "eth_chainId":
                return b'"%#x"' % self.chain.evm_chain_id
            case "net_version":
                return b'"%d"' % self.chain.evm_chain_id
            case "eth_syncing":
                return b"false"
            case "eth_subscribe":
                return b'"%s"' % _SUBSCRIPTION.encode()
            case "eth_getCode":
                return b'"0x"'
            case "eth_call":
                return self._call(params)
            case "debug_traceBlockByNumber" if self.first_trace is not None:
                return self._trace(self._number(params[0]))
        raise Refused(-32601, f"the method {method} does not exist/is not available")

    def _number(self, block: str) -> int:
        if block == "pending":
            raise Refused(*NO_PENDING_STATE)
        if block in ("latest", "finalized", "safe"):
            return self.height
        return 0 if block == "earliest" else int(block, 16)

    def _header(self, number: int) -> bytes:
        self.heights[number] += 1
        if number > self.height:
            if self.is_async:
                return _NULL
            raise Refused(*UNFINALIZED)
        if 0 < number < self.first:
            return _NULL
        return self.headers.get(number, self.chain.headers[number])

    def _block_receipts(self, number: int) -> bytes:
        if number > self.height and not self.is_async:
            raise Refused(*UNFINALIZED)
        if number > self.height or 0 < number < max(self.first, self.first_receipts):
            return _NULL
        if self.tip_receipts is not None and number > self.tip_receipts:
            return _NULL
        return self.receipts.get(number, self.chain.receipts[number])

    def _tx_receipt(self, tx_hash: str) -> bytes:
        if not self._tx_places:
            for height, header in enumerate(self.chain.headers):
                for index, listed_hash in enumerate(json.loads(header)["transactions"]):
                    self._tx_places[listed_hash] = height, index
        if tx_hash not in self._tx_places:
            return _NULL
        number, index = self._tx_places[tx_hash]
        try:
            receipts = msgspec.json.decode(
                self._block_receipts(number), type=list[msgspec.Raw] | None
            )
        except Refused:
            return _NULL
        return _NULL if receipts is None else bytes(receipts[index])

    def _trace(self, number: int) -> bytes:
        assert self.first_trace is not None
        is_pruned = number < self.first_trace and not (self.has_genesis_state and number == 1)
        if is_pruned or number > self.height:
            raise Refused(*MISSING_STATE)
        return self.chain.traces.get(number, b"[]")

    def _call(self, params: list[Any]) -> bytes:
        call = params[0]
        data = bytes.fromhex((call.get("data") or call.get("input") or "0x")[2:])
        block = params[1] if len(params) > 1 else "latest"
        if block == "pending":
            raise Refused(*NO_PENDING_STATE)
        result = self.call(bytes.fromhex(call["to"][2:]), data, block)
        if result is None:
            raise Refused(*REVERTED)
        return b'"0x%b"' % result.hex().encode()


def _error(call_id: bytes, code: int, message: str) -> bytes:
    error = json.dumps({"code": code, "message": message}).encode()
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (call_id, error)


async def _send_forever(request: web.Request) -> web.StreamResponse:
    """Send a response whose JSON never ends, until the client hangs up."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    await response.write(b'[{"jsonrpc":"2.0","id":0,"result":"')
    while True:
        await response.write(b"0" * 65_536)


@asynccontextmanager
async def serving_evm(*nodes: EvmReplayNode) -> AsyncIterator[tuple[EvmReplayNode, ...]]:
    """Serve each node at its `url`, on a port of its own; a node that was served before gets its
    port back.
    """
    runners = []
    try:
        for node in nodes:
            app = web.Application(client_max_size=2**24)
            app.router.add_route("*", "/{path:.*}", node.handle)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
            runners.append(runner)
            await runner.setup()
            port = int(node.url.rpartition(":")[2].split("/")[0]) if node.url else 0
            site = web.TCPSite(runner, "127.0.0.1", port, reuse_port=True)
            await site.start()
            node.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            node.reserved = node.reserved or reserve_port(runner.addresses[0][1])
        yield nodes
    finally:
        for runner in runners:
            await runner.cleanup()
