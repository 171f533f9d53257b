"""Nodes that lag prove nothing about a message; a node at or above the transaction's height
decides.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.integration.daemon import run_network
from tests.integration.l1_daemon import L1_PLAN, L1Daemon, run_l1_daemon, validation_id_of
from warpseal_simnet.ledger import Transaction

UNFOLLOWED = {"follow-p-chain": False}


@asynccontextmanager
async def two_nodes(folder: Path, *, followed: bool = False) -> AsyncIterator[L1Daemon]:
    """Run a daemon with two nodes; the validators of the L1 are silent."""
    async with run_network(replace(L1_PLAN, nodes=2)) as network:
        urls = [{"base-url": node.uri} for node in network.nodes]
        keys = {"p-chain-api": urls, "info-api": urls, **({} if followed else UNFOLLOWED)}
        async with run_l1_daemon(network, folder, keys) as running:
            network.set_behaviour(running.nodes_of_l1(), "silent")
            yield running


def all_lag(detail: Mapping[str, Any]) -> bool:
    """Return whether every validator refused because it does not know the registration."""
    return {validator.get("errorCode") for validator in detail["validators"]} == {11}


async def register_unsigned(running: L1Daemon) -> Transaction:
    """Accept a registration that the first node reports and no validator signs."""
    registration = running.network.p_chain.register(running.l1)
    await running.daemon.until_ready()
    await running.expect_error(503, "quorum_not_reached", registration, timeoutSeconds=1)
    return registration


async def test_a_lagging_node_proves_nothing_until_a_node_reaches_the_height(
    tmp_path: Path,
) -> None:
    async with two_nodes(tmp_path) as running:
        network, registration = running.network, await register_unsigned(running)
        network.p_chain.remove(validation_id_of(registration))
        first, second = network.nodes
        second.lag = 2
        await first.down()
        network.set_behaviour(running.nodes_of_l1(), "")
        await running.expect_shortfall(registration, all_lag)
        second.lag = 0
        refused = await running.expect_error(400, "message_superseded", registration)
        assert refused.detail["superseded"]["now"] == {"registered": False}
        assert refused.detail["superseded"]["pChainHeight"] == "22"


async def test_a_lagging_node_without_the_validation_does_not_prove_its_removal(
    tmp_path: Path,
) -> None:
    async with two_nodes(tmp_path) as running:
        network, registration = running.network, await register_unsigned(running)
        first, second = network.nodes
        second.lag = 1
        await first.down()
        network.set_behaviour(running.nodes_of_l1(), "lag=1")
        await running.expect_shortfall(registration, all_lag)
        network.set_behaviour(running.nodes_of_l1(), "")
        # The node still lags, and is not asked to prove anything.
        await running.deliver(registration)


async def test_the_index_proves_a_removal_that_a_lagging_node_does_not_know(tmp_path: Path) -> None:
    async with two_nodes(tmp_path, followed=True) as running:
        network, registration = running.network, await register_unsigned(running)
        removal = network.p_chain.remove(validation_id_of(registration))
        await running.daemon.until_indexed(network.p_chain.height)
        first, second = network.nodes
        second.lag = 2
        await first.down()
        refused = await running.expect_error(400, "message_superseded", registration)
        assert refused.detail["superseded"]["byTxHash"] == removal.text


async def test_the_response_without_a_node_asks_callers_to_retry(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as running:
        registration = running.network.p_chain.register(running.l1)
        for node in running.network.nodes:
            await node.down()
        refused = await running.expect_error(
            502, "node_unavailable", registration, timeoutSeconds=1
        )
        assert int(refused.headers["Retry-After"]) >= 1
