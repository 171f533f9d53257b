"""Validator sets of a real index over a simulated network: nodes may stop, or lie, and nothing
false is signed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import until
from tests.indexer.indexed import SimulatedNode, indexing, only, until_caught_up
from tests.integration.daemon import Daemon, build_config, run_daemon, run_network
from tests.integration.l1_daemon import attested_message
from tests.integration.message_verifier import verify_signed_message
from warpseal.chains.p_blocks import parse_p_genesis
from warpseal.resources.chains import PrimaryChain
from warpseal.warp.ids import SubnetID, id_text
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.node_behaviours import parse_node_behaviour
from warpseal_simnet.plan import L1Plan, Plan, parse_rule
from warpseal_simnet.rpc import Outage, OutageKind

PLAN = Plan(validators=2, l1s=(L1Plan(validators=4, weights="4/3/2/1"),), messages=8, nodes=2)
QUICK: dict[str, Any] = {
    "validators": {
        "height_poll_s": 0.05,
        "height_stale_after_s": 1.0,
        "current_refresh_s": 0.1,
        "forecast_ttl_s": 0.0,
    },
    "l1": {"lookup_timeout_s": 2.0, "validity_ttl_s": 0.0},
}
DOWN = {"*": Outage(OutageKind.HTTP_500)}
LIES = "foreign-sets+foreign-conversion"


@asynccontextmanager
async def indexed_daemon(
    network: SimulatedNetwork, folder: Path, source: str
) -> AsyncIterator[Daemon]:
    """Run a daemon, and the indexer, until the index has all blocks of the network."""
    nodes = [{"base-url": node.uri} for node in network.nodes]
    subnet = id_text(l1_of(network))
    keys = {
        "p-chain-api": nodes,
        "info-api": nodes,
        "tracked-subnet-ids": [subnet],
        "ready-subnets": [subnet],
    }
    keys |= {"index-chains": ["p"], "validator-sets": source}
    index_folder = folder / "data" / str(network.network_id)
    index_folder.mkdir(parents=True)
    genesis = parse_p_genesis(network.state.ledger.genesis)
    settings = only(PrimaryChain.P)
    async with (
        run_daemon(build_config(network, folder, keys, **QUICK)) as daemon,
        indexing(index_folder, SimulatedNode(network), settings=settings, genesis=genesis),
    ):
        await until_indexed(daemon, network)
        await daemon.until_ready()
        yield daemon


def l1_of(network: SimulatedNetwork) -> SubnetID:
    return network.subnets[-1].subnet_id


async def until_indexed(daemon: Daemon, network: SimulatedNetwork) -> None:
    async def is_indexed() -> bool:
        return (await daemon.metrics()).get(
            'warpseal_index_height{chain="p-chain"}'
        ) == network.p_chain.height

    await until(is_indexed)


async def test_a_cold_message_is_signed_while_all_nodes_are_down(tmp_path: Path) -> None:
    async with run_network(PLAN) as network, indexed_daemon(network, tmp_path, "both") as daemon:
        subnet_id, messages = l1_of(network), iter(network.messages_of(l1_of(network)))
        await sign(daemon, network, next(messages))
        assert (await forecast(daemon, subnet_id))["quorum"]["totalWeight"] == "10"
        # The weight of the heaviest validator falls, so that the set at the new height is new.
        heaviest = network.state.validations[subnet_id][0]
        changed = network.p_chain.set_weight(heaviest.id, 2)
        repeated = network.p_chain.set_weight(network.state.validations[subnet_id][1].id, 3)
        await until_indexed(daemon, network)
        for node in network.nodes:
            node.rpc.outages = dict(DOWN)

        async def is_at_tip() -> bool:
            height: str = (await daemon.get("/status.json")).body["proposedHeight"]
            return height == str(network.p_chain.height)

        await until(is_at_tip)
        assert await sign(daemon, network, next(messages)) == network.p_chain.height
        # Balances, weights and validations come from rows.
        assert (await forecast(daemon, subnet_id))["quorum"]["totalWeight"] == "8"
        chain_id = network.state.chains_of(subnet_id)[0]
        call = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "validators.getCurrentValidators",
            "params": {"nodeIDs": []},
        }
        async with daemon.session.post(
            f"{daemon.api_url}/ext/bc/{id_text(chain_id)}/validators", json=call
        ) as listed:
            validators = (await listed.json())["result"]["validators"]
        assert sorted(validator["weight"] for validator in validators) == [1, 2, 2, 3]
        assert all(validator["isActive"] for validator in validators)
        # The message of the last transaction: its subnet, its manager and its validity are in the
        # index.
        reply = await daemon.l1_message(changed)
        assert reply.status == 201, reply.body
        assert "X-Warpseal-Unchecked" not in reply.headers
        raw = attested_message(changed).unsigned.raw
        verify_signed_message(network, reply.signed, raw, subnet_id, 67, network.p_chain.height)
        # Nodes that hang leave the lookup of the validity no time, but the index has it.
        for node in network.nodes:
            node.rpc.outages = DOWN | {"platform.getL1Validator": Outage(OutageKind.HANG)}
        reply = await daemon.l1_message(repeated)
        assert reply.status == 201, reply.body
        assert "X-Warpseal-Unchecked" not in reply.headers


@pytest.mark.parametrize(
    ("source", "lie"), [(None, "old-sets=1"), ("both", "old-sets=1+foreign-conversion")]
)
async def test_no_start_beside_a_lying_node_signs_for_its_set(
    tmp_path: Path, source: str | None, lie: str
) -> None:
    plan = replace(PLAN, rules=(parse_rule("l1-0/3:silent"),))
    async with run_network(plan) as network:
        subnet_id = l1_of(network)
        # Without the silent validator the true set has no quorum, but the set before had one.
        network.p_chain.set_weight(network.state.validations[subnet_id][3].id, 100)
        genesis = parse_p_genesis(network.state.ledger.genesis)
        index_folder = tmp_path / "data" / str(network.network_id)
        index_folder.mkdir(parents=True)
        async with indexing(
            index_folder, SimulatedNode(network), settings=only(PrimaryChain.P), genesis=genesis
        ) as indexer:
            await until_caught_up(indexer)
        network.nodes[0].behaviour = parse_node_behaviour(lie)
        nodes = [{"base-url": node.uri} for node in network.nodes]
        keys: dict[str, Any] = {"p-chain-api": nodes, "info-api": nodes, "index-chains": ["p"]}
        if source is not None:
            keys["validator-sets"] = source
        for _ in range(3):
            async with run_daemon(build_config(network, tmp_path, keys, **QUICK)) as daemon:
                messages = network.messages_of(subnet_id)
                replies = await asyncio.gather(
                    *(daemon.aggregate(message, timeout_seconds=2.0) for message in messages)
                )
            assert {reply.status for reply in replies} == {504}, [reply.body for reply in replies]
            assert {reply.body.get("code") for reply in replies} == {"quorum_not_reached"}


@pytest.mark.parametrize(("nodes", "has_index"), [(3, True), (3, False), (1, True)])
async def test_a_leap_of_the_height_at_one_node_delays_no_signature(
    tmp_path: Path, nodes: int, has_index: bool
) -> None:
    async with run_network(replace(PLAN, nodes=nodes)) as network, AsyncExitStack() as stack:
        subnet_id, messages = l1_of(network), iter(network.messages_of(l1_of(network)))
        liar = network.nodes[0]

        async def lie_for_some_polls() -> None:
            liar.behaviour = parse_node_behaviour(f"forged-proposal={10**9}")
            calls = network.calls["platform.getProposedHeight"]
            await until(lambda: network.calls["platform.getProposedHeight"] > calls + 10)
            liar.behaviour = parse_node_behaviour("")

        urls = [{"base-url": node.uri} for node in network.nodes]
        keys: dict[str, Any] = {
            "p-chain-api": urls,
            "info-api": urls,
            "tracked-subnet-ids": [id_text(subnet_id)],
        }
        if has_index:
            index_folder = tmp_path / "data" / str(network.network_id)
            index_folder.mkdir(parents=True)
            genesis = parse_p_genesis(network.state.ledger.genesis)
            settings, keys["index-chains"] = only(PrimaryChain.P), ["p"]
            honest = SimulatedNode(network, place=nodes - 1)
            async with indexing(
                index_folder, honest, settings=settings, genesis=genesis
            ) as indexer:
                await until_caught_up(indexer)
        config = build_config(network, tmp_path, keys, validators={"height_poll_s": 0.02})
        daemon = await stack.enter_async_context(run_daemon(config))
        # The first heights of a daemon may be a lie as well as later ones.
        await lie_for_some_polls()
        await sign(daemon, network, next(messages))
        await lie_for_some_polls()
        await sign(daemon, network, next(messages))


@pytest.mark.parametrize("has_index", [True, False])
async def test_a_lie_of_one_node_about_epochs_stops_no_signing_for_a_destination(
    tmp_path: Path, has_index: bool
) -> None:
    async with run_network(replace(PLAN, nodes=3)) as network, AsyncExitStack() as stack:
        urls = [{"base-url": node.uri} for node in network.nodes]
        keys: dict[str, Any] = {"p-chain-api": urls, "info-api": urls}
        if has_index:
            index_folder = tmp_path / "data" / str(network.network_id)
            index_folder.mkdir(parents=True)
            genesis = parse_p_genesis(network.state.ledger.genesis)
            settings, keys["index-chains"] = only(PrimaryChain.P), ["p"]
            async with indexing(
                index_folder, SimulatedNode(network), settings=settings, genesis=genesis
            ) as indexer:
                await until_caught_up(indexer)
        # The liar is asked first.
        network.nodes[0].behaviour = parse_node_behaviour(f"forged-epoch={10**9}")
        daemon = await stack.enter_async_context(run_daemon(build_config(network, tmp_path, keys)))
        for message in network.messages_of(l1_of(network))[:2]:
            reply = await daemon.aggregate_v1(message, destinationBlockchainId="C")
            assert reply.status == 201, reply.body


async def test_nothing_is_signed_below_the_true_quorum_while_nodes_lie(tmp_path: Path) -> None:
    for source in ("both", "index"):
        folder = tmp_path / source
        folder.mkdir()
        async with run_network(PLAN) as network, indexed_daemon(network, folder, source) as daemon:
            subnet_id, messages = l1_of(network), iter(network.messages_of(l1_of(network)))
            for node in network.nodes:
                node.behaviour = parse_node_behaviour(LIES)
            network.p_chain.set_weight(network.state.validations[subnet_id][0].id, 2)
            await until_indexed(daemon, network)
            height = network.p_chain.height
            first = next(messages)
            if source == "index":
                await sign(daemon, network, first, height)
                assert network.calls["platform.getValidatorsAt"] == 0
                continue
            # The set of the index is used at once; the difference stops signing for the subnet.
            reply = await daemon.aggregate(first)
            if reply.status == 200:
                verify_signed_message(
                    network, reply.signed, first.unsigned.raw, subnet_id, 67, height
                )

            async def is_stopped(message: Any = first) -> bool:
                reply = await daemon.aggregate(message)
                return (reply.status, reply.body.get("code")) == (403, "validator_sets_differ")

            await until(is_stopped)
            for node in network.nodes:
                node.behaviour = parse_node_behaviour("")
            # Only a person ends it.
            assert await is_stopped(next(messages))
            text = f"the index and the nodes list other validators of subnet {id_text(subnet_id)}"
            degraded = (await daemon.get("/status.json")).body["degraded"]
            assert any(text in sentence for sentence in degraded)
            name = 'warpseal_validator_set_comparisons_total{result="different"}'
            assert (await daemon.metrics())[name] > 0


async def forecast(daemon: Daemon, subnet_id: SubnetID) -> Any:
    reply = await daemon.get(f"/v1/networks/fuji/subnets/{id_text(subnet_id)}/forecast")
    assert reply.status == 200, reply.body
    return reply.body


async def sign(
    daemon: Daemon, network: SimulatedNetwork, message: Any, height: int | None = None
) -> int:
    """Assert that a message is signed by the quorum at a height, by default at the tip; return the
    height.
    """
    at = network.p_chain.height if height is None else height
    reply = await daemon.aggregate(message)
    verify_signed_message(network, reply.signed, message.unsigned.raw, l1_of(network), 67, at)
    return at
