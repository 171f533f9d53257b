"""Three simulated nodes, of which two must agree: one that lies is outvoted, named, rested and
counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import until
from tests.integration.daemon import Daemon, build_config, run_daemon, run_network
from tests.integration.message_verifier import verify_signed_message
from tests.simnet.sessions import Clock
from warpseal.node.platform import PlatformClient
from warpseal.node.settings import NodeSettings
from warpseal.node.upstream import connect_upstream
from warpseal.upstream.endpoint import NodeEndpoint
from warpseal.upstream.errors import NodesDisagree
from warpseal.upstream.node import open_session
from warpseal.warp.ids import PRIMARY_NETWORK, SubnetID, id_text
from warpseal.warp.validator_set import ValidatorEntry
from warpseal_simnet.fees import FeeConfig
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.node_behaviours import parse_node_behaviour, parse_node_rule
from warpseal_simnet.plan import L1Plan, Plan, parse_rule
from warpseal_simnet.settings import NodeSettings as SimulatedSettings

PLAN = Plan(validators=6, l1s=(L1Plan(shared=True), L1Plan(validators=3)), nodes=3, churn_every=1)
BLAMED = "upstream node contradicts the others"


def keys(network: SimulatedNetwork, *tracked: SubnetID) -> dict[str, Any]:
    """Return config keys that name all nodes, of which two must agree, and the tracked L1s."""
    nodes = [{"base-url": node.uri} for node in network.nodes]
    config = {"p-chain-api": nodes, "info-api": nodes, "p-chain-quorum": 2}
    return {**config, "tracked-subnet-ids": list(map(id_text, tracked))}


async def disagreements(daemon: Daemon) -> dict[str, float]:
    """Return the nodes that the metrics blame, with their method."""
    return {
        name: value
        for name, value in (await daemon.metrics()).items()
        if "disagreements_total{" in name
    }


def series(position: int, method: str) -> str:
    return f'warpseal_node_disagreements_total{{method="platform.{method}",node="{position}"}}'


def lie(network: SimulatedNetwork, place: int, words: str) -> None:
    network.nodes[place].behaviour = parse_node_behaviour(words)


def set_at(network: SimulatedNetwork, subnet_id: SubnetID, height: int) -> set[ValidatorEntry]:
    return {
        ValidatorEntry(member.node_id, member.public_key, member.weight)
        for member in network.state.set_at(subnet_id, height)
    }


class Counted:
    """Counts contradictions by position and method."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[int, str]] = Counter()

    def observe_call(self, method: str, outcome: str, seconds: float) -> None:
        """Calls themselves do not matter here."""

    def count_disagreement(self, position: int, method: str) -> None:
        self.counts[position, method] += 1


@asynccontextmanager
async def open_platform(
    network: SimulatedNetwork, counted: Counted
) -> AsyncIterator[PlatformClient]:
    endpoints = tuple(NodeEndpoint(node.uri) for node in network.nodes)
    async with open_session() as session:
        settings = NodeSettings(p_chain_api=endpoints, info_api=endpoints, p_chain_quorum=2)
        yield connect_upstream(settings, session, observer=counted).platform


@pytest.mark.parametrize(
    "words", ["old-sets=5", "foreign-sets", "forged-height=1000", "foreign-conversion"]
)
async def test_one_liar_of_three_changes_no_response(words: str) -> None:
    async with run_network(PLAN) as network:
        network.advance(10)
        for place in range(3):
            lie(network, place, words)
            node_series = await ask_everything(network)
            # The third node is asked only if another one lies.
            assert node_series == (
                {place} if place < 2 and words != "forged-height=1000" else set()
            )
            lie(network, place, "")


async def ask_everything(network: SimulatedNetwork) -> set[int]:
    """Assert that fresh clients of all nodes get the true responses; return the nodes that
    contradicted others.
    """
    tip, subnet = network.state.heights.current, network.subnets[1]
    chains = network.state.chains_of(subnet.subnet_id)
    counted = Counted()
    async with open_platform(network, counted) as platform:
        assert await platform.proposed_height() == network.state.heights.proposed
        assert await platform.height() == tip
        for subnet_id in (PRIMARY_NETWORK, subnet.subnet_id):
            assert set(await platform.validators_at(subnet_id, tip)) == set_at(
                network, subnet_id, tip
            )
        subnet_facts = await platform.subnet(subnet.subnet_id)
        assert subnet_facts is not None
        assert (subnet_facts.conversion_id, subnet_facts.manager_chain_id) == (
            subnet.conversion_id,
            subnet.manager_chain_id,
        )
        assert await platform.validated_by(chains[0]) == subnet.subnet_id
        assert set(await platform.blockchains_of(subnet.subnet_id)) == set(chains)
        current = await platform.current_validations(subnet.subnet_id)
        assert {validation.node_id for validation in current} == {
            member.node_id for member in network.state.set_at(subnet.subnet_id, tip)
        }
        state = await platform.l1_validator(current[0].validation_id)  # type: ignore[arg-type]
        assert state is not None
        assert state.state is not None
        assert state.state.weight == current[0].weight
    return {position for position, _ in counted.counts}


async def test_two_agreeing_liars_win_and_three_different_replies_are_no_agreement() -> None:
    async with run_network(PLAN) as network:
        tip, counted = network.advance(10), Counted()
        lie(network, 1, "old-sets=5")
        lie(network, 2, "old-sets=5")
        async with open_platform(network, counted) as platform:
            entries = await platform.validators_at(PRIMARY_NETWORK, tip)
        assert set(entries) == set_at(network, PRIMARY_NETWORK, tip - 5)
        assert counted.counts == {(0, "platform.getValidatorsAt"): 1}
        lie(network, 2, "foreign-sets")
        async with open_platform(network, Counted()) as platform:
            with pytest.raises(NodesDisagree) as error:
                await platform.validators_at(PRIMARY_NETWORK, tip)
        assert [agreement_class.positions for agreement_class in error.value.classes] == [
            (0,),
            (1,),
            (2,),
        ]


async def test_a_daemon_with_nodes_that_lie_one_after_another_signs_for_the_true_validators(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan = Plan(
        validators=6,
        l1s=PLAN.l1s,
        nodes=3,
        churn_every=1,
        node_rules=(parse_node_rule("0:old-sets=5"),),
    )
    quick: dict[str, Any] = {
        "validators": {"height_poll_s": 0.02},
        "node": {"height_claim_grace_s": 0.3},
    }
    async with run_network(plan) as network:
        network.advance(10)
        async with run_daemon(
            build_config(network, tmp_path, keys(network, network.subnets[1].subnet_id), **quick)
        ) as daemon:
            await daemon.until_ready()
            messages = iter(network.messages_of(PRIMARY_NETWORK))

            async def sign(height: int) -> None:
                message = next(messages)
                reply = await daemon.aggregate(message, pchain_height=height)
                verify_signed_message(
                    network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, 67, height
                )

            await sign(29)
            assert set(await disagreements(daemon)) == {series(0, "getValidatorsAt")}
            lie(network, 0, "")
            lie(network, 1, "foreign-sets")
            await sign(28)
            assert set(await disagreements(daemon)) >= {series(1, "getValidatorsAt")}
            lie(network, 1, "")

            lie(network, 2, "foreign-conversion")
            other = network.subnets[2]
            assert other.conversion_id is not None
            reply = await daemon.aggregate(justification=other.subnet_id.hex())
            assert other.conversion_id in bytes.fromhex(reply.signed)
            assert {series(2, "getSubnet"), series(2, "validatedBy")} & set(
                await disagreements(daemon)
            )
            lie(network, 2, "")

            lie(network, 0, "forged-height=1000")

            async def is_found_out() -> bool:
                network.advance()
                return series(0, "getProposedHeight") in await disagreements(daemon)

            await until(is_found_out)
            assert (await daemon.metrics())[
                "warpseal_proposed_height"
            ] <= network.state.heights.proposed

            lie(network, 0, "old-sets=5")
            lie(network, 1, "foreign-sets")
            reply = await daemon.aggregate(next(messages), pchain_height=26)
            assert (reply.status, reply.body["code"]) == (502, "nodes_disagree")
            assert sorted(record["positions"] for record in reply.detail["classes"]) == [
                [0],
                [1],
                [2],
            ]
            assert int(reply.headers["Retry-After"]) >= 1
            assert not any(str(node.port) in str(reply.body) for node in network.nodes)
            # Sets that were fetched before are still served.
            await sign(29)
    blamed_nodes = {
        (vars(record)["node"], vars(record)["position"])
        for record in caplog.records
        if record.getMessage() == BLAMED
    }
    assert blamed_nodes == {(node.uri, place) for place, node in enumerate(network.nodes)}


async def test_the_forecast_is_that_of_two_nodes_that_agree(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock(1_800_000_000)
    plan = Plan(
        validators=3,
        l1s=(L1Plan(validators=2),),
        messages=0,
        nodes=3,
        fees=FeeConfig(512, 51_937_021, capacity=10_000),
        settings=SimulatedSettings(clock=clock, max_clock_difference_s=1e12),
        rules=tuple(map(parse_rule, ("l1-0/0:balance=100000000", "l1-0/1:balance=20000000000"))),
    )
    fresh: dict[str, Any] = {"validators": {"forecast_ttl_s": 0.0}}
    async with (
        run_network(plan) as network,
        run_daemon(build_config(network, tmp_path, keys(network), **fresh)) as daemon,
    ):
        await daemon.until_open()
        path = f"/v1/networks/fuji/subnets/{id_text(network.subnets[1].subnet_id)}/forecast"
        node_series = series(0, "getCurrentValidators"), series(1, "getCurrentValidators")
        runs_out = [clock.now + 100_000_000 // 512, clock.now + 20_000_000_000 // 512]

        async def assert_true() -> None:
            reply = await daemon.get(path)
            assert reply.status == 200, reply.body
            assert reply.body["asOf"] == clock.now
            assert [row["runsOutAt"] for row in reply.body["validators"]] == runs_out
            assert reply.body["today"]["quorumImpossibleAt"] == runs_out[0]

        await assert_true()
        lie(network, 0, "forged-balance=900000000")
        await assert_true()
        assert await disagreements(daemon) == {node_series[0]: 1}
        lie(network, 0, "")
        lie(network, 1, "forged-balance=900000000")
        await assert_true()
        assert await disagreements(daemon) == dict.fromkeys(node_series, 1)
        blamed_nodes = [
            vars(record)["node"] for record in caplog.records if record.getMessage() == BLAMED
        ]
        assert blamed_nodes == [node.uri for node in network.nodes[:2]]

        # A balance of another height is no contradiction, but the third node outvotes it.
        lie(network, 1, "")
        lie(network, 2, "forged-balance=900000000+forged-height=1000")
        await assert_true()
        assert await disagreements(daemon) == dict.fromkeys(node_series, 1)

        lie(network, 1, "forged-balance=900000000")
        lie(network, 2, "forged-balance=1")
        refused = await daemon.get(path)
        assert (refused.status, refused.body["code"]) == (502, "nodes_disagree")
        assert sorted(record["positions"] for record in refused.detail["classes"]) == [
            [0],
            [1],
            [2],
        ]
        assert not any(str(node.port) in str(refused.body) for node in network.nodes)

        # The node that is asked first lags, by balances as well.
        lie(network, 1, "")
        lie(network, 2, "")
        clock.now += 1_000
        network.advance()
        network.nodes[2].lag = 1
        await assert_true()
        assert await disagreements(daemon) == dict.fromkeys(node_series, 1)


async def test_a_known_set_costs_no_call_and_a_new_one_one_call_of_each_node_that_must_agree(
    tmp_path: Path,
) -> None:
    # Nothing is polled after the start.
    seldom: dict[str, Any] = {
        "height_poll_s": 600.0,
        "height_stale_after_s": 6000.0,
        "validator_refresh_period_s": 600.0,
    }
    async with (
        run_network(Plan(validators=6, l1s=(), nodes=3)) as network,
        run_daemon(build_config(network, tmp_path, keys(network), validators=seldom)) as daemon,
    ):
        await daemon.until_ready()
        messages = network.messages_of(PRIMARY_NETWORK)
        for message in messages[:2]:
            assert (await daemon.aggregate(message)).status == 200
        counts = [Counter(node.rpc.calls) for node in network.nodes]

        def new_calls(method: str) -> list[int]:
            return [
                node.rpc.calls[method] - before[method]
                for node, before in zip(network.nodes, counts, strict=True)
            ]

        methods = (
            "getValidatorsAt",
            "getProposedHeight",
            "getSubnet",
            "validatedBy",
            "validates",
            "getCurrentValidators",
        )
        for message in messages[2:8]:
            assert (await daemon.aggregate(message)).status == 200
        assert {name: new_calls(f"platform.{name}") for name in methods} == {
            name: [0, 0, 0] for name in methods
        }
        assert (await daemon.aggregate(messages[8], pchain_height=12)).status == 200
        assert (await daemon.aggregate(messages[9], pchain_height=12)).status == 200
        assert new_calls("platform.getValidatorsAt") == [1, 1, 0]
