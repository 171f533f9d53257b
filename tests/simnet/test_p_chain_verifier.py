"""The P-Chain signs its facts and refuses everything else with the code that a node gives."""

from __future__ import annotations

import pytest

from tests.simnet.sessions import NOW, Clock, recorded, small_network, state_at_tip
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
    build_p_chain_message,
)
from warpseal.warp.message import AddressedCall, Hash, UnsignedMessage
from warpseal_simnet import p_chain_verifier
from warpseal_simnet.p_chain_verifier import PChainCode
from warpseal_simnet.recorded import RecordedSigner
from warpseal_simnet.signing import LiveSigner, SignatureRequest
from warpseal_simnet.state import SimState
from warpseal_simnet.values import ChainKind

NETWORK = 88888
NO_OWNER = PChainOwner(1, (bytes(20),))


@pytest.fixture
def state() -> SimState:
    return small_network().state


def code_of(state: SimState, payload: bytes, justification: bytes = b"") -> int | None:
    refusal = p_chain_verifier.refusal_of(
        state_at_tip(state), build_p_chain_message(NETWORK, payload), justification
    )
    return refusal.code if refusal else None


def registration(subnet_id: SubnetID, expiry: int) -> RegisterL1Validator:
    return RegisterL1Validator(
        subnet_id, bytes(20), bytes([0x80]) + bytes(47), expiry, NO_OWNER, NO_OWNER, 1
    )


def test_only_addressed_calls_without_sender_and_with_a_known_payload_are_signed(
    state: SimState,
) -> None:
    def code(payload: bytes) -> int | None:
        refusal = p_chain_verifier.refusal_of(
            state_at_tip(state), UnsignedMessage.build(NETWORK, P_CHAIN, payload), b""
        )
        return refusal.code if refusal else None

    assert code(Hash(bytes(32)).encode()) == PChainCode.NO_ADDRESSED_CALL
    assert code(AddressedCall(b"x", b"").encode()) == PChainCode.SOURCE_ADDRESS
    assert code(AddressedCall(b"", b"junk").encode()) == PChainCode.UNPARSABLE_PAYLOAD
    register = registration(SubnetID(bytes(32)), 1).encode()
    assert code(AddressedCall(b"", register).encode()) == PChainCode.UNSUPPORTED_PAYLOAD


def test_conversions_need_their_subnet_and_its_id(state: SimState) -> None:
    subnet = list(state.subnets.values())[1]
    assert subnet.conversion_id is not None
    right = SubnetToL1Conversion(subnet.conversion_id).encode()
    assert code_of(state, right, subnet.subnet_id) is None
    assert code_of(state, right, b"short") == PChainCode.UNPARSABLE_JUSTIFICATION
    assert code_of(state, right, bytes(32)) == PChainCode.NOT_CONVERTED
    wrong = SubnetToL1Conversion(bytes(32)).encode()
    assert code_of(state, wrong, subnet.subnet_id) == PChainCode.CONVERSION_ID


def test_registrations_are_attested_while_they_last(state: SimState) -> None:
    _, l1 = state.subnets
    validation = state.validations[l1][0]
    there = L1ValidatorRegistration(validation.id, True).encode()
    gone = L1ValidatorRegistration(validation.id, False).encode()
    proof = L1ValidatorRegistrationJustification.bootstrap(l1, validation.index).raw
    assert code_of(state, there) is None
    assert code_of(state, gone, proof) == PChainCode.VALIDATION_EXISTS
    validation.present = False
    assert code_of(state, there) == PChainCode.NO_VALIDATION
    assert code_of(state, gone, proof) is None


def test_the_error_code_depends_on_the_justification(state: SimState) -> None:
    _, l1 = state.subnets
    absent = bootstrap_validation_id(l1, 99)
    gone = L1ValidatorRegistration(absent, False).encode()
    unconverted = L1ValidatorRegistration(
        bootstrap_validation_id(SubnetID(bytes(32)), 0), False
    ).encode()
    assert code_of(state, gone, b"\xff") == PChainCode.UNPARSABLE_JUSTIFICATION
    assert code_of(state, gone, b"") == PChainCode.JUSTIFICATION_TYPE
    assert code_of(state, gone, bytes.fromhex("0a020a00")) == PChainCode.SUBNET_ID
    assert code_of(state, gone, bytes.fromhex("1200")) == PChainCode.UNPARSABLE_REGISTRATION
    other = L1ValidatorRegistrationJustification.bootstrap(l1, 98).raw
    assert code_of(state, gone, other) == PChainCode.VALIDATION_ID
    elsewhere = L1ValidatorRegistrationJustification.bootstrap(SubnetID(bytes(32)), 0).raw
    assert code_of(state, unconverted, elsewhere) == PChainCode.NOT_CONVERTED
    explicit_zero = L1ValidatorRegistrationJustification.bootstrap(l1, 99).raw + bytes.fromhex(
        "7800"
    )
    assert code_of(state, gone, explicit_zero) is None


def test_a_registration_that_can_still_happen_is_not_denied(state: SimState) -> None:
    _, l1 = state.subnets
    for expiry, expected in ((NOW, None), (NOW + 1, PChainCode.COULD_BE_REGISTERED)):
        message = registration(l1, expiry)
        gone = L1ValidatorRegistration(message.validation_id, False).encode()
        proof = L1ValidatorRegistrationJustification.registered(message).raw
        assert code_of(state, gone, proof) == expected


def test_weights_need_the_last_nonce_and_the_present_weight(state: SimState) -> None:
    _, l1 = state.subnets
    validation = next(
        validation for validation in state.validations[l1] if validation.min_nonce == 1
    )
    assert code_of(state, L1ValidatorWeight(validation.id, 0, validation.weight).encode()) is None
    assert (
        code_of(state, L1ValidatorWeight(validation.id, 1, validation.weight).encode())
        == PChainCode.WRONG_NONCE
    )
    assert (
        code_of(state, L1ValidatorWeight(validation.id, 0, 1).encode()) == PChainCode.WRONG_WEIGHT
    )
    assert (
        code_of(state, L1ValidatorWeight(validation.id, 2**64 - 1, 1).encode())
        == PChainCode.IMPOSSIBLE_NONCE
    )
    unknown = ValidationID(bytes(32))
    assert code_of(state, L1ValidatorWeight(unknown, 0, 1).encode()) == PChainCode.NO_VALIDATION


def test_every_recorded_refusal_of_the_p_chain_follows_from_the_rules() -> None:
    network = recorded()
    signer = network.context.responder.signer
    assert isinstance(signer, RecordedSigner)
    checked = 0
    for (_, chain_id, raw, justification), response in signer.replies.items():
        if chain_id == P_CHAIN:
            expected = None if isinstance(response, bytes) else response
            message = UnsignedMessage.parse(raw)
            assert (
                p_chain_verifier.refusal_of(state_at_tip(network.state), message, justification)
                == expected
            )
            checked += 1
    assert checked == 35


def test_every_message_of_the_network_is_signed_and_they_are_distinct() -> None:
    network = small_network(messages=40)
    state = network.state
    signer = LiveSigner(state)
    assert (
        len({message.unsigned.id for message in network.messages})
        == len(network.messages)
        == 3 * 40
    )
    for message in network.messages:
        chain = state.chains[message.unsigned.source_chain_id]
        question = SignatureRequest(message.unsigned, message.justification)
        assert isinstance(signer.respond(state.validators[0], chain, question), bytes), message


def evm_code(state: SimState, payload: bytes, *, network_id: int = NETWORK) -> int | None:
    chain = next(
        chain for chain in state.chains.values() if chain.kind is ChainKind.EVM and not chain.alias
    )
    message = UnsignedMessage.build(network_id, ChainID(chain.chain_id), payload)
    response = LiveSigner(state).respond(state.validators[0], chain, SignatureRequest(message, b""))
    return None if isinstance(response, bytes) else response.code


def test_an_evm_chain_signs_known_messages_only(state: SimState) -> None:
    _, l1 = state.subnets
    validation = state.validations[l1][0]
    state.accepted_blocks.add(bytes([1]) * 32)
    assert evm_code(state, Hash(bytes([1]) * 32).encode()) is None
    assert evm_code(state, Hash(bytes(32)).encode()) == 2
    assert evm_code(state, b"junk") == 1
    assert evm_code(state, AddressedCall(b"x" * 20, b"unknown").encode()) == 1
    uptime = ValidatorUptime(validation.id, 10)
    assert evm_code(state, AddressedCall(b"", uptime.encode()).encode()) is None
    assert evm_code(state, AddressedCall(b"x", uptime.encode()).encode()) == 2
    assert (
        evm_code(state, AddressedCall(b"", ValidatorUptime(validation.id, 2**40).encode()).encode())
        == 2
    )
    unknown = ValidatorUptime(ValidationID(bytes(32)), 1)
    assert evm_code(state, AddressedCall(b"", unknown.encode()).encode()) == 2
    assert evm_code(state, AddressedCall(b"", uptime.encode()).encode(), network_id=1) == -1


def test_evm_signatures_are_cached_and_p_chain_requests_are_verified_each_time() -> None:
    clock = Clock()
    network = small_network(clock)
    state, signer = network.state, LiveSigner(network.state)
    _, l1 = state.subnets
    validator, validation = state.validators[0], state.validations[l1][0]
    chain = state.chains[P_CHAIN]
    question = SignatureRequest(
        build_p_chain_message(NETWORK, L1ValidatorRegistration(validation.id, True).encode()), b""
    )
    assert isinstance(signer.respond(validator, chain, question), bytes)
    validation.present = False
    assert not isinstance(signer.respond(validator, chain, question), bytes)
    evm = next(
        message
        for message in network.messages
        if message.signing_subnet_id == l1 and message.unsigned.source_chain_id != P_CHAIN
    )
    evm_chain = state.chains[evm.unsigned.source_chain_id]
    first = signer.respond(validator, evm_chain, SignatureRequest(evm.unsigned, b""))
    state.message_ids.clear()
    assert signer.respond(validator, evm_chain, SignatureRequest(evm.unsigned, b"")) == first
