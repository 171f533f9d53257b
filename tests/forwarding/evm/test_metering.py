"""Usage of an EVM chain's routes: each call is recorded once, with its outcome, labels, time and
credits.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from msgspec.structs import replace
from starlette.requests import Request

from tests.api.node.fixtures import SETTINGS
from tests.eventually import TIMEOUT_S, until
from tests.forwarding.evm.evm import CHAIN, HALTS, HANGS, Node, Refusal, open_proxy, serve_node
from tests.forwarding.evm.evm import SETTINGS as FORWARDING
from tests.forwarding.evm.test_endpoint import PATH, Admission, ServedChain, serve_chain, ws_of
from warpseal.api.http.middleware import log_fields
from warpseal.usage.calls import CallOutcome, UsageLabels, UsageTotals
from warpseal.usage.recorder import MethodUsage, UsageBounds, UsageRecorder

RPC, WS = PATH + "/rpc", PATH + "/ws"
NO_NODE = "http://127.0.0.1:1/rpc"
BEHIND_PROXY = replace(SETTINGS, trusted_proxies=(ip_network("127.0.0.0/8"),))
INVALID, FAILED, SUCCESSFUL = CallOutcome.INVALID, CallOutcome.FAILED, CallOutcome.SUCCESSFUL
LARGE = "0x" + "0" * 100_000


@dataclass
class Metered:
    """A served chain and what it recorded. totals: so far."""

    endpoint: ServedChain
    recorder: UsageRecorder

    def __post_init__(self) -> None:
        self.totals: dict[UsageLabels, UsageTotals] = {}

    def take(self) -> dict[UsageLabels, UsageTotals]:
        for minute in self.recorder.take().values():
            for labels, totals in minute.items():
                self.totals.setdefault(labels, UsageTotals()).add(totals)
        return self.totals

    @property
    def requests(self) -> int:
        return sum(totals.requests for totals in self.take().values())

    def outcomes(self) -> dict[tuple[str, int, CallOutcome], int]:
        """Return the calls by method, status and outcome."""
        counts = Counter[tuple[str, int, CallOutcome]]()
        for labels, totals in self.take().items():
            counts[labels.method, labels.status, INVALID] += totals.invalid
            counts[labels.method, labels.status, FAILED] += totals.failed
            counts[labels.method, labels.status, SUCCESSFUL] += (
                totals.requests - totals.invalid - totals.failed
            )
        return dict(+counts)

    async def recorded(self, calls: int) -> dict[tuple[str, int, CallOutcome], int]:
        """Return the outcomes of so many calls, once they are recorded; no more than these."""
        await until(lambda: self.requests >= calls)
        assert self.requests == calls
        return self.outcomes()


@asynccontextmanager
async def metered(
    node: Node | None = None, bounds: UsageBounds | None = None, **more: Any
) -> AsyncIterator[Metered]:
    """Serve a chain of this node, or of none, and record its usage."""
    recorder = UsageRecorder(bounds)
    async with serve_node(node or Node()) as serving:
        urls = (serving.url,) if node is not None else (NO_NODE,)
        ws = more.pop("ws", (ws_of(serving),) if node is not None else ())
        async with serve_chain(*urls, ws=ws, usage=recorder, **more) as endpoint:
            yield Metered(endpoint, recorder)


def call(number: Any, method: str, *params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": list(params)}


async def post(served: Metered, body: Any, **headers: str) -> Any:
    encoded = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await served.endpoint.send("POST", encoded, content_type="application/json", **headers)


async def test_each_error_of_a_node_gives_the_call_its_outcome_alone_and_in_a_batch() -> None:
    errors = {
        "eth_call": (Refusal(3, "execution reverted"), SUCCESSFUL),
        "eth_getLogs": (Refusal(-32000, "query exceeds limit"), SUCCESSFUL),
        "eth_getBalance": (Refusal(-32602, "missing value for required argument 0"), INVALID),
        "eth_getCode": (Refusal(-32601, "the method does not exist"), INVALID),
        "eth_gasPrice": (Refusal(-32603, "internal error"), FAILED),
        "eth_estimateGas": (Refusal(-32002, "request timed out"), FAILED),
        "eth_getProof": (Refusal(-32005, "limit exceeded"), FAILED),
    }
    node = Node(replies={method: refusal for method, (refusal, _) in errors.items()})
    async with metered(node) as served:
        for method in errors:
            await post(served, call(1, method))
        await post(
            served, [call(number, method) for number, method in enumerate((*errors, "eth_chainId"))]
        )
        assert await served.recorded(2 * len(errors) + 1) == {
            **{(method, 200, outcome): 2 for method, (_, outcome) in errors.items()},
            ("eth_chainId", 200, SUCCESSFUL): 1,
        }
        totals = served.take()
        assert (
            sum(sums.credits for sums in totals.values())
            == 2 * (10 + 200 + 10 + 20 + 10 + 10 + 10) + 1
        )
        assert sum(sums.credits_wasted for sums in totals.values()) == 2 * (10 + 20)
        assert all(sum(sums.times.values()) == sums.requests for sums in totals.values())
        assert {labels.path for labels in totals} == {RPC}


async def test_each_entry_of_a_batch_counts_and_each_has_its_own_outcome() -> None:
    async with metered(Node(replies={"eth_call": Refusal(-32602, "missing")})) as served:
        await post(
            served,
            [
                call("a", "eth_call"),
                call("a", "eth_chainId"),
                {"jsonrpc": "2.0", "method": "eth_chainId"},
                call(1, "debug_x"),
                call(2, "eth_feeConfig"),
                7,
                {"jsonrpc": "2.0", "id": 1, "result": 1},
            ],
        )
        assert await served.recorded(6) == {
            ("eth_call", 200, INVALID): 1,
            ("eth_chainId", 200, SUCCESSFUL): 2,
            ("other", 200, INVALID): 1,
            ("eth_feeConfig", 200, INVALID): 1,
            ("none", 200, INVALID): 1,
        }


async def test_bodies_without_calls_count_once_and_probes_never() -> None:
    async with metered(Node()) as served:
        for body in (b"{", b"", b"[]", json.dumps([call(1, "eth_chainId")] * 1_001).encode()):
            await post(served, body)
        assert await served.recorded(4) == {("none", 200, INVALID): 4}
        send = served.endpoint.send
        assert (await send("PUT", b"{}", content_type="application/json")).status == 405
        assert (await send("POST", b"{}", content_type="text/plain")).status == 415
        assert (await send("POST", b"x" * 5_242_881, content_type="application/json")).status == 413
        assert (await send("POST", b"{}", WS)).status == 400
        response = json.dumps({"jsonrpc": "2.0", "id": 1, "result": 1}).encode()
        for body in (response, b"[%s]" % response):
            assert (await post(served, body)).status == 200
        for method in ("GET", "HEAD", "OPTIONS"):
            await send(method, None)
            await send(method, None, RPC + "?apikey=k")
            await send(method, None, WS)
        assert await served.recorded(8) == {
            ("none", 200, INVALID): 4,
            **{("none", status, INVALID): 1 for status in (400, 405, 413, 415)},
        }


async def test_refused_calls_count_with_their_methods_and_cost_no_credits() -> None:
    async with metered(Node(), admission=Admission(units=4)) as served:
        await post(served, call(1, "eth_chainId"))
        assert (
            await post(served, [call(number, "eth_call", LARGE) for number in range(4)])
        ).status == 429
        assert (await post(served, [call(1, "eth_getLogs"), call(2, "eth_call")])).status == 429
        assert await served.recorded(7) == {
            ("eth_chainId", 200, SUCCESSFUL): 1,
            ("none", 429, FAILED): 4,
            ("eth_getLogs", 429, FAILED): 1,
            ("eth_call", 429, FAILED): 1,
        }
        assert sum(sums.credits for sums in served.take().values()) == 1
    async with metered(Node(), admission=Admission(key="k")) as served:
        assert (await post(served, [call(1, "eth_call"), call(2, "eth_call")])).status == 401
        assert (await post(served, call(1, "eth_call", LARGE))).status == 401
        assert await served.recorded(3) == {("eth_call", 401, FAILED): 2, ("none", 401, FAILED): 1}
        assert sum(sums.credits for sums in served.take().values()) == 0


async def test_calls_that_no_node_answers_fail() -> None:
    async with metered(None) as served:
        await post(served, call(1, "eth_chainId"))
        await post(served, {"jsonrpc": "2.0", "method": "eth_chainId"})
        await post(served, [call(1, "eth_chainId"), call(2, "eth_call")])
        await post(
            served, [call(1, "eth_call"), {"jsonrpc": "2.0", "method": "eth_sendRawTransaction"}]
        )
        assert await served.recorded(6) == {
            ("eth_chainId", 200, FAILED): 3,
            ("eth_call", 200, FAILED): 2,
            ("eth_sendRawTransaction", 200, FAILED): 1,
        }
    async with metered(Node(replies={"eth_sendRawTransaction": HALTS})) as served:
        await post(served, call(1, "eth_sendRawTransaction", "0x00"))
        assert await served.recorded(1) == {("eth_sendRawTransaction", 200, FAILED): 1}


async def test_the_status_of_a_node_is_that_of_the_call() -> None:
    node = Node()
    async with metered(node) as served:
        await post(served, call(1, "eth_chainId"))
        for status in (404, 429, 500):
            node.status = status
            assert (await post(served, call(1, "eth_sendRawTransaction"))).status == status
        assert await served.recorded(4) == {
            ("eth_chainId", 200, SUCCESSFUL): 1,
            ("eth_sendRawTransaction", 404, INVALID): 1,
            ("eth_sendRawTransaction", 429, FAILED): 1,
            ("eth_sendRawTransaction", 500, FAILED): 1,
        }


async def test_calls_of_a_client_that_leaves_early_have_status_499_and_no_time() -> None:
    node, short = Node(replies={"eth_call": HANGS}), replace(FORWARDING, call_timeout_s=0.3)
    async with metered(node, settings=short) as served:
        leaving = asyncio.create_task(post(served, [call(1, "eth_call"), call(2, "eth_call")]))
        await until(lambda: node.bodies)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        assert await served.recorded(2) == {("eth_call", 499, FAILED): 2}
        _, writer = await asyncio.open_connection(
            "127.0.0.1", int(served.endpoint.url.rpartition(":")[2])
        )
        head = (
            f"POST {RPC} HTTP/1.1\r\nhost: localhost\r\ncontent-type:"
            " application/json\r\ncontent-length: 9\r\n\r\n"
        )
        writer.write(head.encode() + b"{")
        await writer.drain()
        writer.close()
        assert await served.recorded(3) == {("eth_call", 499, FAILED): 2, ("none", 499, FAILED): 1}
        assert all(not sums.times for sums in served.take().values())


async def test_large_replies_are_searched_for_errors_as_small_ones_are() -> None:
    node = Node(
        replies={
            "eth_call": LARGE,
            "eth_getLogs": {"error": LARGE},
            "eth_getCode": Refusal(-32602, LARGE),
        }
    )
    async with metered(node) as served:
        for method in ("eth_call", "eth_getLogs", "eth_getCode"):
            await post(served, call("i" * 2_000, method))
        await post(served, [call(1, "eth_call"), call(2, "eth_getLogs"), call(3, "eth_getCode")])
        assert await served.recorded(6) == {
            ("eth_call", 200, SUCCESSFUL): 2,
            ("eth_getLogs", 200, SUCCESSFUL): 2,
            ("eth_getCode", 200, INVALID): 2,
        }


class HostileNode(Node):
    """Answers with bytes that are no JSON-RPC."""

    async def serve_http(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if b"eth_gasPrice" not in body:
            return await super().serve_http(request)
        return web.Response(
            body=b'[{"id":"\xff","error":{"code":-32601,"message":"\xff"}}]',
            content_type="text/html",
        )


async def test_ids_and_replies_that_cannot_be_decoded_count_all_the_same() -> None:
    async with metered(HostileNode()) as served:
        calls = [
            b'{"jsonrpc":"2.0","id":%s,"method":"eth_gasPrice"}' % call_id
            for call_id in (b'"\xff"', b"1e999")
        ]
        for body in (b"[" + b",".join(calls) + b"]", *calls):
            assert (await post(served, body)).status == 200
        assert await served.recorded(4) == {("eth_gasPrice", 200, SUCCESSFUL): 4}


async def test_calls_that_the_stop_of_the_daemon_cuts_short_fail_with_503() -> None:
    node = Node(replies={"eth_call": HANGS})
    async with aiohttp.ClientSession() as session:
        async with metered(node, api=replace(SETTINGS, grace_period_s=0.1)) as served:
            calling = asyncio.create_task(
                session.post(served.endpoint.url + RPC, json=call(1, "eth_call"))
            )
            await until(lambda: node.count("eth_call"))
        assert (await calling).status == 503
    assert served.outcomes() == {("eth_call", 503, FAILED): 1}


async def test_batch_results_beyond_the_limit_fail() -> None:
    async with metered(Node(replies={"eth_call": "0x" + "0" * 9_000_000})) as served:
        await post(served, [call(number, "eth_call") for number in range(4)])
        assert await served.recorded(4) == {
            ("eth_call", 200, SUCCESSFUL): 3,
            ("eth_call", 200, FAILED): 1,
        }


class SilentNode(Node):
    """Reads `eth_call` on WebSockets and never answers it."""

    async def serve_socket(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            request_body = json.loads(message.data)
            if isinstance(request_body, list):  # The daemon asks which chain this is.
                await socket.send_json([self.reply(entry) for entry in request_body])
            else:
                self.calls.append((request_body["method"], []))
        return socket


class NamedKey(Admission):
    """Admits every request with the key `relayer`."""

    async def admit(self, request: Request, units: int) -> None:
        log_fields(request.scope)["api_key"] = "relayer"


async def test_labels_are_names_and_codes_and_nothing_else_of_the_client() -> None:
    secret = "Secret-Agent/9.9 (0xdeadbeef; 10.1.2.3)"
    async with metered(Node(), admission=NamedKey()) as served:
        await post(
            served,
            call(1, "eth_chainId"),
            user_agent=secret,
            cf_ipcountry="DE",
            x_forwarded_for="10.1.2.3",
        )
        await served.recorded(1)
        assert list(served.take()) == [
            UsageLabels(RPC, "eth_chainId", 200, "relayer", "XX", "Secret-Agent")
        ]
        served.endpoint.routes.set_primary_alias(CHAIN, "C")
        await post(served, call(1, "eth_chainId"), user_agent=secret)
        await served.recorded(2)
        assert "/ext/bc/C/rpc" in {labels.path for labels in served.take()}


@pytest.mark.parametrize(
    ("given_country", "label"),
    [("de", "DE"), ("T1", "T1"), ("ZZ", "XX"), ("<b>", "XX"), ("D" * 3_000, "XX")],
)
async def test_a_trusted_proxy_names_the_country(given_country: str, label: str) -> None:
    async with metered(Node(), api=BEHIND_PROXY) as served:
        await post(
            served,
            call(1, "eth_chainId"),
            cf_ipcountry=given_country,
            x_forwarded_for="203.0.113.9",
        )
        await served.recorded(1)
        assert {labels.country for labels in served.take()} == {label}


async def test_calls_on_a_websocket_count_one_by_one_with_status_101() -> None:
    node = Node(
        replies={
            "eth_subscribe": "0x1",
            "eth_call": Refusal(-32602, "missing"),
            "eth_gasPrice": "0x2",
        }
    )
    async with metered(node) as served, served.endpoint.socket() as client:
        for message in (
            call(1, "eth_chainId"),
            [call(2, "eth_call"), call(3, "eth_gasPrice"), call(4, "eth_unknown")],
            call(5, "eth_subscribe", "newHeads"),
            call(6, "eth_feeConfig"),
            call(7, "debug_traceCall"),
        ):
            await client.send_json(message)
            await client.receive_json(timeout=TIMEOUT_S)
        await node.event("0x1", "0x2")
        assert (await client.receive_json(timeout=TIMEOUT_S))["method"] == "eth_subscription"
        await client.send_json({"jsonrpc": "2.0", "method": "eth_gasPrice"})
        await client.send_json({"jsonrpc": "2.0", "id": 1, "result": 1})
        await client.send_str("{")
        await client.receive_json(timeout=TIMEOUT_S)
        assert await served.recorded(9) == {
            ("eth_chainId", 101, SUCCESSFUL): 1,
            ("eth_call", 101, INVALID): 1,
            ("eth_gasPrice", 101, SUCCESSFUL): 2,
            ("other", 101, INVALID): 1,
            ("eth_subscribe", 101, SUCCESSFUL): 1,
            ("eth_feeConfig", 101, INVALID): 1,
            ("debug_traceCall", 101, INVALID): 1,
            ("none", 101, INVALID): 1,
        }
        assert {labels.path for labels in served.take()} == {WS}
        assert (
            sum(sum(sums.times.values()) for sums in served.take().values()) == 8
        )  # All but the notification.


async def test_calls_that_are_open_when_the_client_leaves_have_status_499() -> None:
    node = SilentNode()
    async with metered(node) as served, served.endpoint.socket() as client:
        await client.send_json(call(1, "eth_call"))
        await client.send_json(call(2, "eth_call"))
        await until(lambda: node.count("eth_call") == 2)
        await client.close()
        assert await served.recorded(2) == {("eth_call", 499, FAILED): 2}


async def test_calls_that_a_node_leaves_open_fail() -> None:
    node = SilentNode()
    async with serve_node(node), open_proxy(node.port) as proxy:
        ws = (f"ws://127.0.0.1:{proxy.port}/ws",)
        async with metered(Node(), ws=ws) as served, served.endpoint.socket() as client:
            await client.send_json(call(1, "eth_call"))
            await until(lambda: node.count("eth_call"))
            proxy.cut()
            await client.receive(timeout=TIMEOUT_S)
            assert client.close_code == 1012
            assert await served.recorded(1) == {("eth_call", 101, FAILED): 1}


async def test_calls_over_a_limit_fail_on_a_websocket_and_cost_nothing() -> None:
    async with (
        metered(Node(), admission=Admission(units=2)) as served,
        served.endpoint.socket() as client,
    ):
        await client.send_json(call(1, "eth_chainId"))
        await client.receive_json(timeout=TIMEOUT_S)
        await client.send_json([call(2, "eth_chainId"), call(3, "eth_call")])
        assert {
            reply["error"]["code"] for reply in await client.receive_json(timeout=TIMEOUT_S)
        } == {-32005}
        assert await served.recorded(3) == {
            ("eth_chainId", 101, SUCCESSFUL): 1,
            ("eth_chainId", 101, FAILED): 1,
            ("eth_call", 101, FAILED): 1,
        }
        assert sum(sums.credits for sums in served.take().values()) == 1


async def test_requests_with_a_foreign_host_name_count_once_without_credits() -> None:
    async with metered(Node()) as served:
        reply = await post(
            served, [call(1, "eth_chainId"), call(2, "eth_call")], host="evil.example"
        )
        assert reply.status == 403
        with pytest.raises(aiohttp.WSServerHandshakeError):
            async with served.endpoint.socket(host="evil.example"):
                pass
        assert (await served.endpoint.send("OPTIONS", None, host="evil.example")).status == 403
        assert await served.recorded(2) == {("none", 403, FAILED): 2}
        assert sum(sums.credits for sums in served.take().values()) == 0


async def test_refused_handshakes_count_once() -> None:
    async with metered(Node(), admission=Admission(key="k")) as served:
        with pytest.raises(aiohttp.WSServerHandshakeError):
            async with served.endpoint.socket():
                pass
        assert await served.recorded(1) == {("none", 401, FAILED): 1}
    async with metered(
        Node(), api=replace(SETTINGS, http_allowed_origins=("https://good.example",))
    ) as served:
        with pytest.raises(aiohttp.WSServerHandshakeError):
            async with served.endpoint.socket(origin="https://bad.example"):
                pass
        assert await served.recorded(1) == {("none", 403, FAILED): 1}
        assert sum(sums.credits for sums in served.take().values()) == 0
    async with (
        metered(Node(), ws=("ws://127.0.0.1:1/ws",)) as served,
        served.endpoint.socket() as client,
    ):
        await client.receive(timeout=TIMEOUT_S)
        assert client.close_code == 1013
        assert await served.recorded(1) == {("none", 101, FAILED): 1}


async def test_a_revoked_key_ends_the_websocket_and_its_call_costs_nothing() -> None:
    admission = Admission(key="k")
    async with (
        metered(Node(), admission=admission) as served,
        served.endpoint.socket("?apikey=k") as client,
    ):
        admission.key = "other"
        await client.send_json(call(1, "eth_chainId"))
        await client.receive(timeout=TIMEOUT_S)
        assert client.close_code == 1008
        assert await served.recorded(1) == {("eth_chainId", 101, FAILED): 1}
        assert sum(sums.credits for sums in served.take().values()) == 0


async def test_calls_that_a_node_refuses_on_a_websocket_are_no_longer_in_flight() -> None:
    node, few = (
        Node(replies={"eth_call": Refusal(3, "execution reverted")}),
        replace(FORWARDING, max_in_flight=2),
    )
    async with metered(node, settings=few) as served, served.endpoint.socket() as client:
        for number in range(5):
            await client.send_json(call(number, "eth_call"))
            assert (await client.receive_json(timeout=TIMEOUT_S))["error"]["code"] == 3
        assert await served.recorded(5) == {("eth_call", 101, SUCCESSFUL): 5}


async def test_floods_of_methods_agents_and_countries_stay_bounded_and_exact() -> None:
    bounds = UsageBounds(agents=20, agents_per_client=10, combinations=40)
    async with metered(Node(), bounds, api=BEHIND_PROXY) as served:
        for number in range(60):
            batch = [call(entry, f"eth_x{number}_{entry}") for entry in range(50)]
            await post(
                served,
                [*batch, call(50, "eth_chainId"), call(51, "eth_call")],
                user_agent=f"agent{number}/1",
                cf_ipcountry=["DE", "FR", "US", "JP", "BR"][number % 5],
                x_forwarded_for=f"203.0.113.{number % 30}",
            )
        await served.recorded(60 * 52)
        totals = served.take()
        assert len(totals) <= 40
        assert {labels.status for labels in totals} == {200}
        assert len({labels.user_agent for labels in totals} - {"other"}) <= 20
        assert sum(sums.invalid for sums in totals.values()) == 60 * 51
        since_start = served.recorder.since_start
        assert {key: replace(usage, time_ms=0.0) for key, usage in since_start.items()} == {
            (RPC, "eth_chainId"): MethodUsage(60, credits=60),
            (RPC, "eth_call"): MethodUsage(60, 60, 0, 600, 600),
            (RPC, "other"): MethodUsage(3_000, 3_000, 0, 30_000, 30_000),
        }
