"""One signature for many validator sets: its bits change with the set, and only missing weight is asked for."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.eventually import until
from tests.integration.daemon import Reply, run_network
from tests.integration.l1_scene import HEIGHT, Scene, beside, until_status
from tests.integration.message_verifier import build_canonical_keys, parse_signed_message, verify_with_py_ecc
from warpseal.simnet.ledger import Transaction
from warpseal.simnet.network import SimulatedNetwork
from warpseal.simnet.plan import L1Plan, Plan
from warpseal.simnet.validator_sets import SetEntry
from warpseal.warp.ids import SubnetID
from warpseal.warp.l1_messages import bootstrap_validation_id

PLAN = Plan(validators=3, l1s=(L1Plan(validators=6, unconverted=True, spare=1),), messages=0)


@dataclass(frozen=True)
class Founded:
    """An L1 of six validators; one more node tracks it, whose key stands before all of theirs."""

    network: SimulatedNetwork
    conversion: Transaction
    first_key: int
    members: tuple[int, ...]

    @property
    def subnet_id(self) -> SubnetID:
        """The L1."""
        return self.network.subnets[-1].subnet_id

    def change(self, index: int, weight: int) -> None:
        """Give a member another weight; 0: it leaves."""
        self.network.change_weight(self.subnet_id, index, weight)

    def requests(self) -> dict[int, int]:
        """Return how many signature requests each node got."""
        return {item: self.network.validators[item].counts.app_requests for item in (*self.members, self.first_key)}


def founded(network: SimulatedNetwork) -> Founded:
    """Convert the subnet, its validators being all nodes but the one with the key that sorts first."""
    subnet_id = network.subnets[-1].subnet_id
    nodes = [validator for validator in network.validators if subnet_id in validator.subnets]
    keys = build_canonical_keys(SetEntry(node.node_id, node.bls_key, 1) for node in nodes)[0]
    first, *members = sorted(nodes, key=lambda node: keys.index((node.bls_key, 1)))
    conversion = network.p_chain.convert(subnet_id, [member.index for member in members])
    network.advance(network.plan.epoch_blocks)
    return Founded(network, conversion, first.index, tuple(member.index for member in members))


async def at_a_new_epoch(running: Scene, transaction: Transaction) -> Reply:
    """Let an epoch pass; return the first answer that is made for it."""
    running.network.advance(running.network.plan.epoch_blocks)
    replies: list[Reply] = []

    async def is_new() -> bool:
        replies.append(await running.daemon.l1_message(transaction))
        return int(replies[-1].headers[HEIGHT]) == running.network.state.heights.verifying

    await until(is_new)
    return replies[-1]


async def test_a_new_set_costs_no_request_while_the_signers_stay(tmp_path: Path) -> None:
    async with run_network(PLAN) as network, beside(network, tmp_path) as running:
        l1 = founded(network)
        before = await running.delivered(l1.conversion)
        network.p_chain.register(l1.subnet_id, l1.first_key, weight=100)
        l1.change(l1.members[0], 1_050)
        requests = l1.requests()
        after = await at_a_new_epoch(running, l1.conversion)
        assert l1.requests() == requests
        verdict = running.judged(after, l1.conversion)
        verify_with_py_ecc(verdict)
        assert network.manager(l1.subnet_id).deliver(bytes.fromhex(after.signed)).accepted
        (unsigned, bits, signature), (_, moved, same) = (
            parse_signed_message(bytes.fromhex(item.signed)) for item in (before, after)
        )
        assert unsigned == verdict.unsigned
        assert signature == same
        # One key came before all others, so that each bit moved by one.
        assert moved == tuple(bit + 1 for bit in bits)


@pytest.mark.parametrize("restart", [False, True], ids=["in-one-life", "after-a-restart"])
async def test_when_signers_leave_only_the_missing_weight_is_asked_for(tmp_path: Path, restart: bool) -> None:
    async with run_network(PLAN) as network:
        l1 = founded(network)
        leaving, *staying, silent = l1.members
        network.set_behaviour(silent, "silent")
        async with AsyncExitStack() as life:
            running = await life.enter_async_context(beside(network, tmp_path))
            assert running.judged(await running.delivered(l1.conversion), l1.conversion).weight == 5_000
            if restart:
                await life.aclose()
            network.set_behaviour(silent, "")
            network.p_chain.register(l1.subnet_id, l1.first_key, weight=100)
            l1.change(silent, 4_000)
            l1.change(leaving, 0)
            requests = l1.requests()
            if restart:
                running = await life.enter_async_context(beside(network, tmp_path))
            reply = await at_a_new_epoch(running, l1.conversion)
            verdict = running.judged(reply, l1.conversion)
            verify_with_py_ecc(verdict)
            assert network.manager(l1.subnet_id).deliver(bytes.fromhex(reply.signed)).accepted
            asked = {request for request, count in l1.requests().items() if count > requests[request]}
            assert silent in asked
            assert asked <= {silent, l1.first_key}
            kept = {network.validators[item].bls_key for item in staying}
            assert len(kept & set(verdict.signers)) >= 2


async def test_what_is_stored_of_a_superseded_message_serves_as_long_as_it_reaches_the_quorum(tmp_path: Path) -> None:
    async with run_network(PLAN) as network, beside(network, tmp_path) as running:
        l1 = founded(network)
        change = network.p_chain.set_weight(bootstrap_validation_id(l1.subnet_id, 0), 1_010)
        signed = running.judged(await running.delivered(change), change)
        superseding = network.p_chain.set_weight(bootstrap_validation_id(l1.subnet_id, 0), 1_020)
        network.p_chain.register(l1.subnet_id, l1.first_key, weight=100)
        requests = l1.requests()
        reply = await at_a_new_epoch(running, change)
        assert running.judged(reply, change).signature == signed.signature
        assert reply.body["superseded"]["now"] == {"nonce": "1", "weight": "1020"}
        assert network.manager(l1.subnet_id).deliver(bytes.fromhex(reply.signed)).accepted
        l1.change(l1.first_key, 100_000)
        network.advance(network.plan.epoch_blocks)
        assert (await until_status(running, 400, change)).body["code"] == "message_superseded"
        assert l1.requests() == requests
        # By then, the index has found what made it so.
        await running.daemon.until_indexed(network.p_chain.height)
        refused = await running.refused(400, "message_superseded", change)
        assert refused.detail["superseded"]["byTxHash"] == superseding.text
