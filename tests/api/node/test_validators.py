"""Validators of a chain over HTTP, as the nodes of that chain list them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from tests import paths
from tests.api.node.fixtures import L1_CHAIN, SETTINGS, NodeApiSetup, Reply, started_node_api
from tests.api.node.test_recorded import compare, recorded
from tests.node.recorded_node import build_settings, serve_app
from warpseal.api.node.endpoints import ValidatorsEndpoint
from warpseal.node.chain_apis import ChainApi, ChainValidatorsClient, api_endpoint
from warpseal.node.upstream import connect_upstream
from warpseal.upstream.endpoint import EvmChain, NodeEndpoint
from warpseal.upstream.node import open_session
from warpseal.warp.ids import ChainID, parse_id

PATH = f"/ext/bc/{L1_CHAIN}/validators"
CHAIN = ChainID(parse_id(L1_CHAIN))
METHOD = "validators.getCurrentValidators"
LINES = (paths.LOCALNET / "chain-validators.jsonl").read_text().splitlines()
LISTED = [json.loads(line)["result"]["validators"] for line in LINES]
UNKNOWN_NODE = "NodeID-111111111111111111116DBWJs"


@dataclass
class Node:
    """Answers as subnet-evm does: all it lists, or those that are named.

    status: HTTP status of each reply; only 200 has a list.
    """

    listed: list[dict[str, Any]] = field(default_factory=lambda: LISTED[0])
    status: int = 200
    calls: int = 0
    uri: str = ""

    async def respond(self, request: web.Request) -> web.Response:
        self.calls += 1
        if self.status != 200:
            return web.Response(status=self.status)
        call = await request.json()
        node_ids = call["params"]["nodeIDs"]
        entries = [entry for entry in self.listed if not node_ids or entry["nodeID"] in node_ids]
        return web.json_response(
            {"jsonrpc": "2.0", "id": call["id"], "result": {"validators": entries}}
        )


@asynccontextmanager
async def chain(*nodes: Node) -> AsyncIterator[NodeApiSetup]:
    """Serve the validators of a chain behind which these nodes are."""
    async with AsyncExitStack() as stack:
        for node in nodes:
            await serve(node, stack)
        session = await stack.enter_async_context(open_session())
        rpc = tuple(NodeEndpoint(node.uri + PATH.replace("/validators", "/rpc")) for node in nodes)
        settings = build_settings("http://127.0.0.1:9", evm_chains=(EvmChain(CHAIN, rpc),))
        node_api = await stack.enter_async_context(started_node_api())
        source: ChainValidatorsClient = connect_upstream(settings, session).validators[CHAIN]
        node_api.interfaces.add(f"bc/{L1_CHAIN}", ValidatorsEndpoint(source, SETTINGS).routes())
        yield node_api


async def serve(node: Node, stack: AsyncExitStack) -> None:
    """Serve a node on a loopback port until the stack is left."""
    app = web.Application()
    app.router.add_post(PATH, node.respond)
    node.uri = await stack.enter_async_context(serve_app(app))


async def listed(node_api: NodeApiSetup, *node_ids: str) -> Any:
    reply: Reply = await node_api.rpc(PATH, METHOD, {"nodeIDs": list(node_ids)})
    return reply.json["result"]["validators"] if "result" in reply.json else reply.error


async def test_every_recorded_exchange_is_answered_as_the_node_answered_it() -> None:
    exchanges = [item for item in recorded("http") if item["path"] == PATH]
    assert len(exchanges) >= 7
    async with chain(Node()) as node_api:
        for exchange in exchanges:
            body = exchange["request"].encode() if exchange["request"] is not None else None
            compare(
                await node_api.send(exchange["http"], PATH, body, exchange["headers"]), exchange
            )


async def test_validators_of_the_node_are_passed_on_with_all_fields_in_order() -> None:
    for recorded_list in LISTED:
        async with chain(Node(recorded_list)) as node_api:
            validators = await listed(node_api)
            assert validators == recorded_list
            assert [list(item) for item in validators] == [list(entry) for entry in recorded_list]


async def test_a_weight_beyond_2_to_the_53_stays_a_whole_number() -> None:
    async with chain(Node([{**LISTED[0][0], "weight": 2**64 - 1}])) as node_api:
        reply = await node_api.rpc(PATH, METHOD, {})
        assert f'"weight":{2**64 - 1},' in reply.text


async def test_validators_are_selected_by_id_and_a_malformed_id_is_refused() -> None:
    first = LISTED[0][0]["nodeID"]
    async with chain(Node()) as node_api:
        assert [entry["nodeID"] for entry in await listed(node_api, first)] == [first]
        assert await listed(node_api, UNKNOWN_NODE) == []
        for malformed in ("NodeID-1", "x", first[7:], ""):
            code, text = await listed(node_api, malformed)
            assert (code, text[:30]) == (-32000, "couldn't unmarshal an argument"), malformed


async def test_the_same_node_is_called_until_it_fails() -> None:
    one, other = Node(), Node([])
    async with chain(one, other) as node_api:
        assert await listed(node_api)
        one.status = 500
        assert await listed(node_api) == []
        one.status = 200
        assert await listed(node_api) == [], "the other has measured by itself"
        assert other.calls == 2


@pytest.mark.parametrize("status", [404, 405])
async def test_a_chain_whose_nodes_do_not_serve_validators_is_a_404_without_further_calls(
    status: int,
) -> None:
    node = Node(status=status)
    async with chain(node) as node_api:
        for _ in range(3):
            reply = await node_api.rpc(PATH, METHOD, {})
            assert (reply.status, reply.text) == (404, "404 page not found\n")
        assert node.calls == 1


async def test_an_error_about_failed_nodes_contains_no_address() -> None:
    node = Node(status=503)
    async with chain(node) as node_api:
        code, text = await listed(node_api)
        assert code == -32000
        assert node.uri not in text


@pytest.mark.parametrize(
    "response",
    [
        {"validators": [{}]},
        {"validators": [{**LISTED[0][0], "weight": -1}]},
        {"validators": 7},
        [],
        None,
    ],
)
async def test_a_malformed_node_response_is_not_passed_on(response: object) -> None:
    node = Node()

    async def lie(request: web.Request) -> web.Response:
        return web.json_response(
            {"jsonrpc": "2.0", "id": (await request.json())["id"], "result": response}
        )

    node.respond = lie  # type: ignore[method-assign]
    async with chain(node) as node_api:
        assert (await listed(node_api))[0] == -32000


@pytest.mark.parametrize(
    ("rpc", "validators"),
    [
        ("http://a/ext/bc/x/rpc", "http://a/ext/bc/x/validators"),
        (
            "https://rpc.example/rpc/ext/bc/rpc/rpc?k=v",
            "https://rpc.example/rpc/ext/bc/rpc/validators?k=v",
        ),
        ("https://example/evm", None),
    ],
)
def test_the_validators_url_is_derived_from_the_rpc_url(rpc: str, validators: str | None) -> None:
    endpoint = api_endpoint(NodeEndpoint(rpc), ChainApi.VALIDATORS)
    assert (endpoint.base_url if endpoint else None) == validators
