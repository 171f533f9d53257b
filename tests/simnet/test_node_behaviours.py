"""Simulated nodes lie as their words say, equally, and the grammar refuses unknown words."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simnet.client import call
from warpseal.warp.ids import id_text
from warpseal_simnet.build import build_state
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.node_behaviours import (
    InvalidNodeBehaviour,
    NodeBehaviour,
    NodeRule,
    parse_node_behaviour,
    parse_node_rule,
)
from warpseal_simnet.plan import InvalidPlan, L1Plan, Plan

PLAN = Plan(validators=4, l1s=(L1Plan(),), messages=0, churn_every=1, nodes=3)


async def said(network: SimulatedNetwork, place: int, method: str, **params: Any) -> Any:
    return await call(network.nodes[place].uri, "/ext/P", f"platform.{method}", params)


async def test_each_lie_changes_what_its_word_says_and_equal_lies_are_equal() -> None:
    async with SimulatedNetwork(PLAN) as network:
        network.advance(10)
        subnet = network.subnets[1]
        call_params = {"subnetID": id_text(subnet.subnet_id)}
        chain = {"blockchainID": id_text(network.state.chains_of(subnet.subnet_id)[0])}
        for place in (0, 1):
            network.nodes[place].behaviour = parse_node_behaviour("old-sets=5")
        old = await said(network, 0, "getValidatorsAt", height=30, **call_params)
        assert old == await said(network, 2, "getValidatorsAt", height=25, **call_params)
        assert old != await said(network, 2, "getValidatorsAt", height=30, **call_params)
        assert await said(network, 1, "getAllValidatorsAt", height=30) == await said(
            network, 2, "getAllValidatorsAt", height=25
        )

        for place in (0, 1):
            network.nodes[place].behaviour = parse_node_behaviour("foreign-sets")
        for method, params in (
            ("getValidatorsAt", {"height": 30, **call_params}),
            ("getAllValidatorsAt", {"height": 30}),
            ("getCurrentValidators", call_params),
        ):
            true, foreign = (
                await said(network, 2, method, **params),
                await said(network, 0, method, **params),
            )
            assert foreign == await said(network, 1, method, **params)
            assert str(foreign).count("NodeID-") == str(true).count("NodeID-")
            assert not any(validator.name in str(foreign) for validator in network.validators)

        network.nodes[0].behaviour = parse_node_behaviour("forged-height=1000")
        assert [(await said(network, place, "getHeight"))["height"] for place in (0, 2)] == [
            "1030",
            "30",
        ]
        assert (await said(network, 0, "getProposedHeight"))["height"] == "1030"
        beyond = await said(network, 0, "getValidatorsAt", height=900, **call_params)
        assert beyond == await said(network, 2, "getValidatorsAt", height=30, **call_params)

        network.nodes[0].behaviour = parse_node_behaviour("foreign-conversion")
        for method, params in (
            ("getSubnet", call_params),
            ("validatedBy", chain),
            ("validates", call_params),
        ):
            assert await said(network, 0, method, **params) != await said(
                network, 2, method, **params
            )
        for place in (0, 1):
            network.nodes[place].behaviour = parse_node_behaviour("forged-balance=5")
        forged, equal, true = [
            (await said(network, place, "getCurrentValidators", **call_params))["validators"]
            for place in range(3)
        ]
        assert (
            forged
            == equal
            == [{**listed, "balance": str(int(listed["balance"]) + 5)} for listed in true]
        )
        validation = await said(network, 0, "getL1Validator", validationID=true[0]["validationID"])
        assert validation["balance"] == forged[0]["balance"]
        stakes = await said(network, 2, "getCurrentValidators")
        assert await said(network, 0, "getCurrentValidators") == stakes

        network.nodes[0].behaviour = NodeBehaviour()
        assert await said(network, 0, "getSubnet", **call_params) == await said(
            network, 2, "getSubnet", **call_params
        )


def test_a_rule_names_nodes_by_their_places() -> None:
    rule = parse_node_rule("0,2:old-sets=3+forged-height")
    assert rule == NodeRule((0, 2), NodeBehaviour(old_sets=3, forged_height=1000))
    network = SimulatedNetwork(Plan(validators=1, l1s=(), nodes=3, node_rules=(rule,)))
    assert [node.behaviour.old_sets for node in network.nodes] == [3, 0, 3]


@pytest.mark.parametrize(
    "text", ["", "old-sets", "x:old-sets", "0:truth", "0:old-sets=x", "-1:old-sets", ":old-sets"]
)
def test_a_rule_that_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(InvalidNodeBehaviour):
        parse_node_rule(text)


def test_a_rule_about_a_node_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidPlan):
        build_state(Plan(validators=1, l1s=(), node_rules=(parse_node_rule("1:foreign-sets"),)))


async def test_replies_that_differ_from_an_honest_nodes_are_counted() -> None:
    async with SimulatedNetwork(PLAN) as network:
        node = network.nodes[0]
        await said(network, 0, "getHeight")
        node.behaviour = behaviour = parse_node_behaviour("forged-height=1000")
        await said(network, 0, "getHeight")
        await said(network, 0, "getTimestamp")
        assert node.lies == {behaviour: 1}
