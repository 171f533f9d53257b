"""The preflight foretells what the next block of a simulated destination does with a message, and
for which reason.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

import pytest

from tests.delivery.preflights import PreflightSetup
from tests.node.recorded_node import RecordedNode
from tests.simnet.sessions import Clock
from tests.validators.fixtures import ValidatorServices
from warpseal.node.settings import NodeSettings
from warpseal.node.upstream import connect_upstream
from warpseal.upstream.endpoint import NodeEndpoint
from warpseal.upstream.node import open_session
from warpseal.validators.settings import ValidatorSettings
from warpseal.warp.ids import P_CHAIN, ChainID, SubnetID
from warpseal.warp.l1_messages import (
    L1ValidatorWeight,
    PChainOwner,
    RegisterL1Validator,
    bootstrap_validation_id,
)
from warpseal.warp.message import AddressedCall, SignedMessage, UnsignedMessage, encode_signers
from warpseal_simnet.destination import RefusalCode
from warpseal_simnet.messages import teleporter_call
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan
from warpseal_simnet.settings import NodeSettings as SimNodeSettings
from warpseal_simnet.signing import sign, signing_height
from warpseal_simnet.warp_config import WarpRule

CALL: Final = AddressedCall(b"\x01" * 20, b"data").encode()
PLAN: Final = Plan(
    validators=3,
    l1s=(
        L1Plan(4, "4/3/2/1", spare=1, idle=True),
        L1Plan(2, idle=True, warp=WarpRule(quorum=90, needs_primary_signers=True)),
    ),
    messages=0,
    epoch_blocks=1,
    epoch_s=30,
)
# A change of weight that was made, and a removal, are named so; a node says only that they come too
# late.
DELIVERED_BEFORE: Final = (
    RefusalCode.STALE_NONCE,
    RefusalCode.NO_VALIDATION,
    RefusalCode.ALREADY_DELIVERED,
)


@dataclass
class SimulatedDestinations:
    """A network with a clock of its own, and a preflight over its node."""

    network: SimulatedNetwork
    clock: Clock
    setup: PreflightSetup

    def subnet(self, place: int) -> SubnetID:
        """Return the Primary Network (0) or an L1."""
        return self.network.subnets[place].subnet_id

    def chain(self, place: int) -> ChainID:
        """Return the C-Chain (0) or the chain of an L1."""
        if place:
            return self.network.state.chains_of(self.subnet(place))[0]
        return next(
            chain.chain_id for chain in self.network.state.chains.values() if chain.alias == "C"
        )

    def sign(
        self,
        source: ChainID,
        signer: int,
        payload: bytes = CALL,
        height: int | None = None,
        **options: Any,
    ) -> SignedMessage:
        unsigned = UnsignedMessage.build(self.network.network_id, source, payload)
        at = self.network.state.heights.current if height is None else height
        return sign(self.network.state, unsigned, self.subnet(signer), at, **options)

    def from_manager(self, payload: bytes, address: bytes | None = None) -> SignedMessage:
        """Return a message of the manager of the first L1."""
        manager = self.network.manager(self.subnet(1))
        call = AddressedCall(manager.address if address is None else address, payload)
        return self.sign(manager.chain_id, 1, call.encode())

    def registration(self, expires_in_s: int, weight: int = 5) -> RegisterL1Validator:
        node, owner = self.network.validators[-1], PChainOwner(0, ())
        expiry = int(self.clock.now) + expires_in_s
        return RegisterL1Validator(
            self.subnet(1), node.node_id, node.bls_key, expiry, owner, owner, weight
        )

    async def preflight(self, signed: SignedMessage, destination_id: ChainID) -> dict[str, Any]:
        """Return the preflight, with everything read from the node again."""
        self.setup.services.clock.now += 60
        await self.setup.services.heights.poll()
        return await self.setup.check(signed, destination_id)

    async def deliver(self, signed: SignedMessage, destination_id: ChainID) -> RefusalCode | None:
        """Assert that the preflight says what the next block then does; return the reason of a
        refusal.
        """
        body = await self.preflight(signed, destination_id)
        verified = self.network.verify_next(destination_id, signed.encode())
        assert body["verifiesNow"] == verified.accepted, (body, verified)
        if not verified.accepted:
            assert body["reason"] == verified.code
        (delivery,) = self.network.build_block(destination_id, [signed.encode()])
        if delivery.accepted:
            assert "reason" not in body, body
            assert body["statement"]["accepted"] is not False
        elif body["reason"] == RefusalCode.ALREADY_DELIVERED:
            assert delivery.code in DELIVERED_BEFORE
        else:
            assert body["reason"] == delivery.code, (body, delivery)
        return delivery.code


@asynccontextmanager
async def simulated(plan: Plan = PLAN, quorum: int = 1) -> AsyncIterator[SimulatedDestinations]:
    clock = Clock()
    async with (
        SimulatedNetwork(replace(plan, settings=SimNodeSettings(clock=clock))) as network,
        open_session() as session,
    ):
        nodes = tuple(NodeEndpoint(node.uri) for node in network.nodes)
        settings = NodeSettings(nodes, nodes, calls_per_s=100_000, p_chain_quorum=quorum)
        upstream = connect_upstream(settings, session)
        services = ValidatorServices(RecordedNode(), upstream, ValidatorSettings())
        yield SimulatedDestinations(
            network, clock, PreflightSetup(services, network.network_id, clock)
        )


async def test_every_signature_error_is_predicted_with_the_nodes_reason() -> None:
    async with simulated() as sim:
        first, second = sim.chain(1), sim.chain(2)
        good = sim.sign(first, 1)
        unknown = UnsignedMessage.build(sim.network.network_id, ChainID(b"\x07" * 32), CALL)
        expected = {
            None: [
                (good, first),
                (good, second),
                (good, sim.chain(0)),
                (sim.sign(P_CHAIN, 2), second),
            ],
            "payload": [(sim.sign(first, 1, b"?"), second)],
            "unknown_source": [(replace(good, unsigned=unknown), second)],
            "network_id": [(replace(good, unsigned=UnsignedMessage.build(7, first, CALL)), second)],
            "bit_set": [
                (replace(good, signers=b"\x00" + good.signers), second),
                (replace(good, signers=encode_signers([0, 99])), first),
            ],
            "weight": [
                (replace(good, signers=b""), second),
                (replace(good, signers=encode_signers([0]), signature=bytes(96)), second),
            ],
            "signature": [
                (replace(good, signature=bytes(96)), second),
                (sim.sign(P_CHAIN, 1), second),
            ],
        }
        for reason, cases in expected.items():
            for message, destination_id in cases:
                delivery = await sim.deliver(message, destination_id)
                assert delivery == reason or (
                    reason == "signature" and delivery in ("weight", "bit_set")
                ), reason


async def test_a_message_verifies_in_the_epoch_of_its_set_and_not_in_the_next_one() -> None:
    async with simulated() as sim:
        chain_id = sim.chain(1)
        old = sim.sign(chain_id, 1)
        sim.network.p_chain.register(sim.subnet(1), weight=10)
        new = sim.sign(chain_id, 1)
        sim.clock.now += 30
        body = await sim.preflight(old, chain_id)
        assert body["verifiesAt"] == ["current"]
        ahead = await sim.preflight(new, chain_id)
        assert ahead["verifiesAt"] == ["next", "proposed"]
        assert (ahead["advice"]["neededHeight"], ahead["advice"]["blocksBefore"]) == (
            at(ahead, "next"),
            1,
        )
        assert "advice" not in body
        assert await sim.deliver(new, chain_id) == RefusalCode.BIT_SET
        # That block has sealed the epoch.
        assert (await sim.preflight(old, chain_id))["verifiesAt"] == ["previous"]
        assert await sim.deliver(old, chain_id) in (RefusalCode.SIGNATURE, RefusalCode.WEIGHT)
        assert await sim.deliver(new, chain_id) is None


@pytest.mark.parametrize("quorum", [1, 2])
async def test_a_chain_without_proposervm_verifies_at_the_proposed_height_and_the_report_says_so(
    quorum: int,
) -> None:
    plan = replace(PLAN, l1s=(*PLAN.l1s, L1Plan(2, simplex=True)), nodes=quorum)
    async with simulated(plan, quorum) as sim:
        old = sim.sign(sim.chain(1), 1)
        sim.network.p_chain.register(sim.subnet(1), weight=10)
        body = await sim.preflight(sim.sign(sim.chain(1), 1), sim.chain(3))
        proposed = sim.network.state.heights.proposed
        assert body["destination"]["pChainHeight"] == str(proposed)
        assert body["destination"]["pChainHeightSource"] == "proposed"
        assert "epoch" not in body["destination"]
        assert await sim.deliver(sim.sign(sim.chain(1), 1), sim.chain(3)) is None
        # The chain has no epoch in which the set of before would still count.
        assert await sim.deliver(old, sim.chain(3)) in (RefusalCode.SIGNATURE, RefusalCode.WEIGHT)


def at(body: dict[str, Any], epoch: str) -> str:
    """Return a height of a reply."""
    return next(str(row["pChainHeight"]) for row in body["heights"] if row["epoch"] == epoch)


async def test_the_quorum_of_the_time_of_the_next_block_decides() -> None:
    async with simulated() as sim:
        chain_id = sim.chain(2)
        lightest = min(
            sim.network.state.current_set(sim.subnet(1)), key=lambda member: member.weight
        ).public_key
        assert lightest is not None
        ninety = sim.sign(sim.chain(1), 1, without=[lightest])
        assert await sim.deliver(ninety, chain_id) is None
        sim.network.state.warp[chain_id].upgrades.append(
            WarpRule(int(sim.clock.now) + 5, quorum=91)
        )
        assert await sim.deliver(ninety, chain_id) is None
        sim.clock.now += 10
        assert await sim.deliver(ninety, chain_id) == RefusalCode.WEIGHT


async def test_teleporter_messages_are_received_once() -> None:
    async with simulated() as sim:
        for_first, for_other = (
            sim.sign(sim.chain(2), 2, teleporter_call(7, chain_id, b"x").encode())
            for chain_id in (sim.chain(1), b"\x09" * 32)
        )
        assert (await sim.preflight(for_first, sim.chain(1)))["statement"]["accepted"] is True
        assert await sim.deliver(for_first, sim.chain(1)) is None
        assert await sim.deliver(for_first, sim.chain(1)) == RefusalCode.ALREADY_DELIVERED
        other = await sim.preflight(for_other, sim.chain(1))
        assert (other["verifiesNow"], other["reason"]) == (True, "other_destination")


def removal(sim: SimulatedDestinations) -> SignedMessage:
    return sim.from_manager(
        L1ValidatorWeight(bootstrap_validation_id(sim.subnet(1), 0), 9, 0).encode()
    )


REFUSED: Final[dict[str, Callable[[SimulatedDestinations], SignedMessage]]] = {
    "expired_registration": lambda sim: sim.from_manager(sim.registration(0).encode()),
    "early_registration": lambda sim: sim.from_manager(sim.registration(86_401).encode()),
    "wrong_manager": lambda sim: sim.from_manager(sim.registration(60).encode(), b"\x01" * 20),
    "no_validation": lambda sim: sim.from_manager(
        L1ValidatorWeight(sim.registration(60).validation_id, 1, 1).encode()
    ),
    "reserved_nonce": lambda sim: sim.from_manager(
        L1ValidatorWeight(bootstrap_validation_id(sim.subnet(1), 0), 2**64 - 1, 1).encode()
    ),
    "other_destination": lambda sim: sim.sign(sim.chain(1), 1),
}


async def test_the_p_chain_refuses_with_the_predicted_reasons() -> None:
    async with simulated() as sim:
        for reason, build in REFUSED.items():
            assert await sim.deliver(build(sim), P_CHAIN) == reason


async def test_a_request_of_a_manager_is_accepted_once() -> None:
    async with simulated() as sim:
        registration = sim.registration(3_600)
        messages = [
            sim.from_manager(payload.encode())
            for payload in (
                registration,
                L1ValidatorWeight(registration.validation_id, 3, 9),
                L1ValidatorWeight(registration.validation_id, 4, 0),
            )
        ]
        for message in messages:
            assert await sim.deliver(message, P_CHAIN) is None
            again = await sim.preflight(message, P_CHAIN)
            assert (again["verifiesNow"], again["reason"]) == (True, "already_delivered")
        assert await sim.deliver(messages[1], P_CHAIN) == RefusalCode.NO_VALIDATION


async def test_the_last_validator_stays() -> None:
    async with simulated() as sim:
        subnet_id = sim.subnet(2)
        manager = sim.network.manager(subnet_id)
        for index, expected in ((0, None), (1, RefusalCode.LAST_VALIDATOR)):
            payload = L1ValidatorWeight(bootstrap_validation_id(subnet_id, index), 5, 0).encode()
            call = AddressedCall(manager.address, payload).encode()
            height = signing_height(sim.network.state, subnet_id)
            message = sim.sign(manager.chain_id, 2, call, height)
            body = await sim.preflight(message, P_CHAIN)
            assert body.get("reason") == expected
            (delivery,) = sim.network.build_block(P_CHAIN, [message.encode()])
            assert delivery.code == expected


@pytest.mark.parametrize("seed", range(3))
async def test_random_changes_of_sets_epochs_and_signers_are_predicted(seed: int) -> None:
    random = Random(seed)
    async with simulated() as sim:
        messages: list[SignedMessage] = []
        nodes = [node.index for node in sim.network.validators if sim.subnet(1) in node.subnets][:4]
        for _ in range(25):
            choice = random.randrange(5)
            if choice == 0:
                sim.network.change_weight(
                    sim.subnet(1), random.choice(nodes), random.randrange(1, 50)
                )
            elif choice == 1:
                sim.network.advance(random.randrange(1, 4))
            elif choice == 2:
                sim.clock.now += random.choice([1, 29, 31])
            source = random.choice([sim.chain(0), sim.chain(1), sim.chain(2), P_CHAIN])
            heights = range(1, sim.network.state.heights.current + 1)
            messages.append(sim.sign(source, random.randrange(3), CALL, random.choice(heights)))
            message = random.choice(messages)
            destination_id = random.choice([sim.chain(1), sim.chain(2), sim.chain(0)])
            await sim.deliver(message, destination_id)
