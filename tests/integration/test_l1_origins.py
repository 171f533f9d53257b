"""Where a removed validation began: every way in which a whole daemon finds it, and what it says until it has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.integration.daemon import run_network
from tests.integration.l1_scene import LIFE, Scene, attested_by, beside, scene, until_status, validation_of
from warpseal.simnet.ledger import Transaction
from warpseal.simnet.network import SimulatedNetwork
from warpseal.simnet.plan import L1Plan
from warpseal.simnet.rpc import Outage, OutageKind
from warpseal.warp.ids import id_text
from warpseal.warp.justification import L1ValidatorRegistrationJustification
from warpseal.warp.l1_messages import bootstrap_validation_id

UNFOLLOWED = {"follow-p-chain": False}
# No initial validator is found by hashing.
BLIND = {"bootstrap_indices": 0}
BLOCKS = ("platform.getBlockByHeight", "platform.getBlock")


def evm_chains(network: SimulatedNetwork) -> dict[str, Any]:
    """Return config keys that name the chain of the L1's manager."""
    chain_id = id_text(network.manager(network.subnets[-1].subnet_id).chain_id)
    chains = [{"blockchain-id": chain_id, "rpc": [f"{network.node_uri}/ext/bc/{chain_id}/rpc"]}]
    return {**UNFOLLOWED, "evm-chains": chains}


def removed(running: Scene) -> tuple[Transaction, Transaction]:
    """Register a validator and remove it; return both transactions."""
    registration = running.network.p_chain.register(running.l1)
    return registration, running.network.p_chain.remove(validation_of(registration))


async def source(running: Scene, removal: Transaction) -> str | None:
    """Return where the justification of a removal comes from, as the explanation tells."""
    reply: str | None = (await running.daemon.explanation(removal))["justification"].get("source")
    return reply


async def test_a_fresh_daemon_finds_initial_validators_without_any_index(tmp_path: Path) -> None:
    l1s = (*(L1Plan(validators=2) for _ in range(6)), L1Plan(validators=4))
    async with scene(tmp_path, replace(LIFE, l1s=l1s), UNFOLLOWED) as running:
        for index in (3, 0):
            await running.delivered(running.network.p_chain.remove(bootstrap_validation_id(running.l1, index)))
        assert running.network.calls["platform.getSubnets"] <= 1


async def test_the_callers_proof_serves_only_where_it_proves_the_validation(tmp_path: Path) -> None:
    async with run_network(LIFE) as network:
        async with beside(network, tmp_path, UNFOLLOWED) as running:
            registration, removal = removed(running)
            other, _ = removed(running)
            foreign = L1ValidatorRegistrationJustification.bootstrap(running.l1, 0).raw.hex()
            unknown = await running.refused(503, "origin_not_indexed", removal)
            assert int(unknown.headers["Retry-After"]) >= 1
            assert unknown.detail["validationId"] == id_text(validation_of(removal))
            assert unknown.detail["progress"]["initialValidators"]["subnetsTried"] >= 1
            assert unknown.detail["progress"]["follower"] == {"off": True}
            for wrong in (
                {"registrationTxHash": other.text},
                {"registrationTxHash": network.p_chain.conversion_of(running.l1).text},
                {"justification": foreign},
                {"justification": "00"},
            ):
                await running.refused(400, "proof_mismatch", removal, **wrong)
            # Nothing of that was kept.
            await running.refused(503, "origin_not_indexed", removal)
            assert await source(running, removal) is None
            await running.delivered(removal, registrationTxHash="0x" + registration.tx_id.hex())
            await running.delivered(removal)
        async with beside(network, tmp_path, UNFOLLOWED) as running:
            assert await source(running, removal) == "index"
            third, removal = removed(running)
            await running.delivered(removal, justification=attested_by(removal).justification.hex())
            assert third.validation_id == removal.validation_id


async def test_the_logs_of_the_managers_chain_tell_where_it_is_configured(tmp_path: Path) -> None:
    async with run_network(LIFE) as network, beside(network, tmp_path, evm_chains(network)) as running:
        registration, removal = removed(running)
        await running.delivered(removal)
        assert await source(running, removal) == "manager_chain"
        assert network.calls["eth_getLogs"] >= 1
        assert registration.validation_id == removal.validation_id


async def test_until_the_index_has_it_callers_are_told_how_far_it_is(tmp_path: Path) -> None:
    async with run_network(LIFE) as network:
        network.advance(30)
        for method in BLOCKS:
            network.nodes[0].rpc.outages[method] = Outage(OutageKind.HTTP_500)
        quick = {"retry_first_s": 0.05, "retry_cap_s": 0.1}
        async with beside(network, tmp_path, l1=BLIND, follower=quick) as running:
            _, removal = removed(running)
            unknown = await running.refused(503, "origin_not_indexed", removal)
            assert unknown.detail["progress"]["follower"]["percent"] == 0.0
            assert 1 <= int(unknown.headers["Retry-After"]) <= 60
            # Signing does not need the index.
            await running.daemon.until_ready()
            await running.delivered(running.network.p_chain.register(running.l1))
            network.nodes[0].rpc.outages.clear()
            reply = await until_status(running, 201, removal)
            running.judged(reply, removal)
            assert network.manager(running.l1).deliver(bytes.fromhex(reply.signed)).accepted
            assert await source(running, removal) == "index"


async def test_the_own_index_knows_initial_and_later_validators(tmp_path: Path) -> None:
    async with scene(tmp_path, LIFE, l1=BLIND) as running:
        _, removal = removed(running)
        of_initial = running.network.p_chain.remove(bootstrap_validation_id(running.l1, 2))
        await running.daemon.until_indexed(running.network.p_chain.height)
        for transaction in (removal, of_initial):
            await running.delivered(transaction)
            assert await source(running, transaction) == "index"
        assert running.network.calls["eth_getLogs"] == 0
