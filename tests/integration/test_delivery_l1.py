"""Messages by transaction: their destination is the chain of the L1's manager, and its quorum
counts.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from tests.eventually import until
from tests.integration.l1_daemon import L1_PLAN, L1Daemon, run_l1_network
from tests.integration.message_verifier import verify_signed_message
from warpseal.warp.ids import ChainID, id_text
from warpseal_simnet.ledger import Transaction
from warpseal_simnet.plan import L1Plan
from warpseal_simnet.rpc import Outage, OutageKind
from warpseal_simnet.values import ChainKind
from warpseal_simnet.warp_config import WarpRule

DEMANDING = replace(L1_PLAN, l1s=(L1Plan(validators=10, idle=True, warp=WarpRule(quorum=85)),))


def signed_by(running: L1Daemon, transaction: Transaction, signed: str, quorum: int) -> None:
    """Assert that a quorum has signed at the height at which the manager's chain verifies."""
    assert transaction.attested is not None
    height = running.network.state.proposervm[manager_chain(running)].verifying_height
    signer = transaction.attested.signing_subnet_id
    verify_signed_message(
        running.network, signed, transaction.attested.unsigned.raw, signer, quorum, height
    )


def manager_chain(running: L1Daemon) -> ChainID:
    return running.network.manager(running.l1).chain_id


async def test_the_quorum_of_the_managers_chain_counts_without_being_named(tmp_path: Path) -> None:
    async with run_l1_network(tmp_path, DEMANDING) as running:
        conversion = running.network.p_chain.conversion_of(running.l1)
        plain = await running.daemon.l1_message(conversion)
        signed_by(running, conversion, plain.signed, 85)
        assert plain.body.keys() == {"signedMessage"}
        assert "X-Warpseal-Quorum" not in plain.headers
        weights = (await running.daemon.explanation(conversion))["weights"]
        assert int(weights["required"]) == -(-int(weights["total"]) * 85 // 100)
        reply = await running.daemon.l1_message(conversion, report="true", quorumPercentage=70)
        report = reply.body["report"]
        assert report["quorum"] == {"percentage": 85, "source": "genesis"}
        assert report["destinationBlockchainId"] == id_text(manager_chain(running))
        assert report["signedBy"] == "destination"
        assert report["verifiesNow"] is True
        assert running.network.verify_next(
            manager_chain(running), bytes.fromhex(reply.signed)
        ).accepted
        reply = await running.daemon.l1_message(conversion, report="true", quorumPercentage=100)
        assert reply.body["report"]["quorum"] == {"percentage": 100, "source": "request"}
        signed_by(running, conversion, reply.signed, 100)


async def test_another_destination_than_the_managers_chain_is_a_mismatch(tmp_path: Path) -> None:
    async with run_l1_network(tmp_path, L1_PLAN) as running:
        conversion = running.network.p_chain.conversion_of(running.l1)
        own = manager_chain(running)
        other = next(
            chain.chain_id
            for chain in running.network.state.chains.values()
            if chain.kind is ChainKind.EVM and chain.chain_id != own
        )
        refused = await running.expect_error(
            400, "destination_mismatch", conversion, destinationBlockchainId=id_text(other)
        )
        assert refused.detail["managerBlockchainId"] == id_text(own)
        explained = await running.expect_error(
            400,
            "destination_mismatch",
            conversion,
            destinationBlockchainId=id_text(other),
            explain="true",
        )
        assert explained.body == refused.body
        explanation = await running.daemon.explanation(
            conversion, destinationBlockchainId=id_text(own)
        )
        assert explanation["message"]["managerChainId"] == id_text(own)
        unknown = await running.daemon.explanation(
            "11" * 32, destinationBlockchainId=id_text(other)
        )
        assert unknown["failing"] == "transaction_accepted"
        reply = await running.daemon.l1_message(conversion, destinationBlockchainId=id_text(own))
        assert (reply.status, reply.headers["X-Warpseal-Verifies-Now"]) == (201, "true")
        assert reply.body.keys() == {"signedMessage"}
        await running.expect_error(
            404, "transaction_not_found", "11" * 32, destinationBlockchainId=id_text(own)
        )
        running.network.nodes[0].rpc.outages["*"] = Outage(OutageKind.HANG)
        late = await running.expect_error(
            502,
            "node_unavailable",
            "22" * 32,
            destinationBlockchainId=id_text(own),
            timeoutSeconds=1,
        )
        assert late.body["message"] == "no usable answer for the transaction"


async def test_an_idle_managers_chain_gets_advice_by_transaction(tmp_path: Path) -> None:
    plan = replace(L1_PLAN, l1s=(L1Plan(validators=4, idle=True),))
    async with run_l1_network(tmp_path, plan) as running:
        network = running.network
        manager = manager_chain(running)
        network.build_block(manager)
        conversion = network.p_chain.conversion_of(running.l1)
        nodes = running.nodes_of_l1()
        for index in nodes[:2]:
            network.stop_validator(index)
            needed = network.change_weight(running.l1, index, 0)
        network.advance(3)
        reply = await running.expect_error(
            503,
            "quorum_not_reached",
            conversion,
            destinationBlockchainId=id_text(manager),
            timeoutSeconds=2,
        )
        advice = reply.detail["advice"]
        assert (advice["neededHeight"], advice["blocksBefore"]) == (str(needed), 1)


async def test_a_message_by_transaction_is_for_the_epoch_that_the_report_names(
    tmp_path: Path,
) -> None:
    plan = replace(L1_PLAN, l1s=(L1Plan(validators=4, idle=True),))
    async with run_l1_network(tmp_path, plan) as running:
        network, daemon, manager = running.network, running.daemon, manager_chain(running)
        network.build_block(manager)
        conversion = network.p_chain.conversion_of(running.l1)
        assert (
            await daemon.l1_message(conversion, report="true", quorumPercentage=100)
        ).status == 201
        network.change_weight(running.l1, running.nodes_of_l1()[0], 0)
        network.build_block(manager)
        # The lookup of the height and that of the destination learn at different times of the new
        # epoch.
        await asyncio.sleep(0.9)
        await daemon.l1_message(conversion)
        await asyncio.sleep(0.15)
        reply = await daemon.l1_message(conversion, report="true")
        assert reply.body["report"]["verifiesNow"] is True, reply.body
        assert reply.body["report"]["pChainHeight"] == reply.body["report"]["epoch"]["pChainHeight"]


async def test_a_message_by_transaction_is_signed_for_an_epoch_that_begins_meanwhile(
    tmp_path: Path,
) -> None:
    plan = replace(L1_PLAN, l1s=(L1Plan(validators=4, idle=True),))
    async with run_l1_network(tmp_path, plan) as running:
        network, manager = running.network, manager_chain(running)
        network.build_block(manager)
        leaving = running.nodes_of_l1()[:2]
        network.set_behaviour(leaving, "refuse=-2/no handler+slow=2s")
        conversion = network.p_chain.conversion_of(running.l1)
        request = asyncio.create_task(running.daemon.l1_message(conversion, report="true"))
        await until(
            lambda: sum(network.validators[index].counts.app_requests for index in leaving) > 0
        )
        for index in leaving:
            network.change_weight(running.l1, index, 0)
        network.build_block(manager)
        reply = await request
        assert reply.status == 201, reply.body
        assert reply.body["report"]["verifiesNow"] is True
        assert network.verify_next(manager, bytes.fromhex(reply.signed)).accepted
