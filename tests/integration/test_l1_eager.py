"""Eager signing by a whole daemon: `eager-l1-messages` signs each message without a request."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.eventually import until
from tests.integration.daemon import run_network
from tests.integration.l1_daemon import (
    L1_PLAN,
    L1Daemon,
    run_l1_daemon,
    run_l1_network,
    validation_id_of,
)
from warpseal.warp.ids import id_text
from warpseal_simnet.ledger import Transaction
from warpseal_simnet.plan import L1Plan

EAGER = {"eager-l1-messages": True}


async def until_signed(running: L1Daemon, transaction: Transaction) -> None:
    """Wait until the store has a signature of the transaction's message; send no request."""

    async def is_signed() -> bool:
        stored = (await running.daemon.explanation(transaction)).get("stored", {"signatures": 0})
        return int(stored["signatures"]) > 0

    await until(is_signed)


async def test_accepted_transactions_are_signed_without_a_request(tmp_path: Path) -> None:
    async with run_l1_network(tmp_path, L1_PLAN, EAGER) as running:
        await running.daemon.until_indexed(running.network.p_chain.height)
        registration = running.network.p_chain.register(running.l1)
        change = running.network.p_chain.set_weight(validation_id_of(registration), 1_200)
        await until_signed(running, change)
        removal = running.network.p_chain.remove(validation_id_of(registration))
        await until_signed(running, removal)
        before = running.count_signature_requests()
        # The registration was valid only for a moment, so it may or may not be signed.
        reply = await running.daemon.l1_message(change)
        running.verify(reply, change)
        assert reply.body["superseded"]["now"] == {"registered": False}
        await running.deliver(removal)
        assert running.count_signature_requests() == before


async def test_transactions_of_untracked_subnets_are_not_signed(tmp_path: Path) -> None:
    l1s = (L1Plan(validators=4, spare=1), L1Plan(validators=4, spare=1))
    async with run_network(replace(L1_PLAN, l1s=l1s)) as network:
        tracked, other = (subnet.subnet_id for subnet in network.subnets[1:])
        async with run_l1_daemon(
            network, tmp_path, {**EAGER, "tracked-subnet-ids": [id_text(tracked)]}
        ) as running:
            await running.daemon.until_indexed(network.p_chain.height)
            left_alone = network.p_chain.register(other)
            signed = network.p_chain.register(tracked)
            await until_signed(running, signed)
            assert (await running.daemon.explanation(left_alone))["stored"]["shares"] == 0


async def test_a_missed_quorum_is_retried_after_a_restart(tmp_path: Path) -> None:
    async with run_network(L1_PLAN) as network:
        impatient = {"default_timeout_s": 0.3}
        async with run_l1_daemon(network, tmp_path, EAGER, aggregation=impatient) as running:
            await running.daemon.until_indexed(network.p_chain.height)
            network.set_behaviour(running.nodes_of_l1(), "silent")
            registration = network.p_chain.register(running.l1)
            await until(lambda: running.count_signature_requests() >= 4)
            # The attempt ends, and the next one is due soon.
            await running.expect_error(503, "quorum_not_reached", registration, timeoutSeconds=1.5)
        network.set_behaviour(running.nodes_of_l1(), "")
        async with run_l1_daemon(network, tmp_path, EAGER) as running:
            await until_signed(running, registration)
            before = running.count_signature_requests()
            await running.deliver(registration)
            assert running.count_signature_requests() == before
