"""A simulated manager takes a message of the P-Chain exactly when its chain would: signed by the
right set.
"""

from __future__ import annotations

import pytest

from tests.simnet.sessions import small_network
from warpseal import bls
from warpseal.warp.ids import ChainID, SubnetID, ValidationID
from warpseal.warp.l1_messages import (
    L1ValidatorRegistration,
    SubnetToL1Conversion,
    build_p_chain_message,
)
from warpseal.warp.message import AddressedCall, SignedMessage, UnsignedMessage, encode_signers
from warpseal_simnet.destination import Delivery
from warpseal_simnet.ledger import Transaction
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan
from warpseal_simnet.signing import sign


def signed_at(
    network: SimulatedNetwork, transaction: Transaction, height: int, subnet: int = 1
) -> bytes:
    """Return what is attested of a transaction, signed by all of a subnet's set at a height."""
    assert transaction.attested is not None
    return sign(
        network.state, transaction.attested.unsigned, network.subnets[subnet].subnet_id, height
    ).encode()


@pytest.fixture
def network() -> SimulatedNetwork:
    return small_network(messages=0, l1s=(L1Plan(4, spare=1),), epoch_blocks=5)


def l1_of(network: SimulatedNetwork) -> SubnetID:
    return network.subnets[1].subnet_id


def test_only_the_set_of_the_epochs_height_is_taken(network: SimulatedNetwork) -> None:
    registration = network.p_chain.register(l1_of(network), weight=5000)
    manager = network.manager(l1_of(network))
    assert manager.deliver(signed_at(network, registration, 20)) == Delivery(True)
    late = manager.deliver(signed_at(network, registration, 21))
    assert not late.accepted
    network.advance(4)
    assert network.state.proposervm[manager.chain_id].verifying_height == 25
    assert not manager.deliver(signed_at(network, registration, 20)).accepted
    assert manager.deliver(signed_at(network, registration, 25)).accepted


@pytest.mark.parametrize(("manager", "signer"), [("own", 1), ("C", 0), ("l1-1", 2)])
def test_the_subnet_of_the_managers_chain_signs(manager: str, signer: int) -> None:
    network = small_network(messages=0, l1s=(L1Plan(3, manager=manager), L1Plan(2)))
    conversion = network.p_chain.conversion_of(l1_of(network))
    verdicts = [
        network.manager(l1_of(network)).deliver(signed_at(network, conversion, 20, place))
        for place in (0, 1, 2)
    ]
    assert [verdict.accepted for verdict in verdicts] == [place == signer for place in (0, 1, 2)]


def test_weight_below_the_quorum_bad_signatures_and_unknown_bits_are_refused(
    network: SimulatedNetwork,
) -> None:
    conversion = network.p_chain.conversion_of(l1_of(network))
    manager = network.manager(l1_of(network))
    whole = SignedMessage.parse(signed_at(network, conversion, 20))
    share = bls.sign(network.validators[4].identity.bls_secret, whole.unsigned.raw)
    few = SignedMessage(whole.unsigned, encode_signers([0]), share)
    assert "insufficient weight: 1000 of 4000" in manager.deliver(few.encode()).reason
    wrong = SignedMessage(whole.unsigned, whole.signers, share)
    assert "invalid signature" in manager.deliver(wrong.encode()).reason
    unknown = SignedMessage(whole.unsigned, encode_signers([9]), share)
    assert "unknown validator: bit 9 of 4" in manager.deliver(unknown.encode()).reason
    assert "malformed" in manager.deliver(b"junk").reason


def test_valid_messages_for_another_contract_are_refused(network: SimulatedNetwork) -> None:
    manager, state = network.manager(l1_of(network)), network.state
    own = ChainID(manager.chain_id)
    foreign = build_p_chain_message(network.network_id, SubnetToL1Conversion(bytes(32)).encode())
    unknown = build_p_chain_message(
        network.network_id, L1ValidatorRegistration(ValidationID(bytes(32)), True).encode()
    )
    sender = UnsignedMessage.build(
        network.network_id, ChainID(bytes(32)), AddressedCall(b"x", b"").encode()
    )
    elsewhere = UnsignedMessage.build(network.network_id, own, AddressedCall(b"", b"").encode())
    reasons = {
        foreign: "InvalidConversionID",
        unknown: "InvalidValidationID",
        sender: "InvalidWarpOriginSenderAddress",
        elsewhere: "InvalidWarpSourceChainID",
        UnsignedMessage.build(1, ChainID(bytes(32)), sender.payload): "wrong network id",
        UnsignedMessage.build(1, ChainID(bytes(32)), b""): "the payload is neither",
    }
    for unsigned, reason in reasons.items():
        delivery = manager.deliver(sign(state, unsigned, l1_of(network), 20).encode())
        assert not delivery.accepted
        assert reason in delivery.reason
