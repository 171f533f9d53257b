"""With `eager-l1-messages` a message is signed before anybody asks for it, however long that takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.eventually import until
from tests.integration.daemon import run_network
from tests.integration.l1_scene import LIFE, Scene, beside, scene, validation_of
from warpseal.simnet.ledger import Transaction
from warpseal.simnet.plan import L1Plan
from warpseal.warp.ids import id_text

EAGER = {"eager-l1-messages": True}


async def until_signed(running: Scene, transaction: Transaction) -> None:
    """Wait until a signature of a transaction's message is stored, without a request for it."""

    async def is_signed() -> bool:
        stored = (await running.daemon.explanation(transaction)).get("stored", {"signatures": 0})
        return int(stored["signatures"]) > 0

    await until(is_signed)


async def test_what_is_accepted_is_signed_at_once_and_unasked(tmp_path: Path) -> None:
    async with scene(tmp_path, LIFE, EAGER) as running:
        await running.daemon.until_indexed(running.network.p_chain.height)
        registration = running.network.p_chain.register(running.l1)
        change = running.network.p_chain.set_weight(validation_of(registration), 1_200)
        await until_signed(running, change)
        removal = running.network.p_chain.remove(validation_of(registration))
        await until_signed(running, removal)
        before = running.asked()
        # The registration was true for a moment only: whether it was signed in time is luck.
        reply = await running.daemon.l1_message(change)
        running.judged(reply, change)
        assert reply.body["superseded"]["now"] == {"registered": False}
        await running.delivered(removal)
        assert running.asked() == before


async def test_subnets_that_are_not_tracked_are_left_alone(tmp_path: Path) -> None:
    l1s = (L1Plan(validators=4, spare=1), L1Plan(validators=4, spare=1))
    async with run_network(replace(LIFE, l1s=l1s)) as network:
        tracked, other = (subnet.subnet_id for subnet in network.subnets[1:])
        async with beside(network, tmp_path, {**EAGER, "tracked-subnet-ids": [id_text(tracked)]}) as running:
            await running.daemon.until_indexed(network.p_chain.height)
            left_alone = network.p_chain.register(other)
            signed = network.p_chain.register(tracked)
            await until_signed(running, signed)
            assert (await running.daemon.explanation(left_alone))["stored"]["shares"] == 0


async def test_a_lost_quorum_is_tried_again_even_by_the_next_process(tmp_path: Path) -> None:
    async with run_network(LIFE) as network:
        impatient = {"default_timeout_s": 0.3}
        async with beside(network, tmp_path, EAGER, aggregation=impatient) as running:
            await running.daemon.until_indexed(network.p_chain.height)
            network.set_behaviour(running.nodes_of_l1(), "silent")
            registration = network.p_chain.register(running.l1)
            await until(lambda: running.asked() >= 4)
            # The attempt ends, and the next one is due soon.
            await running.refused(503, "quorum_not_reached", registration, timeoutSeconds=1.5)
        network.set_behaviour(running.nodes_of_l1(), "")
        async with beside(network, tmp_path, EAGER) as running:
            await until_signed(running, registration)
            before = running.asked()
            await running.delivered(registration)
            assert running.asked() == before
