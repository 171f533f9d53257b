"""The messages that a simulated network signs: distinct, of every kind that its chains know.

Source of truth: ICM `TeleporterMessenger` (layout of the call), ACP-77 (P-Chain messages and
justifications).
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from itertools import islice
from typing import Final

from warpseal.warp.ids import PRIMARY_NETWORK, SubnetID
from warpseal.warp.justification import L1ValidatorRegistrationJustification
from warpseal.warp.l1_messages import (
    L1ValidatorRegistration,
    L1ValidatorWeight,
    PChainOwner,
    RegisterL1Validator,
    SubnetToL1Conversion,
    ValidatorUptime,
    build_p_chain_message,
)
from warpseal.warp.message import AddressedCall, Hash, UnsignedMessage
from warpseal_simnet.state import SimState
from warpseal_simnet.teleporter import MESSENGER
from warpseal_simnet.validator_sets import Validation
from warpseal_simnet.values import ChainKind, SimChain, SimMessage, SimSubnet

_SENDER: Final = bytes.fromhex("8db97c7cece249c2b98bdc0226cc4c2a57bf52fc")
_NO_OWNER_KEYS: Final = PChainOwner(1, (bytes(20),))
# One of ten messages of an EVM chain is a block hash, and one of ten on an L1 is an uptime.
_HASH_PLACE: Final = 8
_UPTIME_PLACE: Final = 9


def build_messages(state: SimState, chain: SimChain, count: int) -> list[SimMessage]:
    """Return `count` distinct messages that the validators of a chain sign; the X-Chain has none.

    The blocks of hash messages become accepted blocks of the state.
    """
    if chain.kind is ChainKind.X:
        return []
    messages = (
        _p_chain_messages(state) if chain.kind is ChainKind.P else _evm_messages(state, chain)
    )
    return list(islice(messages, count))


def teleporter_call(nonce: int, destination: bytes, body: bytes) -> AddressedCall:
    """Return a call that carries a Teleporter message: ABI words, nonce first.

    destination: 32 bytes.
    """
    words = [
        _word(0x20),
        _word(nonce),
        _SENDER.rjust(32, b"\x00"),
        destination,
        _SENDER.rjust(32, b"\x00"),
        _word(1),
        _word(0x100),
        _word(0x120),
        _word(0x140),
        _word(0),
        _word(0),
        _word(len(body)),
        body.ljust(-(-len(body) // 32) * 32, b"\x00"),
    ]
    return AddressedCall(MESSENGER, b"".join(words))


def _evm_messages(state: SimState, chain: SimChain) -> Iterator[SimMessage]:
    validations = [
        validation for validation in state.validations[chain.subnet_id] if validation.is_l1
    ]
    destination = sha256(b"destination of " + chain.chain_id).digest()
    number = 0
    while True:
        number += 1
        place = number % 10
        if place == _HASH_PLACE:
            block = sha256(chain.chain_id + _word(number)).digest()
            state.accepted_blocks.add(block)
            payload = Hash(block).encode()
        elif place == _UPTIME_PLACE and validations:
            payload = _uptime(validations[number // 10 % len(validations)], number).encode()
        else:
            payload = teleporter_call(number, destination, b"\x01\x02\x03\x04").encode()
        unsigned = UnsignedMessage.build(state.network_id, chain.chain_id, payload)
        yield SimMessage(unsigned, b"", chain.subnet_id)


def _uptime(validation: Validation, number: int) -> AddressedCall:
    # Messages differ in their seconds; validations started long enough ago for all of them.
    return AddressedCall(b"", ValidatorUptime(validation.id, number).encode())


def _p_chain_messages(state: SimState) -> Iterator[SimMessage]:
    l1s = [subnet for subnet in state.subnets.values() if subnet.conversion_id]
    for subnet in l1s:
        yield from _facts(state, subnet)
    signing = [subnet.subnet_id for subnet in l1s] or [PRIMARY_NETWORK]
    number = 0
    while True:
        for subnet_id in signing:
            number += 1
            yield _not_registered(state, subnet_id, number)


def _facts(state: SimState, subnet: SimSubnet) -> Iterator[SimMessage]:
    """Yield the true facts about an L1: its conversion, its validators and their weights."""
    assert subnet.conversion_id is not None
    yield _fact(
        state,
        SubnetToL1Conversion(subnet.conversion_id).encode(),
        subnet.subnet_id,
        subnet.subnet_id,
    )
    for validation in state.validations[subnet.subnet_id]:
        if validation.present:
            yield _fact(
                state, L1ValidatorRegistration(validation.id, True).encode(), b"", subnet.subnet_id
            )
        if validation.present and validation.min_nonce:
            weight = L1ValidatorWeight(validation.id, validation.min_nonce - 1, validation.weight)
            yield _fact(state, weight.encode(), b"", subnet.subnet_id)


def _not_registered(state: SimState, subnet_id: SubnetID, number: int) -> SimMessage:
    """Return a true "not registered and never will be" message.

    number: an odd number proves it by a conversion, an even one by an expired registration.
    """
    if number % 2 and subnet_id != PRIMARY_NETWORK:
        proof = L1ValidatorRegistrationJustification.bootstrap(subnet_id, 1_000_000 + number)
    else:
        digest = sha256(subnet_id + _word(number)).digest()
        expired = RegisterL1Validator(
            subnet_id, digest[:20], _key(digest), number, _NO_OWNER_KEYS, _NO_OWNER_KEYS, 1
        )
        proof = L1ValidatorRegistrationJustification.registered(expired)
    payload = L1ValidatorRegistration(proof.validation_id, False).encode()
    return _fact(state, payload, proof.raw, subnet_id)


def _fact(
    state: SimState, payload: bytes, justification: bytes, signing_subnet_id: SubnetID
) -> SimMessage:
    return SimMessage(
        build_p_chain_message(state.network_id, payload), justification, signing_subnet_id
    )


def _key(digest: bytes) -> bytes:
    return bytes([0x80]) + digest + digest[:15]


def _word(value: int) -> bytes:
    return value.to_bytes(32, "big")
