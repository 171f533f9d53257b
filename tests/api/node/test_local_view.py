"""Validators of a chain over HTTP, if no node lists them and the daemon uses its own knowledge."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp import web

from tests.api.node.fixtures import C_CHAIN, L1_CHAIN, SETTINGS, NodeApiSetup, started_node_api
from tests.api.node.test_recorded import compare, recorded
from tests.api.node.test_validators import LISTED, METHOD, PATH, UNKNOWN_NODE, Node, serve
from tests.node.recorded_node import L1_CHAIN as L1_CHAIN_ID
from tests.node.recorded_node import PERMISSIONED_CHAIN, RecordedNode, build_settings, serve_nodes
from tests.validators.fixtures import Clock
from tests.validators.test_chain_validator_list import FakePeerUptimes, as_recorded
from warpseal.api.node.endpoints import ValidatorsEndpoint
from warpseal.node.chain_apis import NOT_SERVED_S, ChainApi, ChainValidatorsClient, api_endpoint
from warpseal.node.upstream import connect_upstream
from warpseal.upstream.endpoint import NodeEndpoint
from warpseal.upstream.node import UpstreamNode, open_session
from warpseal.validators.chain_validator_list import (
    RETRY_S,
    ChainValidatorList,
    CurrentValidations,
    LocalView,
)
from warpseal.validators.chains import ChainLookup
from warpseal.warp.ids import ChainID, id_text

P_METHOD = "platform.getCurrentValidators"
BY_ID = sorted(LISTED[0], key=lambda entry: str(entry["validationID"]))
LEGACY = f"/ext/bc/{id_text(PERMISSIONED_CHAIN)}/validators"


@dataclass
class Served:
    """What answers, the P-Chain behind it, and a clock."""

    setup: NodeApiSetup
    p_chain: RecordedNode
    clock: Clock

    async def listed(self, *node_ids: object, path: str = PATH) -> Any:
        """Return the validators by id, or the error."""
        reply = await self.setup.rpc(path, METHOD, {"nodeIDs": list(node_ids)})
        if reply.status != 200:
            return reply.status
        if "error" in reply.json:
            return reply.error
        return sorted(
            reply.json["result"]["validators"], key=lambda item: str(item["validationID"])
        )


@asynccontextmanager
async def ours(*nodes: Node, peer_uptimes: FakePeerUptimes | None = None) -> AsyncIterator[Served]:
    """Serve the recorded chains; the L1's chain has these nodes.

    peer_uptimes: the recorded node's unless given.
    """
    async with AsyncExitStack() as stack:
        for node in nodes:
            await serve(node, stack)
        p_chain, clock = RecordedNode(), Clock()
        (uri,) = await stack.enter_async_context(serve_nodes(p_chain))
        session = await stack.enter_async_context(open_session())
        settings = build_settings(uri, call_timeout_s=2.0)
        upstream = connect_upstream(settings, session)
        current = CurrentValidations(upstream.platform, now=clock)
        peer_uptimes = peer_uptimes or as_recorded(LISTED[0])
        view = LocalView(
            ChainLookup(upstream.platform, now=clock),
            current,
            peer_uptimes.is_connected,
            peer_uptimes.uptime,
        )
        behind = [
            api_endpoint(
                NodeEndpoint(node.uri + PATH.replace("/validators", "/rpc")), ChainApi.VALIDATORS
            )
            for node in nodes
        ]
        of_nodes = ChainValidatorsClient(
            [UpstreamNode(entry, session, settings.limits) for entry in behind if entry], clock
        )
        node_api = await stack.enter_async_context(started_node_api())
        for chain_id, item in (
            (L1_CHAIN_ID, of_nodes),
            (PERMISSIONED_CHAIN, ChainValidatorsClient(())),
            (C_CHAIN, ChainValidatorsClient(())),
        ):
            chain = ChainValidatorList(ChainID(chain_id), item, view, clock)
            node_api.interfaces.add(
                f"bc/{id_text(chain_id)}", ValidatorsEndpoint(chain, SETTINGS).routes()
            )
        yield Served(node_api, p_chain, clock)


async def test_every_recorded_exchange_is_answered_as_the_node_answered_it() -> None:
    exchanges = [item for item in recorded("http") if item["path"].endswith("/validators")]
    assert len(exchanges) >= 8
    async with ours() as api:
        for exchange in exchanges:
            body = exchange["request"].encode() if exchange["request"] is not None else None
            compare(
                await api.setup.send(exchange["http"], exchange["path"], body, exchange["headers"]),
                exchange,
            )


async def test_validators_of_l1s_and_permissioned_subnets_have_all_fields_in_order() -> None:
    async with ours() as api:
        validators = await api.listed()
        assert validators == BY_ID
        assert [list(item) for item in validators] == [list(entry) for entry in BY_ID]
    async with ours(peer_uptimes=as_recorded(LISTED[2])) as api:
        assert await api.listed(path=LEGACY) == LISTED[2]


async def test_validators_are_selected_by_id_and_all_are_listed_without_ids() -> None:
    first = BY_ID[0]["nodeID"]
    async with ours() as api:
        assert await api.listed(first) == [BY_ID[0]]
        assert await api.listed(first, UNKNOWN_NODE) == [BY_ID[0]]
        assert await api.listed(UNKNOWN_NODE) == []
        for malformed in ("NodeID-1", "x", first[7:], "", 7, None, [first]):
            code, text = await api.listed(malformed)
            assert (code, text[:30]) == (-32000, "couldn't unmarshal an argument"), malformed
        spellings: tuple[object, ...] = (
            {},
            None,
            [{}],
            {"nodeIDs": None},
            {"nodeids": []},
            {"other": 1},
        )
        for params in spellings:
            reply = await api.setup.rpc(PATH, METHOD, params)
            assert len(reply.json["result"]["validators"]) == len(BY_ID), params


async def test_a_weight_beyond_2_to_the_53_stays_a_whole_number() -> None:
    async with ours() as api:
        one = {
            "txID": BY_ID[0]["validationID"],
            "startTime": "1",
            "endTime": "2",
            "weight": str(2**64 - 1),
            "nodeID": UNKNOWN_NODE,
        }
        api.p_chain.replies[P_METHOD] = {"validators": [one]}
        assert f'"weight":{2**64 - 1},' in (await api.setup.rpc(PATH, METHOD, {})).text


async def test_the_primary_network_is_a_404_as_at_a_node() -> None:
    async with ours() as api:
        reply = await api.setup.rpc(f"/ext/bc/{id_text(C_CHAIN)}/validators", METHOD, {})
        assert (reply.status, reply.text) == (404, "404 page not found\n")


async def test_an_alias_of_the_chain_reaches_them() -> None:
    async with ours() as api:
        assert await api.setup.admin("aliasChain", chain=L1_CHAIN, alias="mine") == {}
        assert await api.listed(path="/ext/bc/mine/validators") == BY_ID


async def test_a_node_that_lists_them_is_asked_first_and_its_failure_is_an_error() -> None:
    node_list = [{**LISTED[0][0], "uptimeSeconds": 7}]
    node = Node(node_list)
    async with ours(node) as api:
        assert await api.listed() == node_list
        assert api.p_chain.calls[P_METHOD] == 0
        node.status = 500
        code, text = await api.listed()
        assert code == -32000
        assert node.uri not in text
        node.status = 200
        assert await api.listed() == node_list


@pytest.mark.parametrize("status", [404, 405])
async def test_the_daemon_lists_validators_if_the_node_does_not_and_retries_after_ten_minutes(
    status: int,
) -> None:
    node = Node([{**LISTED[0][0], "uptimeSeconds": 7}], status=status)
    async with ours(node) as api:
        for _ in range(3):
            assert await api.listed() == BY_ID
        assert node.calls == 1
        node.status = 200
        api.clock.now += NOT_SERVED_S - 1
        assert await api.listed() == BY_ID
        api.clock.now += 2
        assert await api.listed() == node.listed


async def test_requests_do_not_wait_for_a_node_that_never_answered() -> None:
    node = Node([{**LISTED[0][0], "uptimeSeconds": 7}], status=503)
    async with ours(node) as api:
        for _ in range(3):
            assert await api.listed() == BY_ID
        assert node.calls == 1
        node.status = 200
        api.clock.now += RETRY_S + 1
        assert await api.listed() == node.listed


async def test_an_error_about_an_unavailable_p_chain_contains_no_address() -> None:
    async with ours() as api:
        assert await api.listed() == BY_ID
        api.p_chain.replies[P_METHOD] = lambda _: web.Response(status=503)
        api.clock.now += 30
        assert await api.listed() == BY_ID, "as of a moment ago"
        api.clock.now += 60
        code, text = await api.listed()
        assert (code, text.partition(":")[0]) == (-32000, "failed to get current validator set")
        assert api.p_chain.uri not in text
