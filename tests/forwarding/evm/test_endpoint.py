"""`/ext/bc/<id>/rpc` and `/ws` over HTTP, on the real server, in endpoint of nodes of the tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from tests import paths
from tests.api.node.fixtures import SETTINGS, serving
from tests.eventually import TIMEOUT_S, until
from tests.forwarding.evm.evm import (
    CHAIN,
    Node,
    exchanges,
    missing,
    open_chain,
    open_proxy,
    recorded_config,
    replay,
    serve_node,
)
from tests.forwarding.evm.evm import SETTINGS as FORWARDING
from warpseal.api.http.access import find_key_text
from warpseal.api.http.errors import ApiKeyRequired, RateLimited
from warpseal.api.http.settings import ApiSettings
from warpseal.api.node.app import NodeInterfaces, switch_paths
from warpseal.api.node.forwarded_routes import ForwardedRoutes
from warpseal.api.node.settings import NodeApiSettings, RpcUnit
from warpseal.forwarding.evm.chain_config import ChainConfig
from warpseal.forwarding.evm.forwarder import CallGuard, ForwardedChain, ForwardingObserver
from warpseal.metrics.registry import Metrics
from warpseal.usage.recorder import UsageRecorder
from warpseal.warp.ids import id_text

PATH = f"/ext/bc/{id_text(CHAIN)}"
EXCHANGES = paths.LOCALNET / "node-api.jsonl"
JSON = {"content-type": "application/json"}


@dataclass
class Admission:
    """Admits requests up to a number of units; with `key`, only requests that carry it."""

    units: int = 1_000_000
    key: str | None = None

    async def check(self, request: Request) -> None:
        await self.admit(request, 0)

    async def admit(self, request: Request, units: int) -> None:
        if self.key is not None and find_key_text(request) != self.key:
            raise ApiKeyRequired
        self.units -= units
        if self.units < 0:
            raise RateLimited(100, 60, 7.0)


@dataclass
class HttpReply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class ServedChain:
    url: str
    session: aiohttp.ClientSession
    interfaces: NodeInterfaces
    routes: ForwardedRoutes
    chain: ForwardedChain

    async def send(
        self, method: str, body: bytes | None, path: str = PATH + "/rpc", **headers: str
    ) -> HttpReply:
        request_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.request(
            method,
            self.url + path,
            data=body,
            headers=request_headers,
            skip_auto_headers=("content-type",),
        ) as response:
            return HttpReply(response.status, response.headers, await response.read())

    async def rpc(self, *calls: Any, path: str = PATH + "/rpc", **headers: str) -> HttpReply:
        batch = [
            {"jsonrpc": "2.0", "id": n, "method": call[0], "params": call[1]}
            for n, call in enumerate(calls)
        ]
        body = json.dumps(batch if len(batch) > 1 else batch[0]).encode()
        return await self.send("POST", body, path, content_type="application/json", **headers)

    @asynccontextmanager
    async def socket(
        self, query: str = "", **headers: str
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Open a WebSocket to the chain."""
        url = self.url + PATH + "/ws" + query
        async with self.session.ws_connect(url, max_msg_size=0, headers=headers) as client:
            yield client


@asynccontextmanager
async def serve_chain(
    *urls: str,
    admission: Admission | None = None,
    config: ChainConfig | None = None,
    ws: tuple[str, ...] = (),
    settings: Any = FORWARDING,
    observer: ForwardingObserver | None = None,
    node_api: NodeApiSettings | None = None,
    usage: UsageRecorder | None = None,
    api: ApiSettings = SETTINGS,
    guard: CallGuard | None = None,
) -> AsyncIterator[ServedChain]:
    async with open_chain(
        *urls, config=config, ws=ws, settings=settings, observer=observer, guard=guard
    ) as chain:
        node_api = node_api or NodeApiSettings()
        interfaces = NodeInterfaces(api, node_api, Metrics())
        routes = ForwardedRoutes(interfaces, admission or Admission(), api, node_api, usage)
        routes.add_evm(chain, settings)
        app = switch_paths(interfaces, PlainTextResponse("not under /ext"))
        async with serving(app, api) as url, aiohttp.ClientSession() as session:
            yield ServedChain(url, session, interfaces, routes, chain)


def recorded_http() -> list[dict[str, Any]]:
    """Return the exchanges with `/rpc`; not those whose arguments the replay does not have, nor of
    the routing.
    """
    rows = [json.loads(line) for line in EXCHANGES.read_text().splitlines()]
    mine = [row for row in rows if row["path"].endswith("AHBj/rpc") and row["http"] != "OPTIONS"]
    unknown = ("missing value", "hex string without 0x", "404 page not found")
    return [row for row in mine if not any(text in row["body"] for text in unknown)]


@pytest.mark.parametrize("row", recorded_http(), ids=lambda row: str(row["request"])[:40])
async def test_recorded_exchanges_are_answered_as_the_node_did(row: dict[str, Any]) -> None:
    async with serve_node(Node(rule=replay("l1-0"))) as node, serve_chain(node.url) as endpoint:
        request_body = None if row["request"] is None else row["request"].encode()
        headers = {name.replace("-", "_"): value for name, value in row["headers"].items()}
        reply = await endpoint.send(row["http"], request_body, **headers)
        assert reply.status == row["status"]
        assert reply.headers.get("content-type") == row["content_type"]
        if reply.body[:1] in (b"{", b"["):
            assert reply.json == json.loads(row["body"])
        else:
            assert reply.body.decode() == row["body"]


async def test_a_batch_keeps_order_and_ids_of_any_type() -> None:
    async with (
        serve_node(Node(replies={"eth_gasPrice": "0x2"})) as node,
        serve_chain(node.url) as endpoint,
    ):
        call = {"jsonrpc": "2.0", "method": "eth_gasPrice"}
        batch = [
            {**call, "id": "a"},
            {**call, "id": 7, "method": "debug_x"},
            {**call, "id": 7},
            call,
            5,
            {**call, "id": None},
        ]
        reply = await endpoint.send(
            "POST", json.dumps(batch).encode(), content_type="application/json"
        )
        assert [
            (response["id"], response.get("result", response.get("error", {}).get("code")))
            for response in reply.json
        ] == [
            ("a", "0x2"),
            (7, -32601),
            (7, "0x2"),
            (None, -32600),
            (None, "0x2"),
        ]


async def test_a_batch_of_notifications_is_forwarded_and_gets_an_empty_response() -> None:
    async with (
        serve_node(Node(replies={"eth_gasPrice": "0x2"})) as node,
        serve_chain(node.url) as endpoint,
    ):
        body = (
            b'[{"jsonrpc":"2.0","method":"eth_gasPrice"},{"jsonrpc":"2.0","method":"eth_gasPrice"}]'
        )
        reply = await endpoint.send("POST", body, content_type="application/json")
        assert (reply.status, reply.body) == (200, b"")
        assert node.count("eth_gasPrice") == 2


async def test_batch_results_beyond_25_megabytes_become_errors() -> None:
    async with (
        serve_node(Node(replies={"eth_call": "0x" + "0" * 6_000_000})) as node,
        serve_chain(node.url) as endpoint,
    ):
        reply = await endpoint.rpc(*[("eth_call", [])] * 6)
        assert [response.get("error", {}).get("code") for response in reply.json] == [None] * 5 + [
            -32003
        ]


async def test_each_call_of_a_batch_counts_and_a_batch_over_the_limit_is_refused() -> None:
    async with (
        serve_node(Node()) as node,
        serve_chain(node.url, admission=Admission(units=3)) as endpoint,
    ):
        assert (await endpoint.rpc(*[("eth_chainId", [])] * 3)).status == 200
        reply = await endpoint.rpc(("eth_chainId", []), ("eth_blockNumber", []))
        assert (reply.status, reply.headers["retry-after"]) == (429, "7")
        assert [(response["id"], response["error"]["code"]) for response in reply.json] == [
            (0, -32005),
            (1, -32005),
        ]
        assert (await endpoint.rpc(("eth_chainId", []))).json["error"]["code"] == -32005


async def test_with_credits_each_call_costs_those_of_its_method() -> None:
    node_api = NodeApiSettings(rate_limit_rpc=RpcUnit.CREDITS, method_credits=(("eth_call", 7),))
    admission = Admission(units=1_000)
    async with (
        serve_node(Node()) as node,
        serve_chain(
            node.url, ws=(ws_of(node),), admission=admission, node_api=node_api
        ) as endpoint,
    ):
        await endpoint.rpc(("eth_chainId", []), ("eth_getLogs", []), ("eth_call", []))
        assert admission.units == 1_000 - 1 - 200 - 7
        await endpoint.send("POST", b"{", content_type="application/json")
        assert admission.units == 792 - 10
        async with endpoint.socket() as client:
            assert admission.units == 782 - 1
            await client.send_json(
                {"jsonrpc": "2.0", "id": 1, "method": "eth_getLogs", "params": []}
            )
            await client.receive_json(timeout=TIMEOUT_S)
            assert admission.units == 781 - 200
        admission.units = 199
        assert (await endpoint.rpc(("eth_getLogs", []))).status == 429


async def test_a_key_in_the_query_is_accepted_and_not_forwarded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    async with (
        serve_node(Node()) as node,
        serve_chain(node.url, admission=Admission(key="secret-key")) as endpoint,
    ):
        assert (await endpoint.rpc(("eth_chainId", []))).status == 401
        assert (
            await endpoint.rpc(("eth_chainId", []), path=PATH + "/rpc?apikey=secret-key")
        ).status == 200
        assert (
            await endpoint.rpc(("eth_chainId", []), x_service_api_key="secret-key")
        ).status == 200
        assert not any("secret-key" in str(headers) for headers in node.headers)
    assert "secret-key" not in caplog.text
    assert not any("secret-key" in str(record.__dict__) for record in caplog.records)


async def test_only_status_body_and_content_type_of_the_node_are_returned() -> None:
    async with serve_node(Node()) as node, serve_chain(node.url) as endpoint:
        reply = await endpoint.rpc(("eth_chainId", []), authorization="Bearer mine", cookie="a=b")
        assert reply.json["result"] == "0x7a69"
        assert "server" not in reply.headers
        assert not {"Authorization", "Cookie"} & set(node.headers[-1])


@pytest.mark.parametrize(("derives", "source"), [(False, "node"), (True, "derived")])
async def test_a_header_names_the_source_of_a_subnet_evm_response(
    derives: bool, source: str
) -> None:
    node = Node(rule=replay("l1-0", *(("eth_feeConfig",) if derives else ())))
    async with serve_node(node), serve_chain(node.url, config=recorded_config("l1-0")) as endpoint:
        fee_config = exchanges("l1-0", "eth_feeConfig")[0]["result"]
        reply = await endpoint.rpc(("eth_feeConfig", ["latest"]))
        assert (reply.json["result"], reply.headers["x-warpseal-source"]) == (fee_config, source)
        batch = await endpoint.rpc(("eth_chainId", []), ("eth_feeConfig", []))
        assert (batch.json[1]["result"], batch.headers["x-warpseal-source"]) == (fee_config, source)
        assert "x-warpseal-source" not in (await endpoint.rpc(("eth_chainId", []))).headers


async def test_without_a_chain_configuration_the_refusal_of_the_node_is_returned() -> None:
    async with (
        serve_node(Node(replies={"eth_feeConfig": missing("eth_feeConfig")})) as node,
        serve_chain(node.url) as endpoint,
    ):
        reply = await endpoint.rpc(("eth_feeConfig", []))
        assert reply.json["error"]["code"] == -32601
        assert reply.headers["x-warpseal-source"] == "node"


@pytest.mark.parametrize("path", ["/avax", "/admin", "/rpc/", "/ws", ""])
async def test_no_other_path_of_a_node_is_served(path: str) -> None:
    async with serve_node(Node()) as node, serve_chain(node.url) as endpoint:
        assert (await endpoint.rpc(("eth_chainId", []), path=PATH + path)).status == 404


async def test_an_alias_of_the_chain_reaches_it() -> None:
    async with serve_node(Node()) as node, serve_chain(node.url) as endpoint:
        endpoint.interfaces.router.alias(f"bc/{id_text(CHAIN)}", "bc/mine")
        assert (await endpoint.rpc(("eth_chainId", []), path="/ext/bc/mine/rpc")).json[
            "result"
        ] == "0x7a69"


@asynccontextmanager
async def socket(
    node: Node, *urls: str, **more: Any
) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """Serve a node, and open a WebSocket to the chain."""
    async with (
        serve_node(node),
        serve_chain(node.url, ws=urls or (ws_of(node),), **more) as endpoint,
        endpoint.session.ws_connect(endpoint.url + PATH + "/ws", max_msg_size=0) as client,
    ):
        yield client


def ws_of(node: Node) -> str:
    return f"ws://127.0.0.1:{node.port}/ws"


async def test_a_websocket_forwards_calls_and_events_in_order() -> None:
    node = Node(replies={"eth_subscribe": "0xsub", "eth_gasPrice": "0x2"})
    async with socket(node) as client:
        await client.send_json(
            {"jsonrpc": "2.0", "id": 1, "method": "eth_subscribe", "params": ["newHeads"]}
        )
        assert (await client.receive_json())["result"] == "0xsub"
        for number in range(100):
            await node.event("0xsub", number)
        assert [(await client.receive_json())["params"]["result"] for _ in range(100)] == list(
            range(100)
        )
        await client.send_json([{"jsonrpc": "2.0", "id": "x", "method": "eth_gasPrice"}])
        assert await client.receive_json() == [{"jsonrpc": "2.0", "id": "x", "result": "0x2"}]


async def test_denied_and_derived_methods_are_the_same_on_a_websocket() -> None:
    node = Node(rule=replay("l1-0", "eth_feeConfig"))
    async with socket(node, config=recorded_config("l1-0")) as client:
        await client.send_json(
            {"jsonrpc": "2.0", "id": 1, "method": "debug_traceCall", "params": []}
        )
        assert (await client.receive_json())["error"]["code"] == -32601
        await client.send_json({"jsonrpc": "2.0", "id": 2, "method": "eth_feeConfig", "params": []})
        assert (await client.receive_json())["result"]["lastChangedAt"] == 0
        await client.send_str("{")
        assert (await client.receive_json())["error"]["code"] == -32700
        assert node.count("debug_traceCall") == 0


async def test_when_the_node_dies_its_websockets_are_closed_with_1012() -> None:
    node = Node()
    async with (
        serve_node(node),
        open_proxy(node.port) as proxy,
        serve_chain(node.url, ws=(f"ws://127.0.0.1:{proxy.port}/ws",)) as endpoint,
        endpoint.session.ws_connect(endpoint.url + PATH + "/ws") as client,
    ):
        await client.send_json({"jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": []})
        assert (await client.receive_json())["result"] == "0x7a69"
        proxy.cut()
        message = await client.receive(timeout=TIMEOUT_S)
        assert (message.type, client.close_code) == (aiohttp.WSMsgType.CLOSE, 1012)


async def test_a_websocket_uses_the_next_node_if_the_first_is_of_another_chain() -> None:
    node, other = (
        Node(replies={"eth_gasPrice": "0x2"}),
        Node(replies={"eth_chainId": "0x5", "eth_gasPrice": "0x666"}),
    )
    async with (
        serve_node(node),
        serve_node(other),
        serve_chain(node.url, ws=(ws_of(other), ws_of(node))) as endpoint,
    ):
        client = await endpoint.session.ws_connect(endpoint.url + PATH + "/ws")
        await client.send_json({"jsonrpc": "2.0", "id": 1, "method": "eth_gasPrice"})
        assert (await client.receive_json())["result"] == "0x2"
        await client.close()


async def test_subscriptions_and_sockets_are_capped() -> None:
    node, few = (
        Node(replies={"eth_subscribe": "0x1"}),
        replace(FORWARDING, max_subscriptions=1, max_sockets=1),
    )
    async with (
        serve_node(node),
        serve_chain(node.url, ws=(ws_of(node),), settings=few) as endpoint,
        AsyncExitStack() as stack,
    ):
        client = await stack.enter_async_context(endpoint.socket())
        for code in (None, -32005):
            await client.send_json(
                {"jsonrpc": "2.0", "id": 1, "method": "eth_subscribe", "params": ["newHeads"]}
            )
            assert (await client.receive_json()).get("error", {}).get("code") == code
        second = await stack.enter_async_context(endpoint.socket())
        await second.receive(timeout=TIMEOUT_S)
        assert second.close_code == 1013


async def test_websockets_do_not_use_up_connections_for_calls() -> None:
    node, few = Node(), replace(FORWARDING, connections_per_node=1)
    async with (
        serve_node(node),
        serve_chain(node.url, ws=(ws_of(node),), settings=few) as endpoint,
        AsyncExitStack() as stack,
    ):
        for _ in range(3):
            client = await stack.enter_async_context(endpoint.socket())
            await client.send_json({"jsonrpc": "2.0", "id": 1, "method": "eth_chainId"})
            assert (await client.receive_json())["result"] == "0x7a69"
        assert (await endpoint.rpc(("eth_chainId", []))).json["result"] == "0x7a69"


async def test_a_client_that_reads_too_slowly_loses_the_connection() -> None:
    node, few = Node(replies={"eth_subscribe": "0x1"}), replace(FORWARDING, max_queued=8)
    async with (
        serve_node(node),
        serve_chain(node.url, ws=(ws_of(node),), settings=few) as endpoint,
        endpoint.socket() as client,
    ):
        await client.send_json(
            {"jsonrpc": "2.0", "id": 1, "method": "eth_subscribe", "params": ["logs"]}
        )
        await client.receive_json()
        publishing = asyncio.create_task(node.events("0x1", "x" * 1_000_000, 40))
        await until(lambda: endpoint.chain.sockets.clients == 0)
        publishing.cancel()
        seen = 0
        async for _ in client:
            seen += 1
        assert seen < 40
        assert client.close_code in (1006, 1008)


async def test_web_pages_of_other_origins_get_no_websocket() -> None:
    node, api = Node(), replace(SETTINGS, http_allowed_origins=("https://good.example",))
    async with serve_node(node), serve_chain(node.url, ws=(ws_of(node),), api=api) as endpoint:
        with pytest.raises(aiohttp.WSServerHandshakeError) as error:
            await endpoint.session.ws_connect(
                endpoint.url + PATH + "/ws", headers={"origin": "https://bad.example"}
            )
        assert error.value.status == 403
        async with endpoint.session.ws_connect(
            endpoint.url + PATH + "/ws", headers={"origin": "https://good.example"}
        ):
            pass
        with pytest.raises(aiohttp.WSServerHandshakeError) as unknown:
            await endpoint.session.ws_connect(endpoint.url + "/ext/bc/nope/ws")
        assert unknown.value.status == 404


async def test_a_large_body_is_refused_with_and_without_content_length() -> None:
    async with serve_node(Node()) as node, serve_chain(node.url) as endpoint:
        call = {"jsonrpc": "2.0", "id": 1, "method": "eth_call", "params": ["0" * 5_242_700]}
        fits = json.dumps(call).encode()
        assert len(fits) < 5_242_880 < len(fits) + 200
        assert (await endpoint.send("POST", fits, content_type="application/json")).status == 200
        large = fits.replace(b"eth_call", b"eth_call" + b"x" * 200)
        response = await endpoint.send("POST", large, content_type="application/json")
        assert (response.status, response.body) == (
            413,
            f"content length too large ({len(large)}>5242880)\n".encode(),
        )

        async def chunks() -> AsyncIterator[bytes]:
            yield large

        async with endpoint.session.post(
            endpoint.url + PATH + "/rpc", data=chunks(), headers=JSON
        ) as reply:
            assert reply.status == 413
        assert node.count("eth_call") == 1


async def test_calls_share_connections_to_a_node_and_writes_have_their_own() -> None:
    node = Node(replies={"eth_sendRawTransaction": "0xabc", "eth_gasPrice": "0x2"})
    async with serve_node(node), open_proxy(node.port) as proxy, serve_chain(proxy.url) as endpoint:
        for _ in range(10):
            await endpoint.rpc(("eth_gasPrice", []))
            await endpoint.rpc(("eth_gasPrice", []), ("eth_chainId", []))
        assert proxy.accepted == 1
        for _ in range(3):
            await endpoint.rpc(("eth_sendRawTransaction", ["0x00"]))
        assert proxy.accepted == 4
