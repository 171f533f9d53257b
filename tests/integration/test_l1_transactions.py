"""Requests for every type of L1 transaction to a whole daemon, before and after its acceptance."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.daemon import count_signature_requests, run_network
from tests.integration.l1_daemon import (
    HEIGHT_SOURCE,
    SIGNING_SUBNET,
    L1Daemon,
    attested_message,
    run_l1_daemon,
    run_l1_network,
    validation_id_of,
)
from warpseal.warp.ids import PRIMARY_NETWORK, cb58_encode, id_text
from warpseal.warp.l1_messages import bootstrap_validation_id
from warpseal_simnet.ledger import Transaction
from warpseal_simnet.plan import L1Plan, Plan


def l1_plan(manager: str) -> Plan:
    """Return a plan whose last subnet becomes an L1, with its manager on the named chain."""
    l1s = (L1Plan(validators=3), L1Plan(validators=4, unconverted=True, spare=1, manager=manager))
    return Plan(validators=4, l1s=l1s, messages=0, epoch_blocks=40)


async def accept_and_deliver(running: L1Daemon, transaction: Transaction) -> None:
    """Assert the responses for a transaction before and after it is accepted."""
    await running.expect_error(404, "transaction_not_found", transaction)
    running.network.p_chain.accept(transaction)
    if transaction.kind == "ConvertSubnetToL1Tx":
        # Before the conversion the L1 had no validators.
        running.network.advance(running.network.plan.epoch_blocks)
    if transaction.attested is None:
        refused = await running.expect_error(400, "no_message", transaction)
        assert refused.detail == {"transactionType": transaction.kind, "chain": "P-Chain"}
        return
    reply = await running.deliver(transaction)
    assert reply.headers[HEIGHT_SOURCE] == "epoch"
    assert reply.headers[SIGNING_SUBNET] == id_text(attested_message(transaction).signing_subnet_id)
    in_hex = await running.daemon.l1_message("0x" + transaction.tx_id.hex())
    assert (in_hex.status, in_hex.signed) == (201, reply.signed)


@pytest.mark.parametrize("manager", ["own", "C", "l1-0"])
async def test_every_transaction_about_a_validation_gets_the_message_that_the_p_chain_attests(
    tmp_path: Path, manager: str
) -> None:
    async with run_network(l1_plan(manager)) as network:
        l1, p_chain = network.subnets[-1].subnet_id, network.p_chain
        async with run_l1_daemon(network, tmp_path) as running:
            initial = running.nodes_of_l1()[:4]
            conversion = p_chain.convert(l1, initial, later=True)
            await accept_and_deliver(running, conversion)
            registration = p_chain.register(l1, running.nodes_of_l1()[4], weight=500, later=True)
            await accept_and_deliver(running, registration)
            registered = validation_id_of(registration)
            first = p_chain.set_weight(registered, 700, later=True)
            await accept_and_deliver(running, first)
            unasked = p_chain.set_weight(registered, 800)
            second = p_chain.set_weight(registered, 900, later=True)
            await accept_and_deliver(running, second)
            await accept_and_deliver(
                running, p_chain.increase_balance(registered, 10**9, later=True)
            )
            await accept_and_deliver(running, p_chain.disable(registered, later=True))
            removal = p_chain.remove(registered, later=True)
            await accept_and_deliver(running, removal)
            of_initial = p_chain.remove(bootstrap_validation_id(l1, 2), later=True)
            await accept_and_deliver(running, of_initial)
            signer = attested_message(removal).signing_subnet_id
            assert (signer == l1, signer == PRIMARY_NETWORK) == (manager == "own", manager == "C")
        # After a restart the daemon serves all messages again without a signature request.
        before = count_signature_requests(network)
        async with run_l1_daemon(network, tmp_path) as running:
            for transaction in (conversion, removal, of_initial):
                await running.deliver(transaction)
            for transaction in (registration, first, second):
                reply = await running.daemon.l1_message(transaction)
                running.verify(reply, transaction)
                assert reply.body["superseded"]["now"] == {"registered": False}
                assert (
                    reply.body["superseded"]["message"]
                    == "0x" + attested_message(removal).unsigned.raw.hex()
                )
                assert network.manager(l1).deliver(bytes.fromhex(reply.signed)).accepted
            refused = await running.expect_error(400, "message_superseded", unasked)
            assert refused.detail["verdict"] == "never"
            assert refused.detail["superseded"]["now"] == {"registered": False}
            assert refused.body["message"].endswith(" removed the validation")
            assert count_signature_requests(network) == before
            # The outcome is the code that the caller gets, wherever it is shown.
            counts = {
                name: value
                for name, value in (await running.daemon.metrics()).items()
                if name.startswith("warpseal_aggregation_duration_seconds_count")
                and 'outcome="ok"' not in name
            }
            assert counts == {
                'warpseal_aggregation_duration_seconds_count{outcome="message_superseded"}': 1
            }
            status = (await running.daemon.get("/status.json")).body
            assert status["aggregations"][0]["outcome"] == "message_superseded"


async def test_x_chain_transactions_have_no_message(tmp_path: Path) -> None:
    async with run_l1_network(tmp_path) as running:
        (tx_id, *_) = running.network.x_transactions
        refused = await running.expect_error(400, "no_message", cb58_encode(tx_id))
        assert refused.detail["chain"] == "X-Chain"


async def test_posts_and_requests_by_transaction_share_stored_signatures(tmp_path: Path) -> None:
    async with run_l1_network(tmp_path) as running:
        conversion = running.network.p_chain.conversion_of(running.l1)
        registration = running.network.p_chain.register(running.l1)
        registered_reply = await running.deliver(registration)
        posted_reply = await running.daemon.aggregate_v1(
            attested_message(conversion), signingSubnetId=id_text(running.l1), pChainHeight=20
        )
        before = running.count_signature_requests()
        assert (await running.deliver(conversion)).signed == posted_reply.signed
        again = await running.daemon.aggregate_v1(
            attested_message(registration), signingSubnetId=id_text(running.l1), pChainHeight=20
        )
        assert again.signed == registered_reply.signed
        assert running.count_signature_requests() == before
