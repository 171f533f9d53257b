"""At which height the set is taken that signs for an L1: where the manager's chain verifies, or as the caller asks."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.daemon import Reply, run_network
from tests.integration.l1_scene import HEIGHT, HEIGHT_SOURCE, LIFE, beside, scene
from warpseal.simnet.plan import L1Plan, Plan
from warpseal.warp.l1_messages import bootstrap_validation_id

EPOCH = "proposervm.getCurrentEpoch"
LONG = replace(LIFE, epoch_blocks=10)


def chosen(reply: Reply) -> tuple[int, str]:
    assert reply.status == 201, reply.body
    return int(reply.headers[HEIGHT]), reply.headers[HEIGHT_SOURCE]


async def test_the_height_is_the_epochs_unless_the_caller_says_otherwise(tmp_path: Path) -> None:
    async with scene(tmp_path, replace(LONG, proposed_lag=2)) as running:
        running.network.advance(8)
        conversion = running.network.p_chain.conversion_of(running.l1)
        for query, expected in (
            ({}, (20, "epoch")),
            ({"pChainHeight": 0}, (26, "proposed")),
            ({"pChainHeight": 2**64 - 1}, (26, "proposed")),
            ({"pChainHeight": 23}, (23, "request")),
        ):
            reply = await running.daemon.l1_message(conversion, **query)
            assert chosen(reply) == expected
            running.judged(reply, conversion)


async def test_an_epoch_is_asked_for_once_a_second_per_chain(tmp_path: Path) -> None:
    l1s = (L1Plan(validators=3), L1Plan(validators=3), L1Plan(validators=3, manager="C"))
    async with run_network(Plan(validators=3, l1s=l1s, messages=0)) as network, beside(network, tmp_path) as running:
        conversions = [network.p_chain.conversion_of(subnet.subnet_id) for subnet in network.subnets[1:]]
        loop = asyncio.get_running_loop()
        started = loop.time()
        for _ in range(5):
            await asyncio.gather(
                *(running.daemon.l1_message(conversion) for conversion in conversions for _ in range(5))
            )
        seconds = int(loop.time() - started) + 1
        assert 3 <= network.calls[EPOCH] <= 3 * seconds


async def test_where_there_are_no_epochs_it_is_the_proposed_height(tmp_path: Path) -> None:
    async with scene(tmp_path, replace(LIFE, epoch_blocks=0)) as running:
        conversion = running.network.p_chain.conversion_of(running.l1)
        assert chosen(await running.delivered(conversion)) == (20, "proposed")


@pytest.mark.parametrize("nodes", [1, 2])
async def test_any_node_that_runs_the_managers_chain_knows_its_epoch(tmp_path: Path, nodes: int) -> None:
    async with run_network(replace(LIFE, nodes=nodes)) as network:
        urls = [{"base-url": node.uri} for node in network.nodes]
        network.nodes[0].stop_chain(network.manager(network.subnets[-1].subnet_id).chain_id)
        network.advance(3)
        async with beside(network, tmp_path, {"p-chain-api": urls, "info-api": urls}) as running:
            reply = await running.daemon.l1_message(network.p_chain.conversion_of(running.l1))
            assert chosen(reply) == ((23, "proposed") if nodes == 1 else (20, "epoch"))


async def test_how_far_back_callers_may_look_does_not_concern_an_epoch(tmp_path: Path) -> None:
    async with scene(tmp_path, LONG, {"max-p-chain-lookback": 2}) as running:
        running.network.advance(9)
        conversion = running.network.p_chain.conversion_of(running.l1)
        assert chosen(await running.delivered(conversion)) == (20, "epoch")
        await running.refused(400, "height_too_old", conversion, pChainHeight=21)


async def test_a_weight_that_changes_within_an_epoch_spoils_no_delivery(tmp_path: Path) -> None:
    async with scene(tmp_path, LONG) as running:
        network, heavy = running.network, bootstrap_validation_id(running.l1, 0)
        change = network.p_chain.set_weight(heavy, 9_000)
        reply = await running.delivered(change)
        assert chosen(reply) == (20, "epoch")
        assert running.judged(reply, change).total == 4_000
        # What suffices in the set of this moment is too little for the contract before the next epoch.
        seat = network.state.validation(heavy)
        assert seat is not None
        others = [
            validator for validator in running.nodes_of_l1() if network.validators[validator].node_id != seat.node_id
        ]
        network.set_behaviour(others, "silent")
        registration = network.p_chain.register(running.l1)
        early = await running.daemon.l1_message(registration, pChainHeight=change.height)
        assert running.judged(early, registration).weight == 9_000
        delivery = network.manager(running.l1).deliver(bytes.fromhex(early.signed))
        assert (delivery.accepted, "insufficient weight" in delivery.reason) == (False, True)
        refused = await running.refused(503, "quorum_not_reached", registration, timeoutSeconds=1.5)
        assert refused.detail["pChainHeight"] == "20"
        network.set_behaviour(others, "")
        await running.delivered(registration)
