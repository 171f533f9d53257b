"""The proof that a validation existed, which validators need before they sign "not registered".

Source of truth: `L1ValidatorRegistrationJustification` of avalanchego
`proto/platformvm/platformvm.proto`. It is parsed field by field, because only the canonical
encoding is accepted.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from warpseal.warp.codec import MalformedMessage, require_length
from warpseal.warp.ids import ID_BYTES, SubnetID, ValidationID
from warpseal.warp.l1_messages import RegisterL1Validator, bootstrap_validation_id
from warpseal.warp.protobuf import (
    LENGTH_DELIMITED,
    VARINT,
    DecodeError,
    encode_field,
    encode_varint,
    read_varint,
)

_BOOTSTRAP_FIELD: Final = 1
_REGISTERED_FIELD: Final = 2
_SUBNET_ID_FIELD: Final = 1
_INDEX_FIELD: Final = 2
_MAX_UINT32: Final = 2**32 - 1
_MAX_VARINT_BYTES: Final = 5

_Fields = dict[int, int | bytes]


class MalformedJustification(ValueError):
    """The bytes prove no validation.

    reason: rule that they break.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class L1ValidatorRegistrationJustification(Struct, frozen=True):
    """The proof `raw` that a validation of a subnet existed.

    index: position of an initial validator; None for a later validator.
    registration: message that registered a later validator; None for an initial validator.
    """

    subnet_id: SubnetID
    validation_id: ValidationID
    raw: bytes
    index: int | None = None
    registration: RegisterL1Validator | None = None

    @classmethod
    def parse(cls, raw: bytes) -> L1ValidatorRegistrationJustification:
        """Return the justification whose bytes are exactly `raw`. Raises MalformedJustification."""
        wire_types = {_BOOTSTRAP_FIELD: LENGTH_DELIMITED, _REGISTERED_FIELD: LENGTH_DELIMITED}
        fields = _read_fields(raw, wire_types)
        match fields:
            case {1: bytes(inner)} if len(fields) == 1:
                subnet_id, index = _read_bootstrap(inner)
                return cls(subnet_id, bootstrap_validation_id(subnet_id, index), raw, index=index)
            case {2: bytes(payload)} if len(fields) == 1:
                try:
                    message = RegisterL1Validator.parse(payload)
                except MalformedMessage as error:
                    reason = f"the register validator message is malformed: {error}"
                    raise MalformedJustification(reason) from None
                return cls(message.subnet_id, message.validation_id, raw, registration=message)
        raise MalformedJustification("exactly one of the two kinds of proof is needed")

    @classmethod
    def bootstrap(cls, subnet_id: SubnetID, index: int) -> L1ValidatorRegistrationJustification:
        """Return the proof for the initial validator at `index` of a subnet's conversion."""
        inner = encode_field(_SUBNET_ID_FIELD, require_length(subnet_id, ID_BYTES, "subnet id"))
        if index:
            inner += encode_varint(_INDEX_FIELD << 3 | VARINT) + encode_varint(index)
        proven = bootstrap_validation_id(subnet_id, index)
        return cls(subnet_id, proven, encode_field(_BOOTSTRAP_FIELD, inner), index=index)

    @classmethod
    def registered(cls, message: RegisterL1Validator) -> L1ValidatorRegistrationJustification:
        """Return the proof for a validator that `message` registered, or was meant to register."""
        raw = encode_field(_REGISTERED_FIELD, message.encode())
        return cls(message.subnet_id, message.validation_id, raw, registration=message)


def _read_bootstrap(raw: bytes) -> tuple[SubnetID, int]:
    fields = _read_fields(raw, {_SUBNET_ID_FIELD: LENGTH_DELIMITED, _INDEX_FIELD: VARINT})
    match fields.get(_SUBNET_ID_FIELD), fields.get(_INDEX_FIELD, 0):
        case bytes(subnet_id), int(index) if len(subnet_id) == ID_BYTES and index <= _MAX_UINT32:
            return SubnetID(subnet_id), index
    raise MalformedJustification("a subnet id of 32 bytes and an index below 2^32 are needed")


def _read_fields(raw: bytes, allowed: dict[int, int]) -> _Fields:
    """Return fields by number.

    allowed: wire types by number of field; other fields and repetitions are refused.
    """
    fields: _Fields = {}
    offset = 0
    while offset < len(raw):
        key, offset = _read_varint(raw, offset)
        number, wire_type = key >> 3, key & 7
        if allowed.get(number) != wire_type or number in fields:
            raise MalformedJustification(f"unexpected field {number} of wire type {wire_type}")
        value, offset = _read_varint(raw, offset)
        if wire_type == VARINT:
            fields[number] = value
            continue
        if offset + value > len(raw):
            raise MalformedJustification(f"field {number} is cut short")
        fields[number] = raw[offset : offset + value]
        offset += value
    return fields


def _read_varint(raw: bytes, offset: int) -> tuple[int, int]:
    """Return a minimally encoded varint of at most five bytes and the offset behind it."""
    try:
        value, end = read_varint(raw, offset)
    except DecodeError:
        value, end = 0, offset
    if raw[offset:end] != encode_varint(value) or end > offset + _MAX_VARINT_BYTES:
        raise MalformedJustification(f"no minimal varint of a uint32 at byte {offset}")
    return value, end
