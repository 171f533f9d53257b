"""The height of an L1's signing set: that of the manager's epoch, of the request, or the proposed
height.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.daemon import Reply, run_network
from tests.integration.l1_daemon import (
    HEIGHT,
    HEIGHT_SOURCE,
    L1_PLAN,
    run_l1_daemon,
    run_l1_network,
)
from warpseal.warp.l1_messages import bootstrap_validation_id
from warpseal_simnet.plan import L1Plan, Plan

EPOCH = "proposervm.getCurrentEpoch"
LONG = replace(L1_PLAN, epoch_blocks=10)


def height_and_source(reply: Reply) -> tuple[int, str]:
    assert reply.status == 201, reply.body
    return int(reply.headers[HEIGHT]), reply.headers[HEIGHT_SOURCE]


async def test_the_epochs_height_is_used_unless_the_request_has_a_height(tmp_path: Path) -> None:
    async with run_l1_network(tmp_path, replace(LONG, proposed_lag=2)) as running:
        running.network.advance(8)
        conversion = running.network.p_chain.conversion_of(running.l1)
        for query, expected in (
            ({}, (18, "epoch")),
            ({"pChainHeight": 0}, (26, "proposed")),
            ({"pChainHeight": 2**64 - 1}, (26, "proposed")),
            ({"pChainHeight": 23}, (23, "request")),
        ):
            reply = await running.daemon.l1_message(conversion, **query)
            assert height_and_source(reply) == expected
            running.verify(reply, conversion)


async def test_the_epoch_of_a_chain_is_requested_once_a_second(tmp_path: Path) -> None:
    l1s = (L1Plan(validators=3), L1Plan(validators=3), L1Plan(validators=3, manager="C"))
    async with (
        run_network(Plan(validators=3, l1s=l1s, messages=0)) as network,
        run_l1_daemon(network, tmp_path) as running,
    ):
        conversions = [
            network.p_chain.conversion_of(subnet.subnet_id) for subnet in network.subnets[1:]
        ]
        loop = asyncio.get_running_loop()
        started = loop.time()
        for _ in range(5):
            await asyncio.gather(
                *(
                    running.daemon.l1_message(conversion)
                    for conversion in conversions
                    for _ in range(5)
                )
            )
        seconds = int(loop.time() - started) + 1
        assert 3 <= network.calls[EPOCH] <= 3 * seconds


async def test_the_proposed_height_is_used_before_granite(tmp_path: Path) -> None:
    async with run_l1_network(tmp_path, replace(L1_PLAN, epoch_blocks=0)) as running:
        conversion = running.network.p_chain.conversion_of(running.l1)
        assert height_and_source(await running.deliver(conversion)) == (20, "proposed")


@pytest.mark.parametrize("nodes", [1, 2])
async def test_the_epoch_is_read_from_any_node_that_runs_the_managers_chain(
    tmp_path: Path, nodes: int
) -> None:
    async with run_network(replace(L1_PLAN, nodes=nodes)) as network:
        urls = [{"base-url": node.uri} for node in network.nodes]
        network.nodes[0].stop_chain(network.manager(network.subnets[-1].subnet_id).chain_id)
        network.advance(3)
        async with run_l1_daemon(
            network, tmp_path, {"p-chain-api": urls, "info-api": urls}
        ) as running:
            reply = await running.daemon.l1_message(network.p_chain.conversion_of(running.l1))
            assert height_and_source(reply) == ((23, "proposed") if nodes == 1 else (20, "epoch"))


async def test_the_lookback_limit_does_not_apply_to_the_epochs_height(tmp_path: Path) -> None:
    async with run_l1_network(tmp_path, LONG, {"max-p-chain-lookback": 2}) as running:
        running.network.advance(9)
        conversion = running.network.p_chain.conversion_of(running.l1)
        assert height_and_source(await running.deliver(conversion)) == (20, "epoch")
        await running.expect_error(400, "height_too_old", conversion, pChainHeight=21)


async def test_messages_are_delivered_although_weights_change_within_an_epoch(
    tmp_path: Path,
) -> None:
    async with run_l1_network(tmp_path, LONG) as running:
        network, heavy = running.network, bootstrap_validation_id(running.l1, 0)
        change = network.p_chain.set_weight(heavy, 9_000)
        reply = await running.deliver(change)
        assert height_and_source(reply) == (20, "epoch")
        assert running.verify(reply, change).total == 4_000
        # The current set's quorum is less than the quorum of the set that the contract uses until
        # the next epoch.
        seat = network.state.validation(heavy)
        assert seat is not None
        others = [
            validator
            for validator in running.nodes_of_l1()
            if network.validators[validator].node_id != seat.node_id
        ]
        network.set_behaviour(others, "silent")
        registration = network.p_chain.register(running.l1)
        early = await running.daemon.l1_message(registration, pChainHeight=change.height)
        assert running.verify(early, registration).weight == 9_000
        delivery = network.manager(running.l1).deliver(bytes.fromhex(early.signed))
        assert (delivery.accepted, "insufficient weight" in delivery.reason) == (False, True)
        refused = await running.expect_error(
            503, "quorum_not_reached", registration, timeoutSeconds=1.5
        )
        assert refused.detail["pChainHeight"] == "20"
        network.set_behaviour(others, "")
        await running.deliver(registration)
