"""Nodes that lack methods: newer nodes lack deprecated methods, and liars lack all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp import web

from tests.eventually import stopped_clock
from tests.node.recorded_node import L1, PERMISSIONED, RecordedNode, RefusedCall, open_upstream
from tests.node.test_agreement import OTHER, TIP, Contradictions, open_agreeing
from tests.node.test_l1_state import REGISTER, REGISTERED, REMOVED
from warpseal.upstream.errors import NodeUnavailable
from warpseal.warp.ids import PRIMARY_NETWORK, id_text

SUBNETS = "platform.getSubnets"
ALL_SETS = "platform.getAllValidatorsAt"
# Subnets with validators; the recorded list has one more, without any.
WITH_VALIDATORS = {PRIMARY_NETWORK, L1, PERMISSIONED}


def lacks(method: str, text: str = "", code: int = -32_000) -> RecordedNode:
    """Return a node that refuses one method as avalanchego does, or with another text and code."""
    service, _, name = method.partition(".")
    text = text or f'rpc: can\'t find method "{service}.{name[0].upper()}{name[1:]}"'
    return RecordedNode({method: refusing(text, code)})


def refusing(text: str, code: int = -32_000) -> Any:
    def refuse(_: Mapping[str, Any]) -> Any:
        raise RefusedCall(text, code)

    return refuse


class LacksAll(dict[str, Any]):
    """Replies of a node that says of every method that it does not exist."""

    def get(self, method: str, default: Any = None) -> Any:
        return refusing(f'rpc: can\'t find method "{method}"')


@pytest.mark.parametrize(
    "node",
    [
        lacks(SUBNETS),
        lacks(SUBNETS, 'rpc: can\'t find service "platform.GetSubnets"'),
        lacks(SUBNETS, "the method platform.getSubnets does not exist/is not available", -32_601),
        lacks(SUBNETS, "Method not found", -32_601),
    ],
)
async def test_a_node_without_the_list_of_subnets_names_those_with_validators(
    node: RecordedNode,
) -> None:
    async with open_upstream(node) as upstream:
        assert set(await upstream.platform.subnets()) == WITH_VALIDATORS
        assert set(await upstream.platform.subnets()) == WITH_VALIDATORS
    assert (node.calls[SUBNETS], node.calls[ALL_SETS]) == (1, 2)


@pytest.mark.parametrize("status", [403, 404, 405])
async def test_a_gateway_that_forbids_the_list_is_not_remembered_to_lack_it(status: int) -> None:
    node = RecordedNode({SUBNETS: lambda _: web.Response(status=status)})
    async with open_upstream(node) as upstream:
        assert set(await upstream.platform.subnets()) == WITH_VALIDATORS
        node.replies.clear()
        assert len(await upstream.platform.subnets()) == 4


async def test_a_node_is_asked_again_after_an_hour_when_it_may_run_another_version() -> None:
    node = lacks(SUBNETS)
    with stopped_clock() as clock:
        async with open_upstream(node) as upstream:
            await upstream.platform.subnets()
            node.replies.clear()
            clock.now_s += 3_599
            assert len(await upstream.platform.subnets()) == 3
            clock.now_s += 2
            assert len(await upstream.platform.subnets()) == 4


async def test_an_older_node_lists_the_subnets_that_a_newer_one_lacks() -> None:
    newer, older = lacks(SUBNETS), RecordedNode()
    async with open_upstream(newer, older) as upstream:
        for _ in range(3):
            assert len(await upstream.platform.subnets()) == 4
    assert (newer.calls[SUBNETS], newer.calls[ALL_SETS], older.calls[SUBNETS]) == (1, 0, 3)


async def test_nodes_without_the_list_agree_on_the_subnets_with_validators() -> None:
    observer = Contradictions()
    nodes = lacks(SUBNETS), RecordedNode(), lacks(SUBNETS)
    async with open_agreeing(*nodes, observer=observer) as upstream:
        assert set(await upstream.platform.subnets()) == WITH_VALIDATORS
    assert observer.counts == {}


async def test_a_node_cannot_add_a_subnet_to_the_keys_of_others() -> None:
    observer = Contradictions()
    forged = {"validatorSets": {id_text(OTHER): {"totalWeight": "1"}}}
    liar = RecordedNode({**lacks(SUBNETS).replies, ALL_SETS: forged})
    async with open_agreeing(liar, lacks(SUBNETS), lacks(SUBNETS), observer=observer) as upstream:
        assert set(await upstream.platform.subnets()) == WITH_VALIDATORS
    async with open_agreeing(liar, lacks(SUBNETS)) as upstream:
        with pytest.raises(NodeUnavailable):
            await upstream.platform.subnets()


async def test_without_any_way_the_list_is_unavailable() -> None:
    async with open_upstream(RecordedNode(LacksAll())) as upstream:
        with pytest.raises(NodeUnavailable):
            await upstream.platform.subnets()


@pytest.mark.parametrize("quorum", [1, 2])
async def test_a_node_that_lacks_every_method_changes_no_reply(quorum: int) -> None:
    liar, observer = RecordedNode(LacksAll()), Contradictions()
    honest = [RecordedNode() for _ in range(quorum)]
    async with open_agreeing(liar, *honest, quorum=quorum, observer=observer) as upstream:
        platform = upstream.platform
        assert await platform.height() == TIP
        assert await platform.proposed_height() == TIP
        assert len(await platform.validators_at(L1, TIP)) > 0
        assert L1 in await platform.all_validators_at(TIP)
        assert len(await platform.subnets()) == 4
        assert len(await platform.current_validations(L1)) > 0
        subnet = await platform.subnet(L1)
        assert subnet is not None
        assert subnet.is_l1
        assert (await platform.transaction(REGISTER)) is not None
        for validation_id, exists in ((REGISTERED, True), (REMOVED, False)):
            validation = await platform.l1_validator(validation_id)
            assert validation is not None
            assert (validation.state is not None) is exists
    assert observer.counts == {}
