"""Upstream nodes: failover between two, dead ones, one of another network, and none at all."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import until
from tests.integration.daemon import build_config, run_daemon, run_network
from tests.integration.message_verifier import verify_signed_message
from tests.node.recorded_node import closed_port, refusing_uri
from warpseal.warp.ids import PRIMARY_NETWORK
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan
from warpseal_simnet.rpc import Outage, OutageKind

PLAN = Plan(validators=8, l1s=(L1Plan(shared=True),), nodes=2)
QUICK: dict[str, Any] = {"validators": {"height_poll_s": 0.02, "height_stale_after_s": 0.4}}
DOWN = {"*": Outage(OutageKind.DROP)}


def both(network: SimulatedNetwork, *first: str) -> dict[str, Any]:
    """Return config keys that name some URLs, then both nodes, for both kinds of calls."""
    urls = [*first, *(node.uri for node in network.nodes)]
    nodes = [{"base-url": url} for url in urls]
    return {"p-chain-api": nodes, "info-api": nodes}


def failed_positions(caplog: pytest.LogCaptureFixture) -> set[int]:
    """Return the positions of the nodes that the log reports as failed so far."""
    return {
        vars(record)["position"]
        for record in caplog.records
        if record.getMessage() == "upstream node failed"
    }


@pytest.mark.parametrize("kind", list(OutageKind))
async def test_when_the_first_node_fails_the_second_one_stands_in(
    kind: OutageKind, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {**QUICK, "node": {"call_timeout_s": 1.0}}
    async with (
        run_network(PLAN) as network,
        run_daemon(build_config(network, tmp_path, both(network), **settings)) as daemon,
    ):
        await daemon.until_ready()
        before = network.nodes[1].rpc.calls["platform.getProposedHeight"]
        # It confirms the first height.
        assert before == 1 or 0 in failed_positions(caplog), (
            "the second node is called only if the first one failed"
        )
        network.nodes[0].rpc.outages = {"*": Outage(kind)}
        for place, message in enumerate(network.messages_of(network.subnets[1].subnet_id)[:4]):
            network.advance()
            reply = await daemon.aggregate(message, pchain_height=20 + place)
            verify_signed_message(
                network,
                reply.signed,
                message.unsigned.raw,
                message.signing_subnet_id,
                67,
                20 + place,
            )
        await until(lambda: network.nodes[1].rpc.calls["platform.getProposedHeight"] > before)
        assert kind is OutageKind.NO_METHOD or 0 in failed_positions(caplog)
        await daemon.until_ready()


async def test_messages_are_signed_although_nodes_are_down_from_the_start(tmp_path: Path) -> None:
    dead = [refusing_uri(), refusing_uri()]
    async with (
        run_network(PLAN) as network,
        run_daemon(build_config(network, tmp_path, both(network, *dead))) as daemon,
    ):
        message = network.messages_of(PRIMARY_NETWORK)[0]
        reply = await daemon.aggregate_v1(message)
        verify_signed_message(network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, 67)


async def test_a_node_of_another_network_is_never_believed(tmp_path: Path) -> None:
    foreign_plan = Plan(validators=1, l1s=(), network_id=5, height=900)
    async with run_network(PLAN) as network, run_network(foreign_plan) as foreign:
        keys = both(network)
        keys["p-chain-api"] = [{"base-url": foreign.node_uri}, *keys["p-chain-api"]]
        async with run_daemon(build_config(network, tmp_path, keys, **QUICK)) as daemon:
            message = network.messages_of(PRIMARY_NETWORK)[0]
            reply = await daemon.aggregate(message)
            verify_signed_message(network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, 67)
            assert reply.headers["X-Warpseal-P-Chain-Height"] == "20"
        assert set(foreign.calls) == {"info.getNetworkID"}


async def test_without_any_node_cached_sets_still_serve_and_the_proposed_height_does_not(
    tmp_path: Path,
) -> None:
    async with (
        run_network(PLAN) as network,
        run_daemon(build_config(network, tmp_path, both(network), **QUICK)) as daemon,
    ):
        await daemon.until_ready()
        first_message, other, third = network.messages_of(PRIMARY_NETWORK)[:3]
        assert (await daemon.aggregate(first_message, pchain_height=19)).status == 200
        for node in network.nodes:
            node.rpc.outages = dict(DOWN)

        async def is_down() -> bool:
            return (await daemon.get("/ready")).status == 503

        await until(is_down)
        for reply in (
            await daemon.aggregate(first_message),
            await daemon.aggregate_v1(first_message),
        ):
            assert reply.status == 502
            assert reply.body["code"] == "node_unavailable"
            assert [node["position"] for node in reply.detail["nodes"]] == [0, 1]
            assert "http://" not in str(reply.body)
            assert not any(str(node.port) in str(reply.body) for node in network.nodes)
            assert int(reply.headers["Retry-After"]) >= 1
        # A message without signatures so far, at a height whose set is cached.
        reply = await daemon.aggregate(other, pchain_height=19)
        verify_signed_message(network, reply.signed, other.unsigned.raw, PRIMARY_NETWORK, 67, 19)
        assert (await daemon.aggregate(third, pchain_height=18)).status == 502
        health = await daemon.get("/health")
        assert (health.status, health.body["status"]) == (503, "down")
        for node in network.nodes:
            node.rpc.outages = {}
        await daemon.until_ready()
        reply = await daemon.aggregate_v1(third)
        verify_signed_message(network, reply.signed, third.unsigned.raw, PRIMARY_NETWORK, 67)


async def test_a_node_that_comes_back_is_used_again(tmp_path: Path) -> None:
    settings = {**QUICK, "node": {"retry_failed_after_s": 0.2}}
    async with (
        run_network(PLAN) as network,
        run_daemon(build_config(network, tmp_path, both(network), **settings)) as daemon,
    ):
        await daemon.until_ready()
        network.nodes[0].rpc.outages = dict(DOWN)
        await until(lambda: network.nodes[1].rpc.calls["platform.getProposedHeight"] > 3)
        network.nodes[0].rpc.outages = {}
        before = network.nodes[0].rpc.calls["platform.getProposedHeight"]
        await until(lambda: network.nodes[0].rpc.calls["platform.getProposedHeight"] > before + 3)
        await daemon.until_ready()


async def test_a_lagging_second_node_never_moves_the_height_back(tmp_path: Path) -> None:
    behind_plan = Plan(validators=8, l1s=(L1Plan(shared=True),), height=10)
    async with run_network(PLAN) as network, run_network(behind_plan) as behind:
        keys = both(network)
        keys["p-chain-api"] = [{"base-url": network.node_uri}, {"base-url": behind.node_uri}]
        async with run_daemon(
            build_config(network, tmp_path, keys, validators={"height_poll_s": 0.02})
        ) as daemon:
            await daemon.until_ready()
            network.nodes[0].rpc.outages = {"platform.getProposedHeight": Outage(OutageKind.DROP)}
            await until(lambda: behind.calls["platform.getProposedHeight"] > 2)
            assert (await daemon.metrics())["warpseal_proposed_height"] == 20
            message = network.messages_of(PRIMARY_NETWORK)[0]
            reply = await daemon.aggregate(message)
            verify_signed_message(
                network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, 67, 20
            )


async def test_keys_of_a_node_are_never_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    secret = "s3cr3t-k3y"
    async with run_network(PLAN) as network:
        dead = closed_port()
        nodes = [
            {
                "base-url": f"http://user:{secret}@127.0.0.1:{dead}/{secret}",
                "query-parameters": {"token": secret},
                "http-headers": {"Authorization": f"Bearer {secret}"},
            },
            {"base-url": network.node_uri},
        ]
        keys = {"p-chain-api": nodes, "info-api": nodes}
        async with run_daemon(build_config(network, tmp_path, keys, **QUICK)) as daemon:
            message = network.messages_of(PRIMARY_NETWORK)[0]
            assert (await daemon.aggregate(message)).status == 200
            network.nodes[0].rpc.outages = dict(DOWN)
            network.advance()
            reply = await daemon.aggregate(message, pchain_height=17, timeout_seconds=1)
            assert reply.status == 502
            assert secret not in str(reply.body)
            assert secret not in str(await daemon.metrics())
    lines = [
        f"{record.getMessage()} {vars(record)}"
        for record in caplog.records
        if record.name.startswith("warpseal")
    ]
    assert lines
    assert not any(secret in line for line in lines)


async def test_one_set_fetch_serves_many_requests_at_one_height(tmp_path: Path) -> None:
    plan = Plan(validators=8, l1s=(), messages=100)
    async with run_network(plan) as network, run_daemon(build_config(network, tmp_path)) as daemon:
        await daemon.until_ready()
        before = network.calls["platform.getValidatorsAt"]
        messages = network.messages_of(PRIMARY_NETWORK)
        replies = await asyncio.gather(
            *(daemon.aggregate(message, pchain_height=12) for message in messages)
        )
        assert {reply.status for reply in replies} == {200}
        assert network.calls["platform.getValidatorsAt"] - before == 1


async def test_the_log_says_what_a_node_answered_that_has_no_x_chain(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with run_network(Plan(validators=4, l1s=())) as network:
        chains = network.state.chains
        chains.pop(next(chain_id for chain_id, chain in chains.items() if chain.alias == "X"))

        def warnings() -> list[str]:
            return [
                vars(log)["reason"]
                for log in caplog.records
                if log.getMessage() == "primary chains are not known"
            ]

        async with run_daemon(build_config(network, tmp_path)) as daemon:
            await daemon.until_ready()
            await until(lambda: bool(warnings()))
    assert "the X-Chain: info.getBlockchainID was refused with" in warnings()[0]
    assert "there is no chain with alias/ID 'X'" in warnings()[0]
