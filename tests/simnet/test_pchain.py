"""The P-Chain signs its facts and refuses everything else with the code that a node gives."""

from __future__ import annotations

import pytest

from tests.simnet.sessions import NOW, Clock, recorded, small_network
from warpseal.simnet import pchain
from warpseal.simnet.pchain import PChainCode
from warpseal.simnet.recorded import RecordedSigner
from warpseal.simnet.signing import LiveSigner, Question
from warpseal.simnet.state import World
from warpseal.simnet.values import ChainKind
from warpseal.warp.ids import P_CHAIN, ChainID, SubnetID, ValidationID
from warpseal.warp.justification import L1ValidatorRegistrationJustification
from warpseal.warp.l1_messages import (
    L1ValidatorRegistration,
    L1ValidatorWeight,
    PChainOwner,
    RegisterL1Validator,
    SubnetToL1Conversion,
    ValidatorUptime,
    bootstrap_validation_id,
    p_chain_message,
)
from warpseal.warp.message import AddressedCall, Hash, UnsignedMessage

NETWORK = 88888
NOBODY = PChainOwner(1, (bytes(20),))


@pytest.fixture
def world() -> World:
    return small_network().world


def code_of(world: World, payload: bytes, justification: bytes = b"") -> int | None:
    refusal = pchain.refusal_of(world, p_chain_message(NETWORK, payload), justification)
    return refusal.code if refusal else None


def registration(subnet_id: SubnetID, expiry: int) -> RegisterL1Validator:
    return RegisterL1Validator(subnet_id, bytes(20), bytes([0x80]) + bytes(47), expiry, NOBODY, NOBODY, 1)


def test_only_addressed_calls_without_sender_and_with_a_known_payload_are_signed(world: World) -> None:
    def code(payload: bytes) -> int | None:
        refusal = pchain.refusal_of(world, UnsignedMessage.build(NETWORK, P_CHAIN, payload), b"")
        return refusal.code if refusal else None

    assert code(Hash(bytes(32)).encode()) == PChainCode.NO_ADDRESSED_CALL
    assert code(AddressedCall(b"x", b"").encode()) == PChainCode.SOURCE_ADDRESS
    assert code(AddressedCall(b"", b"junk").encode()) == PChainCode.UNPARSABLE_PAYLOAD
    register = registration(SubnetID(bytes(32)), 1).encode()
    assert code(AddressedCall(b"", register).encode()) == PChainCode.UNSUPPORTED_PAYLOAD


def test_conversions_need_their_subnet_and_its_id(world: World) -> None:
    subnet = list(world.subnets.values())[1]
    assert subnet.conversion_id is not None
    right = SubnetToL1Conversion(subnet.conversion_id).encode()
    assert code_of(world, right, subnet.subnet_id) is None
    assert code_of(world, right, b"short") == PChainCode.UNPARSABLE_JUSTIFICATION
    assert code_of(world, right, bytes(32)) == PChainCode.NOT_CONVERTED
    wrong = SubnetToL1Conversion(bytes(32)).encode()
    assert code_of(world, wrong, subnet.subnet_id) == PChainCode.CONVERSION_ID


def test_registrations_are_attested_while_they_last(world: World) -> None:
    _, l1 = world.subnets
    seat = world.seats[l1][0]
    there = L1ValidatorRegistration(seat.id, True).encode()
    gone = L1ValidatorRegistration(seat.id, False).encode()
    proof = L1ValidatorRegistrationJustification.bootstrap(l1, seat.index).raw
    assert code_of(world, there) is None
    assert code_of(world, gone, proof) == PChainCode.VALIDATION_EXISTS
    seat.present = False
    assert code_of(world, there) == PChainCode.NO_VALIDATION
    assert code_of(world, gone, proof) is None


def test_justifications_are_told_apart_by_what_is_wrong_with_them(world: World) -> None:
    _, l1 = world.subnets
    absent = bootstrap_validation_id(l1, 99)
    gone = L1ValidatorRegistration(absent, False).encode()
    unconverted = L1ValidatorRegistration(bootstrap_validation_id(SubnetID(bytes(32)), 0), False).encode()
    assert code_of(world, gone, b"\xff") == PChainCode.UNPARSABLE_JUSTIFICATION
    assert code_of(world, gone, b"") == PChainCode.JUSTIFICATION_TYPE
    assert code_of(world, gone, bytes.fromhex("0a020a00")) == PChainCode.SUBNET_ID
    assert code_of(world, gone, bytes.fromhex("1200")) == PChainCode.UNPARSABLE_REGISTRATION
    other = L1ValidatorRegistrationJustification.bootstrap(l1, 98).raw
    assert code_of(world, gone, other) == PChainCode.VALIDATION_ID
    elsewhere = L1ValidatorRegistrationJustification.bootstrap(SubnetID(bytes(32)), 0).raw
    assert code_of(world, unconverted, elsewhere) == PChainCode.NOT_CONVERTED
    explicit_zero = L1ValidatorRegistrationJustification.bootstrap(l1, 99).raw + bytes.fromhex("7800")
    assert code_of(world, gone, explicit_zero) is None


def test_a_registration_that_can_still_happen_is_not_denied(world: World) -> None:
    _, l1 = world.subnets
    for expiry, expected in ((NOW, None), (NOW + 1, PChainCode.COULD_BE_REGISTERED)):
        message = registration(l1, expiry)
        gone = L1ValidatorRegistration(message.validation_id, False).encode()
        proof = L1ValidatorRegistrationJustification.registered(message).raw
        assert code_of(world, gone, proof) == expected


def test_weights_need_the_last_nonce_and_the_present_weight(world: World) -> None:
    _, l1 = world.subnets
    seat = next(seat for seat in world.seats[l1] if seat.min_nonce == 1)
    assert code_of(world, L1ValidatorWeight(seat.id, 0, seat.weight).encode()) is None
    assert code_of(world, L1ValidatorWeight(seat.id, 1, seat.weight).encode()) == PChainCode.WRONG_NONCE
    assert code_of(world, L1ValidatorWeight(seat.id, 0, 1).encode()) == PChainCode.WRONG_WEIGHT
    assert code_of(world, L1ValidatorWeight(seat.id, 2**64 - 1, 1).encode()) == PChainCode.IMPOSSIBLE_NONCE
    unknown = ValidationID(bytes(32))
    assert code_of(world, L1ValidatorWeight(unknown, 0, 1).encode()) == PChainCode.NO_VALIDATION


def test_every_recorded_refusal_of_the_p_chain_follows_from_the_rules() -> None:
    network = recorded()
    signer = network.street.desk.answers.signer
    assert isinstance(signer, RecordedSigner)
    checked = 0
    for (_, chain_id, raw, justification), answer in signer.answers.items():
        if chain_id == P_CHAIN:
            expected = None if isinstance(answer, bytes) else answer
            message = UnsignedMessage.parse(raw)
            assert pchain.refusal_of(network.world, message, justification) == expected
            checked += 1
    assert checked == 35


def test_every_message_of_the_network_is_signed_and_they_are_distinct() -> None:
    network = small_network(messages=40)
    world = network.world
    signer = LiveSigner(world)
    assert len({message.unsigned.id for message in network.messages}) == len(network.messages) == 3 * 40
    for message in network.messages:
        chain = world.chains[message.unsigned.source_chain_id]
        question = Question(message.unsigned, message.justification)
        assert isinstance(signer.answer(world.validators[0], chain, question), bytes), message


def evm_code(world: World, payload: bytes, *, network_id: int = NETWORK) -> int | None:
    chain = next(chain for chain in world.chains.values() if chain.kind is ChainKind.EVM and not chain.alias)
    message = UnsignedMessage.build(network_id, ChainID(chain.chain_id), payload)
    answer = LiveSigner(world).answer(world.validators[0], chain, Question(message, b""))
    return None if isinstance(answer, bytes) else answer.code


def test_an_evm_chain_signs_what_it_knows_and_refuses_the_rest(world: World) -> None:
    _, l1 = world.subnets
    seat = world.seats[l1][0]
    world.accepted_blocks.add(bytes([1]) * 32)
    assert evm_code(world, Hash(bytes([1]) * 32).encode()) is None
    assert evm_code(world, Hash(bytes(32)).encode()) == 2
    assert evm_code(world, b"junk") == 1
    assert evm_code(world, AddressedCall(b"x" * 20, b"unknown").encode()) == 1
    uptime = ValidatorUptime(seat.id, 10)
    assert evm_code(world, AddressedCall(b"", uptime.encode()).encode()) is None
    assert evm_code(world, AddressedCall(b"x", uptime.encode()).encode()) == 2
    assert evm_code(world, AddressedCall(b"", ValidatorUptime(seat.id, 2**40).encode()).encode()) == 2
    unknown = ValidatorUptime(ValidationID(bytes(32)), 1)
    assert evm_code(world, AddressedCall(b"", unknown.encode()).encode()) == 2
    assert evm_code(world, AddressedCall(b"", uptime.encode()).encode(), network_id=1) == -1


def test_signatures_of_evm_chains_are_remembered_and_those_of_the_p_chain_judged_anew() -> None:
    clock = Clock()
    network = small_network(clock)
    world, signer = network.world, LiveSigner(network.world)
    _, l1 = world.subnets
    validator, seat = world.validators[0], world.seats[l1][0]
    chain = world.chains[P_CHAIN]
    question = Question(p_chain_message(NETWORK, L1ValidatorRegistration(seat.id, True).encode()), b"")
    assert isinstance(signer.answer(validator, chain, question), bytes)
    seat.present = False
    assert not isinstance(signer.answer(validator, chain, question), bytes)
    evm = next(
        message
        for message in network.messages
        if message.signing_subnet_id == l1 and message.unsigned.source_chain_id != P_CHAIN
    )
    evm_chain = world.chains[evm.unsigned.source_chain_id]
    first = signer.answer(validator, evm_chain, Question(evm.unsigned, b""))
    world.known_messages.clear()
    assert signer.answer(validator, evm_chain, Question(evm.unsigned, b"")) == first
