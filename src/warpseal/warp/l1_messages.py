"""Messages between the P-Chain and L1s about L1 validators, and the ids that follow from them.

Source of truth: ACP-77, avalanchego `vms/platformvm/warp/message`; for the uptime
`graft/subnet-evm/warp/messages`.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from msgspec import Struct

from warpseal.warp.codec import (
    CodecReader,
    MalformedMessage,
    pack_sized,
    pack_u32,
    pack_u64,
    pack_versioned,
    require_length,
)
from warpseal.warp.ids import ID_BYTES, P_CHAIN, ChainID, SubnetID, ValidationID
from warpseal.warp.message import AddressedCall, UnsignedMessage

_CONVERSION_TYPE: Final = 0
_REGISTER_TYPE: Final = 1
_REGISTRATION_TYPE: Final = 2
_WEIGHT_TYPE: Final = 3
# The type id belongs to the L1's own chain; type 0 of the P-Chain is another message.
_UPTIME_TYPE: Final = 0
_KEY_BYTES: Final = 48
_ADDRESS_BYTES: Final = 20


class SubnetToL1Conversion(Struct, frozen=True):
    """The P-Chain attests that a subnet was converted.

    conversion_id: 32 bytes, see `ConversionData`.
    """

    conversion_id: bytes

    @classmethod
    def parse(cls, raw: bytes) -> SubnetToL1Conversion:
        """Return the message whose bytes are exactly `raw`. Raises MalformedMessage."""
        reader = _reader(raw, _CONVERSION_TYPE, "subnet conversion")
        conversion_id = reader.take(ID_BYTES, "conversion id")
        reader.finish()
        return cls(conversion_id)

    def encode(self) -> bytes:
        """Return the message's bytes."""
        return pack_versioned(
            pack_u32(_CONVERSION_TYPE),
            require_length(self.conversion_id, ID_BYTES, "conversion id"),
        )


class ConversionValidator(Struct, frozen=True):
    """An initial validator of a conversion.

    public_key: 48 bytes, compressed.
    """

    node_id: bytes
    public_key: bytes
    weight: int


class ConversionData(Struct, frozen=True):
    """The data that a conversion id commits to, with validators in the transaction's order."""

    subnet_id: SubnetID
    manager_chain_id: ChainID
    manager_address: bytes
    validators: tuple[ConversionValidator, ...]

    @property
    def conversion_id(self) -> bytes:
        """SHA-256 (32 bytes) of `encode()`."""
        return sha256(self.encode()).digest()

    def encode(self) -> bytes:
        """Return the data's bytes: a codec version, but no type id."""
        return pack_versioned(
            require_length(self.subnet_id, ID_BYTES, "subnet id"),
            require_length(self.manager_chain_id, ID_BYTES, "manager chain id"),
            pack_sized(self.manager_address),
            pack_u32(len(self.validators)),
            *(_encode_conversion_validator(validator) for validator in self.validators),
        )


class PChainOwner(Struct, frozen=True):
    """The owners of a balance or an authority, of whom `threshold` must sign.

    addresses: 20 bytes each.
    """

    threshold: int
    addresses: tuple[bytes, ...]


class RegisterL1Validator(Struct, frozen=True):
    """An L1 asks the P-Chain for a validator.

    public_key: 48 bytes, compressed.
    expiry: Unix seconds.
    """

    subnet_id: SubnetID
    node_id: bytes
    public_key: bytes
    expiry: int
    remaining_balance_owner: PChainOwner
    disable_owner: PChainOwner
    weight: int

    @property
    def validation_id(self) -> ValidationID:
        """SHA-256 of `encode()`, from its leading codec version."""
        return ValidationID(sha256(self.encode()).digest())

    @classmethod
    def parse(cls, raw: bytes) -> RegisterL1Validator:
        """Return the message whose bytes are exactly `raw`. Raises MalformedMessage."""
        reader = _reader(raw, _REGISTER_TYPE, "register validator")
        message = cls(
            subnet_id=SubnetID(reader.take(ID_BYTES, "subnet id")),
            node_id=reader.sized("node id"),
            public_key=reader.take(_KEY_BYTES, "public key"),
            expiry=reader.unsigned(8, "expiry"),
            remaining_balance_owner=_read_owner(reader, "remaining balance owner"),
            disable_owner=_read_owner(reader, "disable owner"),
            weight=reader.unsigned(8, "weight"),
        )
        reader.finish()
        return message

    def encode(self) -> bytes:
        """Return the message's bytes."""
        return pack_versioned(
            pack_u32(_REGISTER_TYPE),
            require_length(self.subnet_id, ID_BYTES, "subnet id"),
            pack_sized(self.node_id),
            require_length(self.public_key, _KEY_BYTES, "public key"),
            pack_u64(self.expiry),
            _encode_owner(self.remaining_balance_owner),
            _encode_owner(self.disable_owner),
            pack_u64(self.weight),
        )


class L1ValidatorRegistration(Struct, frozen=True):
    """The P-Chain attests that a validation exists, or that it does not and never will again."""

    validation_id: ValidationID
    registered: bool

    @classmethod
    def parse(cls, raw: bytes) -> L1ValidatorRegistration:
        """Return the message whose bytes are exactly `raw`. Raises MalformedMessage."""
        reader = _reader(raw, _REGISTRATION_TYPE, "validator registration")
        validation_id = _read_validation_id(reader)
        registered = reader.flag("registered")
        reader.finish()
        return cls(validation_id, registered)

    def encode(self) -> bytes:
        """Return the message's bytes."""
        validation_id = _encode_validation_id(self.validation_id)
        return pack_versioned(pack_u32(_REGISTRATION_TYPE), validation_id, bytes([self.registered]))


class L1ValidatorWeight(Struct, frozen=True):
    """The weight of a validation after change `nonce`.

    The L1 asks for it, and the P-Chain attests it.
    """

    validation_id: ValidationID
    nonce: int
    weight: int

    @classmethod
    def parse(cls, raw: bytes) -> L1ValidatorWeight:
        """Return the message whose bytes are exactly `raw`. Raises MalformedMessage."""
        reader = _reader(raw, _WEIGHT_TYPE, "validator weight")
        validation_id = _read_validation_id(reader)
        nonce = reader.unsigned(8, "nonce")
        weight = reader.unsigned(8, "weight")
        reader.finish()
        return cls(validation_id, nonce, weight)

    def encode(self) -> bytes:
        """Return the message's bytes."""
        validation_id = _encode_validation_id(self.validation_id)
        return pack_versioned(
            pack_u32(_WEIGHT_TYPE), validation_id, pack_u64(self.nonce), pack_u64(self.weight)
        )


class ValidatorUptime(Struct, frozen=True):
    """An L1 validator attests that a validation was up for at least `uptime_s` whole seconds."""

    validation_id: ValidationID
    uptime_s: int

    @classmethod
    def parse(cls, raw: bytes) -> ValidatorUptime:
        """Return the message whose bytes are exactly `raw`. Raises MalformedMessage."""
        reader = _reader(raw, _UPTIME_TYPE, "validator uptime")
        validation_id = _read_validation_id(reader)
        uptime_s = reader.unsigned(8, "uptime")
        reader.finish()
        return cls(validation_id, uptime_s)

    def encode(self) -> bytes:
        """Return the message's bytes."""
        return pack_versioned(
            pack_u32(_UPTIME_TYPE),
            _encode_validation_id(self.validation_id),
            pack_u64(self.uptime_s),
        )


def bootstrap_validation_id(subnet_id: SubnetID, index: int) -> ValidationID:
    """Return the validation id of an initial validator of a subnet's conversion.

    index: position of the validator in the transaction, uint32.
    """
    raw = require_length(subnet_id, ID_BYTES, "subnet id") + pack_u32(index)
    return ValidationID(sha256(raw).digest())


def build_p_chain_message(network_id: int, payload: bytes) -> UnsignedMessage:
    """Return the P-Chain's message that carries `payload`, one of the messages above, encoded."""
    return UnsignedMessage.build(network_id, P_CHAIN, AddressedCall(b"", payload).encode())


def parse_uptime_message(message: UnsignedMessage) -> ValidatorUptime | None:
    """Return the uptime that an L1 is asked to attest; None for another kind of payload."""
    if message.source_chain_id == P_CHAIN:
        return None
    try:
        call = AddressedCall.parse(message.payload)
        return None if call.source_address else ValidatorUptime.parse(call.payload)
    except MalformedMessage:
        return None


def _reader(raw: bytes, type_id: int, name: str) -> CodecReader:
    reader = CodecReader(raw)
    reader.version()
    reader.type_id(type_id, name)
    return reader


def _read_validation_id(reader: CodecReader) -> ValidationID:
    return ValidationID(reader.take(ID_BYTES, "validation id"))


def _encode_validation_id(validation_id: ValidationID) -> bytes:
    return require_length(validation_id, ID_BYTES, "validation id")


def _read_owner(reader: CodecReader, name: str) -> PChainOwner:
    threshold = reader.u32(f"threshold of {name}")
    count = reader.u32(f"address count of {name}")
    raw = reader.take(count * _ADDRESS_BYTES, f"addresses of {name}")
    starts = range(0, len(raw), _ADDRESS_BYTES)
    return PChainOwner(threshold, tuple(raw[start : start + _ADDRESS_BYTES] for start in starts))


def _encode_owner(owner: PChainOwner) -> bytes:
    addresses = (require_length(address, _ADDRESS_BYTES, "address") for address in owner.addresses)
    return pack_u32(owner.threshold) + pack_u32(len(owner.addresses)) + b"".join(addresses)


def _encode_conversion_validator(validator: ConversionValidator) -> bytes:
    public_key = require_length(validator.public_key, _KEY_BYTES, "public key")
    return pack_sized(validator.node_id) + public_key + pack_u64(validator.weight)
