"""Nodes that lag prove nothing about a message; a node at or above the transaction's height decides."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from tests.integration.daemon import run_network
from tests.integration.l1_scene import LIFE, Scene, beside, validation_of
from warpseal.simnet.ledger import Transaction

UNFOLLOWED = {"follow-p-chain": False}


@asynccontextmanager
async def two_nodes(folder: Path, *, followed: bool = False) -> AsyncIterator[Scene]:
    """Run a daemon with two nodes; no validator signs for the L1."""
    async with run_network(replace(LIFE, nodes=2)) as network:
        urls = [{"base-url": node.uri} for node in network.nodes]
        keys = {"p-chain-api": urls, "info-api": urls, **({} if followed else UNFOLLOWED)}
        async with beside(network, folder, keys) as running:
            network.set_behaviour(running.nodes_of_l1(), "silent")
            yield running


async def seen(running: Scene) -> Transaction:
    """Let a registration be accepted and reported by the first node; no validator signs it."""
    registration = running.network.p_chain.register(running.l1)
    await running.daemon.until_ready()
    await running.refused(503, "quorum_not_reached", registration, timeoutSeconds=1)
    return registration


async def test_a_node_below_the_height_proves_nothing_and_another_one_settles_it(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as running:
        network, registration = running.network, await seen(running)
        network.p_chain.remove(validation_of(registration))
        first, second = network.nodes
        second.lag = 2
        await first.down()
        network.set_behaviour(running.nodes_of_l1(), "")
        refused = await running.refused(503, "quorum_not_reached", registration, timeoutSeconds=1.5)
        assert {validator.get("errorCode") for validator in refused.detail["validators"]} == {11}
        second.lag = 0
        refused = await running.refused(400, "message_superseded", registration)
        assert refused.detail["superseded"]["now"] == {"registered": False}
        assert refused.detail["superseded"]["pChainHeight"] == "22"


async def test_a_node_that_does_not_know_the_validation_yet_is_no_proof_of_its_end(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as running:
        network, registration = running.network, await seen(running)
        first, second = network.nodes
        second.lag = 1
        await first.down()
        network.set_behaviour(running.nodes_of_l1(), "lag=1")
        refused = await running.refused(503, "quorum_not_reached", registration, timeoutSeconds=1.5)
        assert {validator.get("errorCode") for validator in refused.detail["validators"]} == {11}
        network.set_behaviour(running.nodes_of_l1(), "")
        # The node still lags, and is not asked to prove anything.
        await running.delivered(registration)


async def test_the_own_index_proves_what_a_lagging_node_cannot(tmp_path: Path) -> None:
    async with two_nodes(tmp_path, followed=True) as running:
        network, registration = running.network, await seen(running)
        removal = network.p_chain.remove(validation_of(registration))
        await running.daemon.until_indexed(network.p_chain.height)
        first, second = network.nodes
        second.lag = 2
        await first.down()
        refused = await running.refused(400, "message_superseded", registration)
        assert refused.detail["superseded"]["byTxHash"] == removal.text


async def test_without_any_node_callers_are_told_to_come_again(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as running:
        registration = running.network.p_chain.register(running.l1)
        for node in running.network.nodes:
            await node.down()
        refused = await running.refused(502, "node_unavailable", registration, timeoutSeconds=1)
        assert int(refused.headers["Retry-After"]) >= 1
