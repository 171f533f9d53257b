"""An L1's life over a whole daemon: every kind of transaction, asked for before, at and after its acceptance."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.daemon import run_network
from tests.integration.l1_scene import (
    HEIGHT_SOURCE,
    SIGNING_SUBNET,
    Scene,
    asked,
    attested_by,
    beside,
    scene,
    validation_of,
)
from warpseal.simnet.ledger import Transaction
from warpseal.simnet.plan import L1Plan, Plan
from warpseal.warp.ids import PRIMARY_NETWORK, cb58_encode, id_text
from warpseal.warp.l1_messages import bootstrap_validation_id


def a_life(manager: str) -> Plan:
    """Return a plan whose last subnet becomes an L1, its manager on the chain that is named."""
    l1s = (L1Plan(validators=3), L1Plan(validators=4, unconverted=True, spare=1, manager=manager))
    return Plan(validators=4, l1s=l1s, messages=0, epoch_blocks=40)


async def lived(running: Scene, transaction: Transaction) -> None:
    """Assert what callers get of a transaction that is issued only, then accepted."""
    await running.refused(404, "transaction_not_found", transaction)
    running.network.p_chain.accept(transaction)
    if transaction.kind == "ConvertSubnetToL1Tx":
        # Before it, the L1 had no validator to sign.
        running.network.advance(running.network.plan.epoch_blocks)
    if transaction.attested is None:
        refused = await running.refused(400, "no_message", transaction)
        assert refused.detail == {"transactionType": transaction.kind, "chain": "P-Chain"}
        return
    reply = await running.delivered(transaction)
    assert reply.headers[HEIGHT_SOURCE] == "epoch"
    assert reply.headers[SIGNING_SUBNET] == id_text(attested_by(transaction).signing_subnet_id)
    in_hex = await running.daemon.l1_message("0x" + transaction.tx_id.hex())
    assert (in_hex.status, in_hex.signed) == (201, reply.signed)


@pytest.mark.parametrize("manager", ["own", "C", "l1-0"])
async def test_each_transaction_of_a_life_is_answered_as_the_p_chain_attests_it(tmp_path: Path, manager: str) -> None:
    async with run_network(a_life(manager)) as network:
        l1, p_chain = network.subnets[-1].subnet_id, network.p_chain
        async with beside(network, tmp_path) as running:
            initial = running.nodes_of_l1()[:4]
            conversion = p_chain.convert(l1, initial, later=True)
            await lived(running, conversion)
            registration = p_chain.register(l1, running.nodes_of_l1()[4], weight=500, later=True)
            await lived(running, registration)
            registered = validation_of(registration)
            first = p_chain.set_weight(registered, 700, later=True)
            await lived(running, first)
            unasked = p_chain.set_weight(registered, 800)
            second = p_chain.set_weight(registered, 900, later=True)
            await lived(running, second)
            await lived(running, p_chain.increase_balance(registered, 10**9, later=True))
            await lived(running, p_chain.disable(registered, later=True))
            removal = p_chain.remove(registered, later=True)
            await lived(running, removal)
            of_initial = p_chain.remove(bootstrap_validation_id(l1, 2), later=True)
            await lived(running, of_initial)
            signer = attested_by(removal).signing_subnet_id
            assert (signer == l1, signer == PRIMARY_NETWORK) == (manager == "own", manager == "C")
        # After a restart everything that was answered is answered again, and no validator is asked.
        before = asked(network)
        async with beside(network, tmp_path) as running:
            for transaction in (conversion, removal, of_initial):
                await running.delivered(transaction)
            for transaction in (registration, first, second):
                reply = await running.daemon.l1_message(transaction)
                running.judged(reply, transaction)
                assert reply.body["superseded"]["now"] == {"registered": False}
                assert reply.body["superseded"]["message"] == "0x" + attested_by(removal).unsigned.raw.hex()
                assert network.manager(l1).deliver(bytes.fromhex(reply.signed)).accepted
            refused = await running.refused(400, "message_superseded", unasked)
            assert refused.detail["verdict"] == "never"
            assert refused.detail["superseded"]["now"] == {"registered": False}
            assert asked(network) == before


async def test_a_transaction_of_the_x_chain_has_no_message(tmp_path: Path) -> None:
    async with scene(tmp_path) as running:
        (tx_id, *_) = running.network.x_transactions
        refused = await running.refused(400, "no_message", cb58_encode(tx_id))
        assert refused.detail["chain"] == "X-Chain"


async def test_what_was_posted_serves_those_who_ask_by_transaction_and_the_other_way_round(tmp_path: Path) -> None:
    async with scene(tmp_path) as running:
        conversion = running.network.p_chain.conversion_of(running.l1)
        registration = running.network.p_chain.register(running.l1)
        got = await running.delivered(registration)
        posted = await running.daemon.aggregate_v1(
            attested_by(conversion), signingSubnetId=id_text(running.l1), pChainHeight=20
        )
        before = running.asked()
        assert (await running.delivered(conversion)).signed == posted.signed
        again = await running.daemon.aggregate_v1(
            attested_by(registration), signingSubnetId=id_text(running.l1), pChainHeight=20
        )
        assert again.signed == got.signed
        assert running.asked() == before
