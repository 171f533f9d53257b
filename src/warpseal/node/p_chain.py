"""What a node tells of the P-Chain, as values, and how its JSON is read: exactly, taking nothing on trust.

Source of truth: avalanchego `vms/platformvm/service.go` and `vms/platformvm/api`; the obsolete shapes of its
service.md are taken too. Every decoder raises ValueError for JSON of another shape.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Final, NamedTuple

import msgspec

from warpseal.node.numbers import u64
from warpseal.warp.ids import EMPTY_NODE_ID, ChainID, NodeID, SubnetID, parse_id, parse_node_id

PUBLIC_KEY_BYTES: Final = 48
_EMPTY_ID: Final = bytes(32)
_CHECKSUM_BYTES: Final = 4
_IDS_BETWEEN_YIELDS: Final = 256


class ValidatorEntry(NamedTuple):
    """One member of a subnet's set. public_key: 48 bytes, compressed, or None for weight that cannot sign."""

    node_id: NodeID
    public_key: bytes | None
    weight: int


@dataclass(frozen=True, slots=True)
class CurrentValidator:
    """One validator of a subnet now. balance: nAVAX left, 0 when inactive; None where it is not of an L1."""

    node_id: NodeID
    public_key: bytes | None
    weight: int
    balance: int | None


@dataclass(frozen=True, slots=True)
class Subnet:
    """What the P-Chain records of a subnet. All but subnet_id are empty until it is converted to an L1."""

    subnet_id: SubnetID
    conversion_id: bytes | None = None
    manager_chain_id: ChainID | None = None
    manager_address: bytes = b""

    @property
    def is_l1(self) -> bool:
        """Whether the subnet was converted; nothing undoes that."""
        return self.conversion_id is not None


class TxStatus(StrEnum):
    """What became of a transaction. Only the first two are final."""

    COMMITTED = "Committed"
    ABORTED = "Aborted"
    PROCESSING = "Processing"
    DROPPED = "Dropped"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class FoundTransaction:
    """A transaction as one node has it. raw: signed, its hash is its id.

    height: that node's tip right after, so that a committed transaction is at or below it.
    """

    raw: bytes
    status: TxStatus
    height: int


@dataclass(frozen=True, slots=True)
class L1ValidatorState:
    """A validation that exists. min_nonce: the least nonce of a next change. balance: nAVAX, 0 when inactive."""

    subnet_id: SubnetID
    weight: int
    min_nonce: int
    balance: int


@dataclass(frozen=True, slots=True)
class ValidationAt:
    """What one node says of a validation: None where there is none in its state at `height` or later."""

    height: int
    state: L1ValidatorState | None


class _Height(msgspec.Struct):
    height: int | str


class _Member(msgspec.Struct):
    weight: int | str
    public_key: str | None = msgspec.field(name="publicKey", default=None)


class _WrappedMembers(msgspec.Struct):
    validators: dict[str, _Member]


class _WarpMember(msgspec.Struct):
    public_key: str = msgspec.field(name="publicKey")
    weight: int | str
    node_ids: list[str] = msgspec.field(name="nodeIDs")


class _WarpSet(msgspec.Struct):
    total_weight: int | str = msgspec.field(name="totalWeight")
    validators: list[_WarpMember] | None = None


class _WarpSets(msgspec.Struct):
    validator_sets: dict[str, _WarpSet] = msgspec.field(name="validatorSets")


class _ValidatedBy(msgspec.Struct):
    subnet_id: str = msgspec.field(name="subnetID")


class _Validates(msgspec.Struct):
    blockchain_ids: list[str] | None = msgspec.field(name="blockchainIDs", default=None)


class _Subnet(msgspec.Struct):
    conversion_id: str | None = msgspec.field(name="conversionID", default=None)
    manager_chain_id: str | None = msgspec.field(name="managerChainID", default=None)
    manager_address: str | None = msgspec.field(name="managerAddress", default=None)


class _Signer(msgspec.Struct):
    public_key: str = msgspec.field(name="publicKey")


class _Current(msgspec.Struct):
    node_id: str = msgspec.field(name="nodeID")
    weight: int | str
    validation_id: str | None = msgspec.field(name="validationID", default=None)
    public_key: str | None = msgspec.field(name="publicKey", default=None)
    signer: _Signer | None = None
    balance: int | str | None = None


class _CurrentValidators(msgspec.Struct):
    validators: list[_Current] | None = None


class _Tx(msgspec.Struct):
    tx: str


class _TxStatus(msgspec.Struct):
    status: str


class _L1Validator(msgspec.Struct):
    subnet_id: str = msgspec.field(name="subnetID")
    weight: int | str
    min_nonce: int | str = msgspec.field(name="minNonce")
    balance: int | str
    height: int | str


class _SubnetListed(msgspec.Struct):
    id: str


class _Subnets(msgspec.Struct):
    subnets: list[_SubnetListed] | None = None


_MEMBERS = msgspec.json.Decoder(dict[str, _Member])
_WRAPPED_MEMBERS = msgspec.json.Decoder(_WrappedMembers)
_WARP_SETS = msgspec.json.Decoder(_WarpSets)


def decode_height(result: bytes) -> int:
    return u64(msgspec.json.decode(result, type=_Height).height)


def decode_validators_at(result: bytes) -> tuple[ValidatorEntry, ...]:
    try:
        members = _MEMBERS.decode(result)
    except msgspec.ValidationError:
        members = _WRAPPED_MEMBERS.decode(result).validators
    return tuple(
        ValidatorEntry(parse_node_id(node_id), _public_key(member.public_key), u64(member.weight))
        for node_id, member in members.items()
    )


def decode_all_sets(result: bytes) -> dict[SubnetID, tuple[ValidatorEntry, ...]]:
    sets = _WARP_SETS.decode(result).validator_sets
    return {SubnetID(parse_id(subnet_id)): tuple(_unmerged(one)) for subnet_id, one in sets.items()}


def _unmerged(warp_set: _WarpSet) -> list[ValidatorEntry]:
    entries: list[ValidatorEntry] = []
    keyless = u64(warp_set.total_weight)
    for member in warp_set.validators or ():
        weight = u64(member.weight)
        keyless -= weight
        for position, node_id in enumerate(member.node_ids):
            key = _public_key(member.public_key)
            entries.append(ValidatorEntry(parse_node_id(node_id), key, 0 if position else weight))
    if keyless < 0:
        raise ValueError("the validators weigh more than the total")
    if keyless:
        entries.append(ValidatorEntry(EMPTY_NODE_ID, None, keyless))
    return entries


def decode_validated_by(result: bytes) -> SubnetID:
    return SubnetID(parse_id(msgspec.json.decode(result, type=_ValidatedBy).subnet_id))


def decode_validates(result: bytes) -> tuple[ChainID, ...]:
    listed = msgspec.json.decode(result, type=_Validates).blockchain_ids or []
    return tuple(ChainID(parse_id(text)) for text in listed)


def decode_subnet(subnet_id: SubnetID, result: bytes) -> Subnet:
    told = msgspec.json.decode(result, type=_Subnet)
    conversion_id = parse_id(told.conversion_id) if told.conversion_id else _EMPTY_ID
    if conversion_id == _EMPTY_ID:
        return Subnet(subnet_id)
    manager_chain_id = ChainID(parse_id(told.manager_chain_id or ""))
    return Subnet(subnet_id, conversion_id, manager_chain_id, _hex_bytes(told.manager_address or "0x"))


def decode_current_validators(result: bytes) -> tuple[CurrentValidator, ...]:
    listed = msgspec.json.decode(result, type=_CurrentValidators).validators or []
    return tuple(_current_validator(one) for one in listed)


def decode_tx(tx_id: bytes, result: bytes) -> bytes:
    """Return the signed bytes of the transaction that was asked for; those of another are a ValueError."""
    raw = checked_hex(msgspec.json.decode(result, type=_Tx).tx)
    if sha256(raw).digest() != tx_id:
        raise ValueError("the transaction has another id")
    return raw


def decode_tx_status(result: bytes) -> TxStatus:
    return TxStatus(msgspec.json.decode(result, type=_TxStatus).status)


def decode_l1_validator(result: bytes) -> ValidationAt:
    told = msgspec.json.decode(result, type=_L1Validator)
    state = L1ValidatorState(
        SubnetID(parse_id(told.subnet_id)), u64(told.weight), u64(told.min_nonce), u64(told.balance)
    )
    return ValidationAt(u64(told.height), state)


def decode_subnets(result: bytes) -> tuple[SubnetID, ...]:
    """Return the ids of all subnets; meant for a worker thread."""
    ids: list[SubnetID] = []
    for count, listed in enumerate(msgspec.json.decode(result, type=_Subnets).subnets or ()):
        ids.append(SubnetID(parse_id(listed.id)))
        if count % _IDS_BETWEEN_YIELDS == 0:
            # Lets the event loop have the interpreter lock.
            time.sleep(0)
    return tuple(ids)


def checked_hex(text: str) -> bytes:
    """Return the bytes of a node's `hex` encoding, which ends with four bytes of their SHA-256."""
    raw = _hex_bytes(text)
    body, checksum = raw[:-_CHECKSUM_BYTES], raw[-_CHECKSUM_BYTES:]
    if len(checksum) != _CHECKSUM_BYTES or sha256(body).digest()[-_CHECKSUM_BYTES:] != checksum:
        raise ValueError("hex with a wrong checksum")
    return body


def _current_validator(told: _Current) -> CurrentValidator:
    """Return one entry; a validation id marks those of an L1, beside which legacy ones may stand."""
    key = told.public_key if told.signer is None else told.signer.public_key
    balance = None if told.validation_id is None else u64(told.balance or 0)
    return CurrentValidator(parse_node_id(told.node_id), _public_key(key), u64(told.weight), balance)


def _public_key(text: str | None) -> bytes | None:
    if text is None:
        return None
    raw = _hex_bytes(text)
    if len(raw) != PUBLIC_KEY_BYTES:
        raise ValueError(f"a public key has {PUBLIC_KEY_BYTES} bytes, not {len(raw)}")
    return raw


def _hex_bytes(text: str) -> bytes:
    if text[:2] != "0x":
        raise ValueError("hex starts with 0x")
    raw = bytes.fromhex(text[2:])
    if len(text) != 2 + 2 * len(raw):
        raise ValueError("hex holds white space")
    return raw
