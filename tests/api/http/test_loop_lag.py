"""No request holds the event loop: its lag is measured in CPU time while hostile requests are
answered.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from threading import Event, Thread
from typing import Any

import pytest
from aiohttp import web

from tests.api.fixtures import KEBAB, SETTINGS, V1, ApiSetup
from tests.api.fixtures import serving as serving_api
from tests.api.node.fixtures import ADMIN, HEALTH
from tests.eventually import TIMEOUT_S
from tests.forwarding.evm.evm import CHAIN, Node, open_chain, serve_node
from tests.forwarding.evm.evm import SETTINGS as FORWARDING
from tests.forwarding.evm.test_endpoint import Admission
from warpseal.api.node.app import NodeInterfaces, switch_paths
from warpseal.api.node.endpoints import NodeIdsParams, ValidatorsEndpoint
from warpseal.api.node.forwarded_routes import ForwardedRoutes
from warpseal.api.node.settings import NodeApiSettings
from warpseal.metrics.registry import Metrics
from warpseal.ops.health.registry import HealthRegistry
from warpseal.ops.settings import HealthSettings
from warpseal.warp.ids import id_text

LIMIT_S = 0.020
# Five times what a loop of so many steps takes, on a machine where that is longer.
_STEPS = 100_000
# Of the turns while a request is answered: a loop that turned without a rest would take most time
# of the test itself.
REST_S = 0.001
CHAIN_PATH = f"/ext/bc/{id_text(CHAIN)}"
RPC, WS = CHAIN_PATH + "/rpc", CHAIN_PATH + "/ws"
MIB = 1_048_576
START = b'{"jsonrpc":"2.0","id":1,"method":"debug_x","params":'


class Lag:
    """The longest time between two turns of an event loop, in CPU seconds of the process."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._loop = asyncio.get_running_loop()

    async def measure(self, start_event: Event | None = None, rest_s: float = 0.0) -> None:
        """Measure until cancelled.

        rest_s: between two turns that are measured; what the loop does then counts.
        """
        before = time.process_time()
        if start_event is not None:
            start_event.set()
        while True:
            try:
                await asyncio.sleep(rest_s)
            finally:
                now = time.process_time()
                self.longest_s, before = max(self.longest_s, now - before), now

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure from another thread during the block; the loop is busy only then."""
        self.longest_s, start_event = 0.0, Event()
        measuring = asyncio.run_coroutine_threadsafe(self.measure(start_event, REST_S), self._loop)
        assert start_event.wait(TIMEOUT_S)
        try:
            yield
        finally:
            measuring.cancel()


class LargeNode(Node):
    """A node that does not parse large calls, which would be counted as lag of the daemon."""

    async def serve_http(self, request: web.Request) -> web.StreamResponse:
        if (request.content_length or 0) < 65_536:
            return await super().serve_http(request)
        await request.read()
        return web.Response(
            body=b'{"jsonrpc":"2.0","id":1,"result":"0x1"}', content_type="application/json"
        )


async def serve(started: Callable[[int, Lag, Callable[[], object]], None]) -> None:
    stopping, lag = asyncio.Event(), Lag()
    async with (
        serve_node(LargeNode()) as node,
        open_chain(node.url, ws=(f"ws://127.0.0.1:{node.port}/ws",)) as chain,
    ):
        node_api = NodeApiSettings(admin_enabled=True)
        interfaces = NodeInterfaces(SETTINGS, node_api, Metrics())
        ForwardedRoutes(interfaces, Admission(), SETTINGS, node_api).add_evm(chain, FORWARDING)
        interfaces.add_health(HealthRegistry(HealthSettings()))
        async with serving_api(switch_paths(interfaces, ApiSetup().app()), SETTINGS) as server:
            loop = asyncio.get_running_loop()
            started(server.port, lag, lambda: loop.call_soon_threadsafe(stopping.set))
            await stopping.wait()


@contextmanager
def served() -> Iterator[tuple[int, Lag]]:
    """Serve all paths in a thread, without the pauses of the garbage collector over the objects of
    all tests.
    """
    running, stalls = Event(), list[Any]()

    def started(*values: object) -> None:
        stalls.extend(values)
        running.set()

    thread = Thread(target=lambda: asyncio.run(serve(started)), daemon=True)
    gc.collect()
    gc.disable()
    thread.start()
    try:
        assert running.wait(TIMEOUT_S)
        port, lag, stop = stalls
        yield port, lag
        stop()
        thread.join(TIMEOUT_S)
    finally:
        gc.enable()


def exchange(port: int, request: bytes, until: bytes = b"") -> bytes:
    """Send bytes and return what comes until the server closes the connection, or until these
    bytes.
    """
    response = b""
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as client:
        sending = Thread(target=lambda: _send(client, request))
        sending.start()
        with suppress(ConnectionError):
            while chunk := client.recv(65_536):
                response += chunk
                if until and until in response:
                    break
        sending.join(TIMEOUT_S)
    return response


def _send(client: socket.socket, request: bytes) -> None:
    with suppress(OSError):
        client.sendall(request)


@cache
def limit_s() -> float:
    """Return the longest processor time for which the loop may be held on this machine."""
    times_s = []
    for _ in range(5):
        before = time.process_time()
        sum(step for step in range(_STEPS))
        times_s.append(time.process_time() - before)
    return max(LIMIT_S, 5 * min(times_s))


def longest_lag(port: int, lag: Lag, request: bytes, until: bytes = b"") -> tuple[float, bytes]:
    """Return the smallest of ten longest lags, since other work of the machine can only add to one,
    and the reply.
    """
    lags, response = [], b""
    for _ in range(10):
        with lag.measured():
            response = exchange(port, request, until)
        lags.append(lag.longest_s)
        if lags[-1] < limit_s():
            break
    return min(lags), response


def post(path: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type:"
        " application/json\r\n"
    )
    return head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body


def get(path: str, *lines: bytes) -> bytes:
    head = f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n".encode()
    return head + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


def hostile_json(size: int) -> dict[str, bytes]:
    """Return bodies of about this size: each takes long if its parts are built, scanned twice or
    removed in turn.
    """
    return {
        "a batch of objects": b"[" + b"{}," * (size // 3 - 1) + b"{}]",
        "a batch of numbers": b"[" + b"0," * (size // 2 - 2) + b"0]",
        "a batch of calls": b"[" + (START + b"[]},") * (size // 60) + START + b"[]}]",
        "a batch of notifications": (
            b"[" + b'{"jsonrpc":"2.0","method":"x"},' * (size // 40) + b"{}]"
        ),
        "lists in params": START + b"[" + b"[]," * (size // 3 - 40) + b"[]]}",
        "texts in params": START + b"[" + b'"",' * (size // 3 - 40) + b'""]}',
        "texts and lists in params": START + b"[" + b'"",[],' * (size // 6 - 40) + b"[]]}",
        "escapes in params": START + b'[[[]],"' + b'\\"[' * (size // 3 - 40) + b'"]}',
        "objects in params": START + b"[{" + b'"a":1,' * (size // 6 - 40) + b'"a":1}]}',
        "nested lists": START + b"[" + (b"[" * 58 + b"]" * 58 + b",") * (size // 117 - 3) + b"1]}",
        "open brackets": b"[" * size,
        "quotes": b'"' * size,
        "fields": b"{" + b'"a":1,' * (size // 6 - 10) + b'"jsonrpc":"2.0"}',
        "fields of different names": (
            b"{" + b",".join(b'"%x":1' % n for n in range(size // 10)) + b"}"
        ),
        "values after the first": START + b"[]}" + b"{}" * (size // 2 - 40),
        "a number after the first": b"{} " + b"1" * (size - 10),
        "blanks": b" " * size,
        "letters that are not ASCII": START + b'["' + b"\xc3\xa9" * (size // 2 - 40) + b'"]}',
        "a long method": b'{"jsonrpc":"2.0","id":1,"method":"' + b"x" * (size - 60) + b'"}',
        "a long id": b'{"jsonrpc":"2.0","id":"' + b"x" * (size - 60) + b'","method":"debug_x"}',
        "a long number as id": (
            b'{"jsonrpc":"2.0","id":' + b"1" * (size - 60) + b',"method":"debug_x"}'
        ),
        "a filter with many arguments": (
            b'{"jsonrpc":"2.0","id":1,"method":"eth_getFilterLogs","params":['
            + b"[]," * (size // 3 - 40)
            + b"[]]}"
        ),
        "a moment with many arguments": (
            b'{"jsonrpc":"2.0","id":1,"method":"eth_getActiveRulesAt","params":['
            + b"[]," * (size // 3 - 40)
            + b"[]]}"
        ),
    }


def test_no_body_holds_the_event_loop() -> None:
    held = {}
    with served() as (port, lag):
        for path, size in (
            (RPC, 5 * MIB),
            (RPC, 65_000),
            (HEALTH, MIB),
            (ADMIN, MIB),
            (KEBAB, MIB // 2),
            (V1, MIB // 2),
        ):
            for name, body in hostile_json(size - 100).items():
                longest_s, response = longest_lag(port, lag, post(path, body))
                assert response.startswith(b"HTTP/1.1 "), (path, name)
                held[f"{name}, {size} bytes at {path}"] = longest_s
    assert {name: longest_s for name, longest_s in held.items() if longest_s > limit_s()} == {}


def test_no_websocket_message_holds_the_event_loop() -> None:
    held = {}
    handshake = get(
        WS, b"sec-websocket-version: 13", b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="
    ).replace(b"connection: close\r\n", b"connection: upgrade\r\nupgrade: websocket\r\n")
    end = b"\x88\x82" + bytes(4) + b"\x03\xe8"
    with served() as (port, lag):
        messages = {name: frame(body) for name, body in hostile_json(5 * MIB - 100).items()}
        messages["frames of two bytes"] = frame(b"{}") * 50_000
        messages["empty frames"] = frame(b"") * 50_000
        messages["pings"] = b"\x89\x80" + bytes(4) + (b"\x89\x80" + bytes(4)) * 50_000
        for name, frames in messages.items():
            longest_s, response = longest_lag(port, lag, handshake + frames + end)
            assert response.startswith(b"HTTP/1.1 101"), name
            held[name] = longest_s
    assert {name: longest_s for name, longest_s in held.items() if longest_s > limit_s()} == {}


def frame(text: bytes) -> bytes:
    """Return a client's frame of a message; its mask is zero."""
    if len(text) < 126:
        return bytes([0x81, 0x80 | len(text)]) + bytes(4) + text
    return bytes([0x81, 0x80 | 127]) + len(text).to_bytes(8, "big") + bytes(4) + text


def test_no_header_query_or_chunk_holds_the_event_loop() -> None:
    held, v1 = {}, V1 + "/" + "11" * 32
    chunked = post(KEBAB, b"").replace(b"content-length: 0", b"transfer-encoding: chunked")
    requests = {
        "many fields": get("/health", *[b"a:b"] * 5_000),
        "many parameters": get(v1 + "?" + "a&" * 15_000),
        "many tags": get(HEALTH + "?" + "tag=a&" * 5_000),
        "many keys": post(RPC + "?" + "apikey=a&" * 3_500, START + b"[]}"),
        "many requests at once": get("/health").replace(b"connection: close\r\n", b"") * 5_000,
        "chunks of one byte": chunked + b"1\r\n{\r\n" * 200_000 + b"0\r\n\r\n",
        "escaped path": get("/" + "%41" * 10_000),
    }
    with served() as (port, lag):
        for name, request in requests.items():
            longest_s, response = longest_lag(port, lag, request)
            assert response.startswith(b"HTTP/1.1 "), name
            held[name] = longest_s
            if name == "many parameters":
                assert b"query: more than 1000 parameters" in response
    assert {name: longest_s for name, longest_s in held.items() if longest_s > limit_s()} == {}


@pytest.mark.parametrize("count", [2_000, 20_000])
async def test_many_node_ids_do_not_hold_the_event_loop(count: int) -> None:
    lag = Lag()

    class NoValidators:
        async def are_served(self) -> bool:
            return True

        async def current(self, node_ids: object) -> tuple[()]:
            return ()

    endpoint = ValidatorsEndpoint(NoValidators(), SETTINGS)
    gc.disable()
    try:
        lags = []
        for _ in range(3):
            measuring = asyncio.create_task(lag.measure())
            await endpoint._current(
                NodeIdsParams(["NodeID-7fdvUNLVpGgng9tyYzBifCzT7XJrqMKNS"] * count)
            )
            measuring.cancel()
            lags.append(lag.longest_s)
            lag.longest_s = 0.0
    finally:
        gc.enable()
    assert min(lags) < limit_s()
