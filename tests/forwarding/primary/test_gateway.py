"""The gateway over HTTP in front of recorded nodes: routes, methods, nodes that fail, and what it
answers itself.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import aiohttp
import pytest

from tests import paths
from tests.eventually import until
from tests.forwarding.evm.evm import HALTS, HANGS
from tests.forwarding.evm.test_endpoint import Admission
from tests.forwarding.primary.serving import (
    AVAX,
    INFO,
    TX_ID,
    GatewayNode,
    P,
    ServedGateway,
    X,
    direct,
    recorded,
    serve_gateway,
    serve_nodes,
)
from tests.indexer.replay import Refused
from warpseal.api.node.settings import NodeApiSettings, RpcUnit
from warpseal.forwarding.primary.methods import KNOWN_METHODS, ROUTES, SERVICES, AllowedMethods
from warpseal.ops.health.chains import gateway_check
from warpseal.ops.health.registry import CheckOutcome
from warpseal.resources.chains import PrimaryChain
from warpseal.upstream.endpoint import NodeEndpoint
from warpseal.usage.calls import CallOutcome

JSON = "application/json"
RECORDED = [
    json.loads(line) for line in (paths.LOCALNET / "info-http.jsonl").read_text().splitlines()
]
EXCHANGES = [row for row in RECORDED if row["http"] != "OPTIONS"]
"""Browsers get no credentials, as on all paths."""
NO_NODE = (-32000, "no node of this chain can be reached")
NO_REPLY = (-32000, "the node did not answer; it may have done what it was asked")


def body_of(method: str, **params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": "a", "method": method, "params": params}).encode()


async def test_recorded_exchanges_are_answered_as_the_node_did() -> None:
    node = GatewayNode()
    async with serve_nodes(node), serve_gateway([node.url]) as served:
        for exchange in EXCHANGES:
            headers = {name.replace("-", "_"): value for name, value in exchange["headers"].items()}
            request_body = None if exchange["request"] is None else exchange["request"].encode()
            compare(
                await served.send(exchange["http"], exchange["path"], request_body, **headers),
                exchange,
            )


def compare(reply: tuple[int, str, bytes], exchange: dict[str, Any]) -> None:
    status, content_type, body = reply
    assert status == exchange["status"], exchange
    if b"-32700" in body:  # The text is that of another decoder.
        assert json.loads(body)["error"]["code"] == json.loads(exchange["body"])["error"]["code"], (
            exchange
        )
    elif body.startswith(b"{"):
        assert json.loads(body) == json.loads(exchange["body"]), exchange
    else:
        assert body.decode() == exchange["body"], exchange
        assert not body or content_type == exchange["content_type"], exchange


async def test_recorded_calls_get_the_recorded_results_and_one_node_call_each() -> None:
    node = GatewayNode()
    async with serve_nodes(node), serve_gateway([node.url]) as served:
        for row in recorded():
            assert await served.call(row["path"], row["method"], row["params"]) == row["result"], (
                row["method"]
            )
        assert node.forwarded == [row["path"] for row in recorded()]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
async def test_every_route_forwards_the_methods_of_its_service(route: Any) -> None:
    node = GatewayNode()
    method = {
        "platform": "platform.getHeight",
        "avm": "avm.getHeight",
        "avax": "avax.getAtomicTx",
        "proposervm": "proposervm.getCurrentEpoch",
        "info": "info.getNetworkID",
        "index": "index.getLastAccepted",
    }[route.service]
    body = body_of(method, encoding="hex")
    async with serve_nodes(node), serve_gateway([node.url]) as served:
        assert await served.send("POST", route.path, body, content_type=JSON) == await direct(
            node, route.path, body
        )
        error = await served.call(route.path, "health.liveness")
        assert error == (-32000, 'rpc: can\'t find service "health.Liveness"')
        other = f"{route.service}.exportKey"
        error = await served.call(route.path, other)
        assert error == (-32000, f'rpc: can\'t find method "{route.service}.ExportKey"')
        assert not node.call_counts[other]
        assert (await served.send("GET", route.path))[0] == 405
        assert (await served.send("POST", route.path, body))[0] == 415
        assert (await served.send("POST", route.path + "/", body, content_type=JSON))[0] == 404


async def test_replies_of_a_node_pass_unchanged_and_its_keys_stay_here() -> None:
    node = GatewayNode()
    large = {"peers": ["é" * 50_000]}
    node.replies |= {"info.peers": large}
    async with serve_nodes(node):
        endpoint = NodeEndpoint(
            node.url + "/base", {"token": "its-key"}, {"authorization": "Bearer mine"}
        )
        async with serve_gateway([endpoint]) as served:
            body = body_of("info.peers")
            reply = await served.send(
                "POST", INFO + "?apikey=theirs", body, content_type=JSON, authorization="theirs"
            )
            assert reply == await direct(node, INFO, body)
            refused = body_of("platform.getBlockByHeight", height=10_000)
            reply = await served.send("POST", P, refused, content_type=JSON)
            assert reply == await direct(node, P, refused)
            assert json.loads(reply[2])["error"]["code"] == -32000
            assert node.forwarded == [f"/base{INFO}?token=its-key", f"/base{P}?token=its-key"]
            leaks = [
                headers
                for headers in node.headers
                if "its-key" in str(headers) or "theirs" in str(headers)
            ]
            assert leaks == []
            assert (
                Counter(headers.get("authorization") for headers in node.headers)["Bearer mine"] > 2
            )


@pytest.mark.parametrize(
    "body",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"info.peers","Method":"info.uptime"}',
        b'{"jsonrpc":"2.0","id":1,"method":"info.peers","method":"info.uptime"}',
        (
            b'{"JSONRPC":"2.0","Id":1,"method":"info.uptime","extra":{"method":"info.peers"}}'
            b' {"method":"info.peers"}'
        ),
        b' {"jsonrpc":"2.0","id":1,"method":"info.\\u0075ptime"}\n',
    ],
)
async def test_a_node_reads_the_method_that_was_checked(body: bytes) -> None:
    node = GatewayNode()
    node.replies["info.uptime"] = {"weightedAveragePercentage": "100"}
    async with serve_nodes(node), serve_gateway([node.url], methods=("!info.peers",)) as served:
        status, _, reply = await served.send("POST", INFO, body, content_type=JSON)
        assert (status, "result" in json.loads(reply)) == (200, True)
        node_body = next(request_body for _, request_body in node.seen if b"uptime" in request_body)
        assert node_body == b'{"jsonrpc":"2.0","method":"info.uptime","params":null,"id":1}'
        assert not node.call_counts["info.peers"]


async def test_a_notification_gets_an_empty_response() -> None:
    node = GatewayNode()
    async with serve_nodes(node), serve_gateway([node.url]) as served:
        for method in ("info.nope", "nodot"):
            body = b'{"jsonrpc":"2.0","method":"%s"}' % method.encode()
            assert await served.send("POST", INFO, body, content_type=JSON) == (200, "", b"")


async def test_bodies_are_bounded() -> None:
    node = GatewayNode()
    padding = b" " * 1_048_576
    async with serve_nodes(node), serve_gateway([node.url]) as served:
        assert (await served.send("POST", INFO, padding + b"{}", content_type=JSON))[0] == 413

        async def chunks() -> Any:
            yield padding
            yield b"{}"

        async with served.session.post(
            served.url + INFO, data=chunks(), headers={"content-type": JSON}
        ) as response:
            assert response.status == 413
        deep = b'{"jsonrpc":"2.0","id":1,"method":"info.peers","params":' + b"[" * 100_000
        _, _, reply = await served.send("POST", INFO, deep, content_type=JSON)
        assert json.loads(reply)["error"]["code"] == -32700


async def test_a_node_of_another_network_is_not_asked() -> None:
    first, second = GatewayNode(network_id=1), GatewayNode()
    async with serve_nodes(first, second), serve_gateway([first.url, second.url]) as served:
        for _ in range(3):
            assert await served.call(P, "platform.getHeight") == {"height": "19"}
        assert {method for method, count in first.call_counts.items() if count} == {
            "info.getNetworkID"
        }
        pool = served.gateway.forwarders[PrimaryChain.P].pool
        assert pool.mismatches() == {0: "is of another network: 1"}


@pytest.mark.parametrize(
    ("reply", "failure"),
    [
        (Refused(-32000, "invalid API key"), "info.getNetworkID: invalid API key (-32000)"),
        (Refused(-32601, "not here"), "info.getNetworkID: not here (-32601)"),
        ({"networkID": None}, "Expected `int | str`, got `null` - at `$.networkID`"),
        (401, "HTTP 401 (text): the provider refuses this key or address"),
        (403, "HTTP 403 (text): the provider refuses this key or address"),
        (429, "busy"),
    ],
)
async def test_a_node_that_refuses_to_name_its_network_is_not_used_and_of_no_other_network(
    reply: object, failure: str
) -> None:
    refusing, other = GatewayNode(), GatewayNode()
    if isinstance(reply, int):
        refusing.status = reply
    else:
        refusing.replies["info.getNetworkID"] = reply
    async with (
        serve_nodes(refusing, other),
        serve_gateway([refusing.url, other.url]) as served,
    ):
        assert await served.call(P, "platform.getHeight") == {"height": "19"}
        assert not refusing.call_counts["platform.getHeight"]
        await served.until_checked()
        forwarders = served.gateway.forwarders
        pools = {str(chain): forwarder.pool for chain, forwarder in forwarders.items()}
        outcome = gateway_check(pools).run()
        assert isinstance(outcome, CheckOutcome)
        assert outcome.message == {chain: {"0": failure} for chain in PrimaryChain}
        assert outcome.error is None
        refusing.status = 200
        refusing.replies.pop("info.getNetworkID", None)
        await until(lambda: forwarders[PrimaryChain.P].pool.failures() == {})


async def test_a_lagging_node_is_asked_only_if_no_other_is_up() -> None:
    lagging, other = GatewayNode(tips={"P": 5}), GatewayNode(tips={"X": 3})
    async with (
        serve_nodes(lagging),
        serve_nodes(other),
        serve_gateway([lagging.url, other.url]) as served,
    ):
        await served.until_checked()
        assert await served.call(P, "platform.getHeight") == {"height": "19"}
        assert await served.call(X, "avm.getHeight") == {"height": "13"}, (
            "each chain has heights of its own"
        )
        other.status = 503
        assert await served.call(P, "platform.getHeight") == {"height": "5"}


async def test_a_height_that_a_client_saw_does_not_go_back() -> None:
    first, second = GatewayNode(tips={"P": 5}), GatewayNode(tips={"P": 5})
    async with serve_nodes(first, second), serve_gateway([first.url, second.url]) as served:
        await served.until_checked()
        second.tips["P"] = 9
        pool = served.gateway.forwarders[PrimaryChain.P].pool
        await until(lambda: pool.highest == 9)
        for _ in range(3):
            assert await served.call(P, "platform.getHeight") == {"height": "9"}


async def test_reads_go_to_the_next_node_and_issue_tx_is_sent_once() -> None:
    first, second = GatewayNode(), GatewayNode()
    first.replies |= dict.fromkeys(
        ("platform.getTx", "platform.issueTx", "avm.issueTx", "avax.issueTx"), HALTS
    )
    second.replies["platform.getTx"] = {"tx": "0x00"}
    async with serve_nodes(first, second), serve_gateway([first.url, second.url]) as served:
        await served.until_checked()
        assert await served.call(P, "platform.getTx") == {"tx": "0x00"}
        for path, method in ((P, "platform.issueTx"), (X, "avm.issueTx"), (AVAX, "avax.issueTx")):
            node = served.gateway.forwarders[PrimaryChain[path[8]]].pool.nodes[0]
            await until(lambda node=node: node.failure is None and node.head is not None)  # type: ignore[misc]
            assert await served.call(path, method, {"tx": "0x00"}) == NO_REPLY
            assert (first.call_counts[method], second.call_counts[method]) == (1, 0)
            assert await served.call(path, method, {"tx": "0x00"}) == {"txID": TX_ID}


async def test_a_node_that_hangs_is_avoided_and_its_calls_end() -> None:
    first, second = GatewayNode(), GatewayNode()
    async with serve_nodes(first, second), serve_gateway([first.url, second.url]) as served:
        await served.until_checked()
        first.replies |= dict.fromkeys(
            ("platform.getHeight", "info.getNetworkID", "platform.getSubnets"), HANGS
        )
        pool = served.gateway.forwarders[PrimaryChain.P].pool
        await until(lambda: pool.nodes[0].failure == "timeout")
        assert await served.call(P, "platform.getSubnets") != (-32002, "request timed out")
        assert not first.call_counts["platform.getSubnets"]


async def test_a_route_that_the_first_node_lacks_is_read_from_the_next() -> None:
    first, second = GatewayNode(has_index=False), GatewayNode()
    path = "/ext/index/P/block"
    async with serve_nodes(first, second), serve_gateway([first.url, second.url]) as served:
        await served.until_checked()
        block = await served.call(path, "index.getLastAccepted", {"encoding": "hex"})
        assert block["index"] == "18"
        second.has_index = False
        assert (
            await served.send("POST", path, body_of("index.getLastAccepted"), content_type=JSON)
        )[0] == 404


async def test_without_a_node_calls_get_an_error_and_a_busy_node_is_shown() -> None:
    node = GatewayNode()
    async with serve_nodes(node):
        url = node.url
    async with serve_gateway([url]) as served:
        assert await served.call(P, "platform.getHeight") == NO_NODE
        assert await served.call(P, "platform.issueTx", {"tx": "0x"}) == NO_NODE
        async with serve_nodes(node):
            await until(lambda: served.gateway.forwarders[PrimaryChain.P].pool.is_up)
            node.status = 503
            status, _, body = await served.send(
                "POST", P, body_of("platform.getTx"), content_type=JSON
            )
            assert (status, body) == (503, b"not now")


async def test_operators_allow_and_deny_methods() -> None:
    node = GatewayNode()
    node.replies |= {"platform.getNew": {"new": 1}, "platform.setOld": {"old": 1}}
    methods = "platform.get*", "platform.setOld", "!platform.getT*", "!info.*"
    async with serve_nodes(node), serve_gateway([node.url], methods=methods) as served:
        assert await served.call(P, "platform.getNew") == {"new": 1}
        assert await served.call(P, "platform.setOld") == {"old": 1}
        for path, method in (
            (P, "platform.getTx"),
            (P, "platform.getTimestamp"),
            (INFO, "info.peers"),
        ):
            service, _, name = method.partition(".")
            text = f'rpc: can\'t find method "{service}.{name[0].upper()}{name[1:]}"'
            assert await served.call(path, method) == (-32000, text)
            assert not node.call_counts[method]
        assert await served.call(P, "platform.setNew") == (
            -32000,
            'rpc: can\'t find method "platform.SetNew"',
        )
        node.replies["platform.getNew"] = HALTS
        assert await served.call(P, "platform.getNew") == NO_REPLY
        assert node.call_counts["platform.getNew"] == 2, "an unknown method may change state"


def test_the_known_methods_hold_no_keys_and_change_state_in_three_ways() -> None:
    assert {method.partition(".")[0] for method in KNOWN_METHODS} == set(SERVICES)
    assert not any(
        word in method.lower()
        for method in KNOWN_METHODS
        for word in ("key", "user", "wallet", "import")
    )
    assert sorted(method for method in KNOWN_METHODS if ".issue" in method) == [
        "avax.issueTx",
        "avm.issueTx",
        "platform.issueTx",
    ]
    assert len(KNOWN_METHODS) == 67
    allowed = AllowedMethods()
    assert all(map(allowed.allow, KNOWN_METHODS))
    assert not allowed.allow("platform.getheight")


def test_a_denied_method_stays_denied_in_every_spelling_that_a_node_reads_as_it() -> None:
    allowed = AllowedMethods(("platform.*",), ("platform.sampleValidators", "platform.issueTx"))
    assert allowed.allow("platform.someNewMethod")
    # A node makes the first letter upper case: that of these letters is S, and I.
    for spelled in (
        "platform.sampleValidators",
        "platform.\u017fampleValidators",
        "platform.\u0131ssueTx",
    ):
        assert not allowed.allow(spelled)


async def test_calls_cost_a_unit_each_and_are_refused_over_the_limit() -> None:
    node = GatewayNode()
    async with serve_nodes(node), serve_gateway([node.url], Admission(units=2)) as served:
        assert await served.call(INFO, "info.getNetworkID") == {"networkID": "88888"}
        assert (await served.call(INFO, "info.nope"))[0] == -32000
        status, content_type, body = await served.send(
            "POST", INFO, body_of("info.peers"), content_type=JSON
        )
        assert (status, content_type) == (429, "application/json; charset=utf-8")
        error = json.loads(body)
        assert (error["id"], error["error"]["code"], error["error"]["data"]) == ("a", -32005, None)
        large = body_of("info.peers", padding="x" * 5_000)
        assert (
            json.loads((await served.send("POST", INFO, large, content_type=JSON))[2])["id"] is None
        )
        assert not node.call_counts["info.peers"]


async def test_with_credits_a_call_costs_those_of_its_method() -> None:
    node, admission = GatewayNode(), Admission(units=1_000)
    node_api = NodeApiSettings(
        rate_limit_rpc=RpcUnit.CREDITS, method_credits=(("platform.getTx", 3),)
    )
    async with serve_nodes(node), serve_gateway([node.url], admission, node_api) as served:
        costs = []
        for path, method in (
            (INFO, "info.getNetworkID"),
            (INFO, "info.peers"),
            (P, "platform.getCurrentValidators"),
            (P, "platform.getTx"),
            (P, "platform.getHeight"),
            (P, "platform.nope"),
        ):
            before = admission.units
            await served.call(path, method)
            costs.append(before - admission.units)
        assert costs == [1, 100, 100, 3, 10, 10]
        before = admission.units
        await served.send("POST", P, b"{", content_type=JSON)
        assert before - admission.units == 10
        admission.units = 99
        assert (await served.call(INFO, "info.peers"))[0] == -32005
        admission.units = 99
        assert await served.call(INFO, "info.getNetworkID") == {"networkID": "88888"}


async def test_a_key_in_the_query_is_accepted() -> None:
    node = GatewayNode()
    async with serve_nodes(node), serve_gateway([node.url], Admission(key="secret-key")) as served:
        assert (await served.send("POST", INFO, body_of("info.getNodeID"), content_type=JSON))[
            0
        ] == 401
        path = INFO + "?apikey=secret-key"
        assert (await served.send("POST", path, body_of("info.getNetworkID"), content_type=JSON))[
            0
        ] == 200
        assert not any("secret-key" in path for path, _ in node.seen)


async def test_each_call_is_metered_with_its_route_method_and_outcome() -> None:
    node = GatewayNode()
    node.replies["platform.getStake"] = HALTS
    async with serve_nodes(node), serve_gateway([node.url], methods=("info.new",)) as served:
        await meter_calls(served)
        node.replies["info.new"] = {}
        await served.call(INFO, "info.new")
    outcomes = {
        (*path_and_method, outcome): count
        for path_and_method, usage in served.usage.since_start.items()
        for outcome, count in usage.by_outcome().items()
        if count
    }
    assert outcomes == {
        (P, "platform.getHeight", CallOutcome.SUCCESSFUL): 1,
        (P, "platform.getBlockByHeight", CallOutcome.SUCCESSFUL): 1,
        (P, "other", CallOutcome.INVALID): 2,
        (P, "none", CallOutcome.INVALID): 2,
        (P, "platform.getStake", CallOutcome.FAILED): 1,
        (AVAX, "avax.issueTx", CallOutcome.SUCCESSFUL): 1,
        (INFO, "info.new", CallOutcome.SUCCESSFUL): 1,
    }


async def meter_calls(served: ServedGateway) -> None:
    await served.call(P, "platform.getHeight")
    await served.call(P, "platform.getBlockByHeight", {"height": 10_000})
    await served.call(P, "platform.nope")
    await served.call(P, "health.liveness")
    await served.send("POST", P, b"{", content_type=JSON)
    await served.send("POST", P, body_of("platform.getHeight"))
    await served.send("GET", P)
    await served.call(P, "platform.getStake")
    await served.call(AVAX, "avax.issueTx", {"tx": "0x00"})


async def test_a_web_socket_is_refused() -> None:
    node = GatewayNode()
    async with serve_nodes(node), serve_gateway([node.url]) as served:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
            await served.session.ws_connect(served.url + P)
        assert refusal.value.status == 405
