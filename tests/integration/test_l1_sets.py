"""Stored signatures and changed validator sets: the signer bits change, and only missing weight is
requested.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.eventually import until
from tests.integration.daemon import Reply, run_network
from tests.integration.l1_daemon import HEIGHT, L1Daemon, run_l1_daemon, until_status
from tests.integration.message_verifier import (
    build_canonical_keys,
    parse_signed_message,
    verify_with_py_ecc,
)
from warpseal.warp.ids import SubnetID
from warpseal.warp.l1_messages import bootstrap_validation_id
from warpseal_simnet.ledger import Transaction
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan
from warpseal_simnet.validator_sets import SetEntry

PLAN = Plan(validators=3, l1s=(L1Plan(validators=6, unconverted=True, spare=1),), messages=0)


@dataclass(frozen=True)
class ConvertedL1:
    """An L1 of six validators; one more node tracks it, and its key sorts before the keys of the
    validators.
    """

    network: SimulatedNetwork
    conversion: Transaction
    first_key: int
    members: tuple[int, ...]

    @property
    def subnet_id(self) -> SubnetID:
        """The L1."""
        return self.network.subnets[-1].subnet_id

    def change(self, index: int, weight: int) -> None:
        """Change the weight of a validator; 0 removes it."""
        self.network.change_weight(self.subnet_id, index, weight)

    def requests(self) -> dict[int, int]:
        """Return how many signature requests each node got."""
        return {
            item: self.network.validators[item].counts.app_requests
            for item in (*self.members, self.first_key)
        }


def convert_l1(network: SimulatedNetwork) -> ConvertedL1:
    """Convert the subnet; its validators are all nodes except the node whose key sorts first."""
    subnet_id = network.subnets[-1].subnet_id
    nodes = [validator for validator in network.validators if subnet_id in validator.subnets]
    keys = build_canonical_keys(SetEntry(node.node_id, node.bls_key, 1) for node in nodes)[0]
    first, *members = sorted(nodes, key=lambda node: keys.index((node.bls_key, 1)))
    conversion = network.p_chain.convert(subnet_id, [member.index for member in members])
    network.advance(network.plan.epoch_blocks)
    return ConvertedL1(network, conversion, first.index, tuple(member.index for member in members))


async def request_in_next_epoch(running: L1Daemon, transaction: Transaction) -> Reply:
    """Advance to the next epoch and return the first response with its height."""
    running.network.advance(running.network.plan.epoch_blocks)
    replies: list[Reply] = []

    async def is_new() -> bool:
        replies.append(await running.daemon.l1_message(transaction))
        proposer = running.network.state.proposervm[running.network.manager(running.l1).chain_id]
        return int(replies[-1].headers[HEIGHT]) == proposer.verifying_height

    await until(is_new)
    return replies[-1]


async def test_a_stored_signature_serves_a_new_set_that_has_all_signers(tmp_path: Path) -> None:
    async with run_network(PLAN) as network, run_l1_daemon(network, tmp_path) as running:
        l1 = convert_l1(network)
        before = await running.deliver(l1.conversion)
        network.p_chain.register(l1.subnet_id, l1.first_key, weight=100)
        l1.change(l1.members[0], 1_050)
        requests = l1.requests()
        after = await request_in_next_epoch(running, l1.conversion)
        assert l1.requests() == requests
        verdict = running.verify(after, l1.conversion)
        verify_with_py_ecc(verdict)
        assert network.manager(l1.subnet_id).deliver(bytes.fromhex(after.signed)).accepted
        (unsigned, bits, signature), (_, moved_bits, same) = (
            parse_signed_message(bytes.fromhex(item.signed)) for item in (before, after)
        )
        assert unsigned == verdict.unsigned
        assert signature == same
        # A new key sorts before all others, so that each bit moved by one.
        assert moved_bits == tuple(bit + 1 for bit in bits)


@pytest.mark.parametrize(
    "is_restarted", [False, True], ids=["without-a-restart", "after-a-restart"]
)
async def test_only_the_missing_weight_is_requested_after_signers_left(
    tmp_path: Path, is_restarted: bool
) -> None:
    async with run_network(PLAN) as network:
        l1 = convert_l1(network)
        leaving, *staying, silent = l1.members
        network.set_behaviour(silent, "silent")
        async with AsyncExitStack() as life:
            running = await life.enter_async_context(run_l1_daemon(network, tmp_path))
            assert (
                running.verify(await running.deliver(l1.conversion), l1.conversion).weight == 5_000
            )
            if is_restarted:
                await life.aclose()
            network.set_behaviour(silent, "")
            network.p_chain.register(l1.subnet_id, l1.first_key, weight=100)
            l1.change(silent, 4_000)
            l1.change(leaving, 0)
            requests = l1.requests()
            if is_restarted:
                running = await life.enter_async_context(run_l1_daemon(network, tmp_path))
            reply = await request_in_next_epoch(running, l1.conversion)
            verdict = running.verify(reply, l1.conversion)
            verify_with_py_ecc(verdict)
            assert network.manager(l1.subnet_id).deliver(bytes.fromhex(reply.signed)).accepted
            keys = {
                request for request, count in l1.requests().items() if count > requests[request]
            }
            assert silent in keys
            assert keys <= {silent, l1.first_key}
            staying_keys = {network.validators[item].bls_key for item in staying}
            assert len(staying_keys & set(verdict.signers)) >= 2


async def test_stored_signatures_of_a_superseded_message_serve_while_they_reach_the_quorum(
    tmp_path: Path,
) -> None:
    async with run_network(PLAN) as network, run_l1_daemon(network, tmp_path) as running:
        l1 = convert_l1(network)
        change = network.p_chain.set_weight(bootstrap_validation_id(l1.subnet_id, 0), 1_010)
        signed = running.verify(await running.deliver(change), change)
        superseding = network.p_chain.set_weight(bootstrap_validation_id(l1.subnet_id, 0), 1_020)
        network.p_chain.register(l1.subnet_id, l1.first_key, weight=100)
        requests = l1.requests()
        reply = await request_in_next_epoch(running, change)
        assert running.verify(reply, change).signature == signed.signature
        assert reply.body["superseded"]["now"] == {"nonce": "1", "weight": "1020"}
        assert network.manager(l1.subnet_id).deliver(bytes.fromhex(reply.signed)).accepted
        l1.change(l1.first_key, 100_000)
        network.advance(network.plan.epoch_blocks)
        assert (await until_status(running, 400, change)).body["code"] == "message_superseded"
        assert l1.requests() == requests
        # After this the index has the superseding transaction.
        await running.daemon.until_indexed(network.p_chain.height)
        refused = await running.expect_error(400, "message_superseded", change)
        assert refused.detail["superseded"]["byTxHash"] == superseding.text
        newer = (
            f"request transaction {superseding.text}, which set the validation's weight to 1020"
            " with nonce 1"
        )
        assert refused.body["message"].endswith(newer)
