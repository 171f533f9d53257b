"""The origin of a removed validation: every place where a daemon finds it, and the response until
then.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.integration.daemon import run_network
from tests.integration.l1_daemon import (
    L1_PLAN,
    L1Daemon,
    attested_message,
    run_l1_daemon,
    run_l1_network,
    until_status,
    validation_id_of,
)
from warpseal.warp.ids import id_text
from warpseal.warp.justification import L1ValidatorRegistrationJustification
from warpseal.warp.l1_messages import bootstrap_validation_id
from warpseal_simnet.ledger import Transaction
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan
from warpseal_simnet.rpc import Outage, OutageKind

UNFOLLOWED = {"follow-p-chain": False}
# Settings with which hashing finds no initial validator.
BLIND = {"bootstrap_indices": 0}
BLOCKS = ("platform.getBlockByHeight", "platform.getBlock")


def evm_chains(network: SimulatedNetwork) -> dict[str, Any]:
    """Return config keys that name the chain of the L1's manager."""
    chain_id = id_text(network.manager(network.subnets[-1].subnet_id).chain_id)
    chains = [{"blockchain-id": chain_id, "rpc": [f"{network.node_uri}/ext/bc/{chain_id}/rpc"]}]
    return {**UNFOLLOWED, "evm-chains": chains}


def register_and_remove(running: L1Daemon) -> tuple[Transaction, Transaction]:
    """Register a validator and remove it; return both transactions."""
    registration = running.network.p_chain.register(running.l1)
    return registration, running.network.p_chain.remove(validation_id_of(registration))


async def justification_source(running: L1Daemon, removal: Transaction) -> str | None:
    """Return the source of the justification of a removal, from its explanation."""
    reply: str | None = (await running.daemon.explanation(removal))["justification"].get("source")
    return reply


async def test_the_origin_of_an_initial_validator_is_found_without_an_index(tmp_path: Path) -> None:
    l1s = (*(L1Plan(validators=2) for _ in range(6)), L1Plan(validators=4))
    async with run_l1_network(tmp_path, replace(L1_PLAN, l1s=l1s), UNFOLLOWED) as running:
        for index in (3, 0):
            await running.deliver(
                running.network.p_chain.remove(bootstrap_validation_id(running.l1, index))
            )
        assert running.network.calls["platform.getSubnets"] <= 1


async def test_the_callers_proof_is_used_only_if_it_proves_the_validation(tmp_path: Path) -> None:
    async with run_network(L1_PLAN) as network:
        async with run_l1_daemon(network, tmp_path, UNFOLLOWED) as running:
            registration, removal = register_and_remove(running)
            other, _ = register_and_remove(running)
            foreign = L1ValidatorRegistrationJustification.bootstrap(running.l1, 0).raw.hex()
            unknown = await running.expect_error(503, "origin_not_indexed", removal)
            assert int(unknown.headers["Retry-After"]) >= 1
            assert unknown.detail["validationId"] == id_text(validation_id_of(removal))
            assert unknown.detail["progress"]["initialValidators"]["subnetsTried"] >= 1
            assert unknown.detail["progress"]["follower"] == {"off": True}
            for wrong in (
                {"registrationTxHash": other.text},
                {"registrationTxHash": network.p_chain.conversion_of(running.l1).text},
                {"justification": foreign},
                {"justification": "00"},
            ):
                await running.expect_error(400, "proof_mismatch", removal, **wrong)
            # The daemon stored none of these proofs.
            await running.expect_error(503, "origin_not_indexed", removal)
            assert await justification_source(running, removal) is None
            await running.deliver(removal, registrationTxHash="0x" + registration.tx_id.hex())
            await running.deliver(removal)
        async with run_l1_daemon(network, tmp_path, UNFOLLOWED) as running:
            assert await justification_source(running, removal) == "index"
            third, removal = register_and_remove(running)
            await running.deliver(
                removal, justification=attested_message(removal).justification.hex()
            )
            assert third.validation_id == removal.validation_id


async def test_the_origin_is_found_in_the_logs_of_a_configured_managers_chain(
    tmp_path: Path,
) -> None:
    async with (
        run_network(L1_PLAN) as network,
        run_l1_daemon(network, tmp_path, evm_chains(network)) as running,
    ):
        registration, removal = register_and_remove(running)
        await running.deliver(removal)
        assert await justification_source(running, removal) == "manager_chain"
        assert network.calls["eth_getLogs"] >= 1
        assert registration.validation_id == removal.validation_id


async def test_the_response_reports_the_progress_of_the_index_until_the_origin_is_found(
    tmp_path: Path,
) -> None:
    async with run_network(L1_PLAN) as network:
        network.advance(30)
        for method in BLOCKS:
            network.nodes[0].rpc.outages[method] = Outage(OutageKind.HTTP_500)
        quick = {"retry_first_s": 0.05, "retry_cap_s": 0.1}
        async with run_l1_daemon(network, tmp_path, l1=BLIND, follower=quick) as running:
            _, removal = register_and_remove(running)
            unknown = await running.expect_error(503, "origin_not_indexed", removal)
            assert unknown.detail["progress"]["follower"]["percent"] == 0.0
            assert 1 <= int(unknown.headers["Retry-After"]) <= 60
            # Signing does not need the index.
            await running.daemon.until_ready()
            await running.deliver(running.network.p_chain.register(running.l1))
            network.nodes[0].rpc.outages.clear()
            reply = await until_status(running, 201, removal)
            running.verify(reply, removal)
            assert network.manager(running.l1).deliver(bytes.fromhex(reply.signed)).accepted
            assert await justification_source(running, removal) == "index"


async def test_the_index_has_the_origins_of_initial_and_registered_validators(
    tmp_path: Path,
) -> None:
    async with run_l1_network(tmp_path, L1_PLAN, l1=BLIND) as running:
        _, removal = register_and_remove(running)
        of_initial = running.network.p_chain.remove(bootstrap_validation_id(running.l1, 2))
        await running.daemon.until_indexed(running.network.p_chain.height)
        for transaction in (removal, of_initial):
            await running.deliver(transaction)
            assert await justification_source(running, transaction) == "index"
        assert running.network.calls["eth_getLogs"] == 0
