"""Which messages the P-Chain signs, and the error code of each refusal.

Source of truth: avalanchego `vms/platformvm/network/warp.go`. Justifications are parsed as
leniently as nodes parse them, because the error code depends on which part is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from warpseal.warp.codec import CodecReader, MalformedMessage
from warpseal.warp.ids import ID_BYTES, SubnetID, ValidationID, id_text
from warpseal.warp.l1_messages import (
    L1ValidatorRegistration,
    L1ValidatorWeight,
    RegisterL1Validator,
    SubnetToL1Conversion,
    bootstrap_validation_id,
)
from warpseal.warp.message import AddressedCall, UnsignedMessage
from warpseal.warp.protobuf import DecodeError, iter_fields
from warpseal_simnet.behaviours import Refusal
from warpseal_simnet.state import StateAt

_MAX_NONCE: Final = 2**64 - 1
_Inner = SubnetToL1Conversion | L1ValidatorRegistration | L1ValidatorWeight | RegisterL1Validator
_PARSERS: Final[dict[int, Callable[[bytes], _Inner]]] = {
    0: SubnetToL1Conversion.parse,
    2: L1ValidatorRegistration.parse,
    3: L1ValidatorWeight.parse,
}
_BOOTSTRAP_FIELD: Final = 1
_REGISTERED_FIELD: Final = 2


class PChainCode(IntEnum):
    """Codes of the P-Chain's application errors."""

    NO_ADDRESSED_CALL = 1
    SOURCE_ADDRESS = 2
    UNPARSABLE_PAYLOAD = 3
    UNSUPPORTED_PAYLOAD = 4
    UNPARSABLE_JUSTIFICATION = 5
    NOT_CONVERTED = 6
    CONVERSION_ID = 7
    JUSTIFICATION_TYPE = 8
    SUBNET_ID = 9
    VALIDATION_ID = 10
    NO_VALIDATION = 11
    VALIDATION_EXISTS = 12
    UNPARSABLE_REGISTRATION = 13
    COULD_BE_REGISTERED = 14
    IMPOSSIBLE_NONCE = 15
    WRONG_NONCE = 16
    WRONG_WEIGHT = 17


@dataclass(frozen=True, slots=True)
class _Bootstrap:
    subnet_id: bytes
    index: int


@dataclass(frozen=True, slots=True)
class _Registered:
    payload: bytes


def refusal_of(state: StateAt, message: UnsignedMessage, justification: bytes) -> Refusal | None:
    """Return why the P-Chain does not sign a message in this state, or None if it signs it."""
    try:
        call = AddressedCall.parse(message.payload)
    except MalformedMessage as error:
        text = codec_text(message.payload, error)
        return _refusal(
            PChainCode.NO_ADDRESSED_CALL, f"failed to parse warp addressed call: {text}"
        )
    if call.source_address:
        return _refusal(PChainCode.SOURCE_ADDRESS, "source address should be empty")
    try:
        inner = _parse_inner(call.payload)
    except MalformedMessage as error:
        return _refusal(
            PChainCode.UNPARSABLE_PAYLOAD, f"failed to parse warp addressed call payload: {error}"
        )
    match inner:
        case SubnetToL1Conversion():
            return _conversion(state, inner, justification)
        case L1ValidatorRegistration(registered=True):
            return _registered(state, inner.validation_id)
        case L1ValidatorRegistration():
            return _not_registered(state, inner.validation_id, justification)
        case L1ValidatorWeight():
            return _weight(state, inner)
    return _refusal(PChainCode.UNSUPPORTED_PAYLOAD, "unsupported warp addressed call payload type")


def _parse_inner(raw: bytes) -> _Inner:
    return _PARSERS.get(int.from_bytes(raw[2:6], "big"), RegisterL1Validator.parse)(raw)


def _conversion(
    state: StateAt, message: SubnetToL1Conversion, justification: bytes
) -> Refusal | None:
    if len(justification) != ID_BYTES:
        text = (
            f"failed to parse justification: expected {ID_BYTES} bytes but got {len(justification)}"
        )
        return _refusal(PChainCode.UNPARSABLE_JUSTIFICATION, text)
    expected = state.conversion_id(justification)
    if expected is None:
        return _not_converted(justification)
    if message.conversion_id != expected:
        actual_id, expected_id = id_text(message.conversion_id), id_text(expected)
        text = f'provided conversionID "{actual_id}" != expected conversionID "{expected_id}"'
        return _refusal(PChainCode.CONVERSION_ID, text)
    return None


def _registered(state: StateAt, validation_id: ValidationID) -> Refusal | None:
    return None if state.validation(validation_id) else _no_validation(validation_id)


def _not_registered(
    state: StateAt, validation_id: ValidationID, justification: bytes
) -> Refusal | None:
    try:
        proof = _parse_justification(justification)
    except DecodeError:
        text = "failed to parse justification: proto: cannot parse invalid wire-format data"
        return _refusal(PChainCode.UNPARSABLE_JUSTIFICATION, text)
    match proof:
        case _Bootstrap():
            return _never_initial(state, validation_id, proof)
        case _Registered():
            return _never_again(state, validation_id, proof)
    return _refusal(PChainCode.JUSTIFICATION_TYPE, "invalid justification type: <nil>")


def _never_initial(
    state: StateAt, validation_id: ValidationID, proof: _Bootstrap
) -> Refusal | None:
    if len(proof.subnet_id) != ID_BYTES:
        text = f"failed to parse subnetID: expected {ID_BYTES} bytes but got {len(proof.subnet_id)}"
        return _refusal(PChainCode.SUBNET_ID, text)
    proven = bootstrap_validation_id(SubnetID(proof.subnet_id), proof.index)
    if validation_id != proven:
        return _mismatch(validation_id, proven)
    if state.conversion_id(proof.subnet_id) is None:
        return _not_converted(proof.subnet_id)
    return _exists(validation_id) if state.validation(validation_id) else None


def _never_again(state: StateAt, validation_id: ValidationID, proof: _Registered) -> Refusal | None:
    try:
        registration = RegisterL1Validator.parse(proof.payload)
    except MalformedMessage as error:
        text = (
            f"failed to parse RegisterL1Validator justification: {codec_text(proof.payload, error)}"
        )
        return _refusal(PChainCode.UNPARSABLE_REGISTRATION, text)
    if validation_id != registration.validation_id:
        return _mismatch(validation_id, registration.validation_id)
    if state.validation(validation_id):
        return _exists(validation_id)
    if registration.expiry > state.chain_time and not state.was_registered(validation_id):
        text = (
            f'validation "{id_text(validation_id)}" can be registered until {registration.expiry}'
        )
        return _refusal(PChainCode.COULD_BE_REGISTERED, text)
    return None


def _weight(state: StateAt, message: L1ValidatorWeight) -> Refusal | None:
    if message.nonce == _MAX_NONCE:
        return _refusal(PChainCode.IMPOSSIBLE_NONCE, "impossible nonce")
    validation = state.validation(message.validation_id)
    if validation is None:
        return _no_validation(message.validation_id)
    if message.nonce + 1 != validation.min_nonce:
        text = f"provided nonce {message.nonce} != expected nonce ({validation.min_nonce} - 1)"
        return _refusal(PChainCode.WRONG_NONCE, text)
    if message.weight != validation.weight:
        text = f"provided weight {message.weight} != expected weight {validation.weight}"
        return _refusal(PChainCode.WRONG_WEIGHT, text)
    return None


def _refusal(code: PChainCode, text: str) -> Refusal:
    return Refusal(int(code), text)


def _not_converted(subnet_id: bytes) -> Refusal:
    return _refusal(
        PChainCode.NOT_CONVERTED, f'subnet "{id_text(subnet_id)}" has not been converted'
    )


def _mismatch(actual: bytes, proven: bytes) -> Refusal:
    text = f'validationID "{id_text(actual)}" != justificationID "{id_text(proven)}"'
    return _refusal(PChainCode.VALIDATION_ID, text)


def _no_validation(validation_id: bytes) -> Refusal:
    return _refusal(
        PChainCode.NO_VALIDATION, f'validation "{id_text(validation_id)}" does not exist'
    )


def _exists(validation_id: bytes) -> Refusal:
    return _refusal(PChainCode.VALIDATION_EXISTS, f'validation "{id_text(validation_id)}" exists')


def _parse_justification(raw: bytes) -> _Bootstrap | _Registered | None:
    """Return the proof; the last of several counts, and unknown fields are ignored.

    Raises DecodeError.
    """
    proof: _Bootstrap | _Registered | None = None
    for number, value in _fields(raw):
        if number == _BOOTSTRAP_FIELD and isinstance(value, bytes):
            inner = dict(_fields(value))
            subnet_id, index = inner.get(1, b""), inner.get(2, 0)
            if not isinstance(subnet_id, bytes) or not isinstance(index, int):
                raise DecodeError("a field of the wrong type")
            proof = _Bootstrap(subnet_id, index & 0xFFFFFFFF)
        elif number == _REGISTERED_FIELD and isinstance(value, bytes):
            proof = _Registered(value)
    return proof


def _fields(raw: bytes) -> list[tuple[int, int | bytes]]:
    fields = list(iter_fields(raw))
    if any(number == 0 for number, _ in fields):
        raise DecodeError("a field of number 0")
    return fields


def codec_text(raw: bytes, error: MalformedMessage) -> str:
    """Return the error text of a node's codec for `raw`, which `error` refused."""
    try:
        CodecReader(raw).version()
    except MalformedMessage:
        return "unknown codec version" if len(raw) >= 2 else "couldn't unpack codec version"
    return f"couldn't unmarshal: {error.reason}"
