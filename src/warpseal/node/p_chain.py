"""Values of the P-Chain, and strict decoders of the JSON in which nodes return them.

Source of truth: avalanchego `vms/platformvm/service.go` and `vms/platformvm/api`; the obsolete
shapes of its service.md are accepted. Every decoder raises ValueError for JSON of another shape.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from typing import Final

import msgspec
from msgspec import Struct

from warpseal.ledger.params import L1FeeConfig
from warpseal.upstream.json_values import (
    NUMBER,
    block_height,
    date_s,
    decode_checked_hex,
    decode_hex,
    field_decoder,
    list_decoder,
    u32,
    u64,
    unix_s,
)
from warpseal.upstream.replies import Difference
from warpseal.warp.ids import EMPTY_NODE_ID, ChainID, NodeID, SubnetID, parse_id, parse_node_id
from warpseal.warp.validator_set import PUBLIC_KEY_BYTES, ValidatorEntry

P_CHAIN_PATHS: Final = ("/ext/P", "/ext/bc/P")
"""The reference aggregator uses the first path, so that every gateway for it has that path."""
_EMPTY_ID: Final = bytes(32)
_IDS_BETWEEN_YIELDS: Final = 256


class CurrentValidation(Struct, frozen=True):
    """One current validation.

    A node may have several: a permissioned validation may outlive the conversion to an L1.

    validation_id: 32 bytes; the id of the transaction that added it, if it is permissioned.
    balance: nAVAX left to an L1 validator, 0 if it is inactive; None for a permissioned validation,
        which pays no fee.
    end_unix_s: end of a stake; None for an L1 validator, and for a stake that renews itself.
    delegated: weight that delegators add to `weight`.
    """

    validation_id: bytes
    node_id: NodeID
    weight: int
    start_unix_s: int
    balance: int | None = None
    end_unix_s: int | None = None
    delegated: int = 0

    @property
    def is_l1(self) -> bool:
        """Whether it is a validation of an L1."""
        return self.balance is not None

    @property
    def is_active(self) -> bool:
        """Whether it counts now: an L1 validator pays for that with its balance."""
        return self.balance is None or self.balance > 0


class Subnet(Struct, frozen=True):
    """The P-Chain's record of a subnet.

    All fields but subnet_id are empty until it is converted to an L1.
    """

    subnet_id: SubnetID
    conversion_id: bytes | None = None
    manager_chain_id: ChainID | None = None
    manager_address: bytes = b""

    @property
    def is_l1(self) -> bool:
        """Whether the subnet was converted; nothing undoes that."""
        return self.conversion_id is not None


class L1FeeState(Struct, frozen=True):
    """The fee of active L1 validators after a block.

    price: nAVAX a second.
    time_s: time of the block, Unix seconds below 2**32.
    """

    excess: int
    price: int
    time_s: int


class TxStatus(StrEnum):
    """The status of a transaction. Only the first two are final."""

    COMMITTED = "Committed"
    ABORTED = "Aborted"
    PROCESSING = "Processing"
    DROPPED = "Dropped"
    UNKNOWN = "Unknown"


class FoundTransaction(Struct, frozen=True):
    """A transaction from one node.

    raw: signed bytes, the hash of which is the id.
    height: tip of the node right after the reply, so that a committed transaction is not above.
    """

    raw: bytes
    status: TxStatus
    height: int


class L1ValidatorState(Struct, frozen=True):
    """An existing validation.

    min_nonce: lowest nonce of the next change.
    balance: nAVAX; 0 if the validator is inactive.
    """

    subnet_id: SubnetID
    weight: int
    min_nonce: int
    balance: int


class ValidationAt(Struct, frozen=True):
    """A validation from one node.

    state: None if the node lacks the validation at `height` or later.
    """

    height: int
    state: L1ValidatorState | None


class _Member(msgspec.Struct):
    weight: int | str
    public_key: str | None = msgspec.field(name="publicKey", default=None)


class _WarpMember(msgspec.Struct):
    public_key: str = msgspec.field(name="publicKey")
    weight: int | str
    node_ids: list[str] = msgspec.field(name="nodeIDs")


class _WarpSet(msgspec.Struct):
    total_weight: int | str = msgspec.field(name="totalWeight")
    validators: list[_WarpMember] | None = None


class _Subnet(msgspec.Struct):
    conversion_id: str | None = msgspec.field(name="conversionID", default=None)
    manager_chain_id: str | None = msgspec.field(name="managerChainID", default=None)
    manager_address: str | None = msgspec.field(name="managerAddress", default=None)


class _Current(msgspec.Struct):
    node_id: str = msgspec.field(name="nodeID")
    weight: int | str
    start_time: int | str = msgspec.field(name="startTime")
    tx_id: str | None = msgspec.field(name="txID", default=None)
    validation_id: str | None = msgspec.field(name="validationID", default=None)
    balance: int | str | None = None
    end_time: int | str | None = msgspec.field(name="endTime", default=None)
    next_period: int | str | None = msgspec.field(name="nextPeriod", default=None)
    delegator_weight: int | str | None = msgspec.field(name="delegatorWeight", default=None)


class _FeeConfig(msgspec.Struct, rename="camel"):
    capacity: int | str
    target: int | str
    min_price: int | str
    excess_conversion_constant: int | str


class _FeeState(msgspec.Struct):
    excess: int | str
    price: int | str
    timestamp: datetime


class _SubnetListed(msgspec.Struct):
    id: str


class _L1Validator(msgspec.Struct):
    subnet_id: str = msgspec.field(name="subnetID")
    weight: int | str
    min_nonce: int | str = msgspec.field(name="minNonce")
    balance: int | str
    height: int | str


_MEMBERS: Final = msgspec.json.Decoder(dict[str, _Member])
_DECODE_WRAPPED_MEMBERS: Final = field_decoder("validators", dict[str, _Member], dict)
_SUBNET: Final = msgspec.json.Decoder(_Subnet)
_L1_VALIDATOR: Final = msgspec.json.Decoder(_L1Validator)


def decode_validators_at(result: bytes) -> tuple[ValidatorEntry, ...]:
    try:
        members = _MEMBERS.decode(result)
    except msgspec.ValidationError:
        members = _DECODE_WRAPPED_MEMBERS(result)
    entries = tuple(
        ValidatorEntry(parse_node_id(node_id), _public_key(member.public_key), u64(member.weight))
        for node_id, member in members.items()
    )
    # No set has a larger total, so that another node is asked.
    u64(sum(entry.weight for entry in entries))
    return entries


def _unmerged(warp_set: _WarpSet) -> list[ValidatorEntry]:
    entries: list[ValidatorEntry] = []
    keyless = u64(warp_set.total_weight)
    for member in warp_set.validators or ():
        weight = u64(member.weight)
        keyless -= weight
        # Nodes list the ids in any order. The first one carries the weight of the key.
        for node_id in sorted(map(parse_node_id, member.node_ids)):
            entries.append(ValidatorEntry(node_id, _public_key(member.public_key), weight))
            weight = 0
    if keyless < 0:
        raise ValueError("the validators weigh more than the total")
    if keyless:
        entries.append(ValidatorEntry(EMPTY_NODE_ID, None, keyless))
    return entries


def decode_subnet(subnet_id: SubnetID, result: bytes) -> Subnet:
    record = _SUBNET.decode(result)
    conversion_id = parse_id(record.conversion_id) if record.conversion_id else _EMPTY_ID
    if conversion_id == _EMPTY_ID:
        return Subnet(subnet_id)
    manager_chain_id = ChainID(parse_id(record.manager_chain_id or ""))
    manager_address = decode_hex(record.manager_address or "0x")
    return Subnet(subnet_id, conversion_id, manager_chain_id, manager_address)


def decode_tx(tx_id: bytes, result: bytes) -> bytes:
    """Return the signed bytes of this transaction; those of another are a ValueError."""
    raw = _decode_tx(result)
    if sha256(raw).digest() != tx_id:
        raise ValueError("the transaction has another id")
    return raw


def decode_l1_validator(result: bytes) -> ValidationAt:
    record = _L1_VALIDATOR.decode(result)
    state = L1ValidatorState(
        SubnetID(parse_id(record.subnet_id)),
        u64(record.weight),
        u64(record.min_nonce),
        u64(record.balance),
    )
    return ValidationAt(block_height(record.height), state)


def _current_validation(entry: _Current) -> CurrentValidation:
    """Return one entry; a validation id marks a validator of an L1.

    An L1 may have permissioned validators as well.
    """
    is_l1 = entry.validation_id is not None
    name = entry.validation_id if is_l1 else entry.tx_id
    if name is None:
        raise ValueError("a validator has neither a validation id nor a transaction")
    balance = u64(entry.balance or 0) if is_l1 else None
    end_unix_s = None
    if not is_l1 and entry.end_time is not None:
        renews_itself = u64(entry.next_period or 0) > 0
        end_unix_s = None if renews_itself else unix_s(entry.end_time)
    return CurrentValidation(
        validation_id=parse_id(name),
        node_id=parse_node_id(entry.node_id),
        weight=u64(entry.weight),
        start_unix_s=unix_s(entry.start_time),
        balance=balance,
        end_unix_s=end_unix_s,
        delegated=u64(entry.delegator_weight or 0),
    )


def _parse_current(listed: list[_Current] | None) -> tuple[CurrentValidation, ...]:
    validations = tuple(map(_current_validation, listed or ()))
    if len({validation.validation_id for validation in validations}) < len(validations):
        raise ValueError("a validation is listed twice, so that its weight would count twice")
    return validations


def decode_fee_config(result: bytes) -> L1FeeConfig:
    fields = msgspec.json.decode(result, type=_FeeConfig)
    config = L1FeeConfig(
        u64(fields.target),
        u64(fields.min_price),
        u64(fields.excess_conversion_constant),
        u64(fields.capacity),
    )
    if not config.excess_conversion:
        raise ValueError("the price cannot follow an excess that is divided by 0")
    return config


def decode_fee_state(result: bytes) -> L1FeeState:
    fields = msgspec.json.decode(result, type=_FeeState)
    return L1FeeState(u64(fields.excess), u64(fields.price), u32(date_s(fields.timestamp)))


def _public_key(text: str | None) -> bytes | None:
    if text is None:
        return None
    raw = decode_hex(text)
    if len(raw) != PUBLIC_KEY_BYTES:
        raise ValueError(f"a public key has {PUBLIC_KEY_BYTES} bytes, not {len(raw)}")
    return raw


def _parse_sets(sets: dict[str, _WarpSet]) -> dict[SubnetID, tuple[ValidatorEntry, ...]]:
    return {
        SubnetID(parse_id(subnet_id)): tuple(_unmerged(warp_set))
        for subnet_id, warp_set in sets.items()
    }


def _parse_subnet_ids(listed: list[_SubnetListed] | None) -> tuple[SubnetID, ...]:
    """Return the ids of all subnets; meant for a worker thread."""
    ids: list[SubnetID] = []
    for count, subnet in enumerate(listed or ()):
        ids.append(SubnetID(parse_id(subnet.id)))
        if count % _IDS_BETWEEN_YIELDS == 0:
            # Gives the event loop the interpreter lock.
            time.sleep(0)
    return tuple(ids)


decode_height: Final = field_decoder("height", NUMBER, block_height)
decode_timestamp: Final = field_decoder("timestamp", datetime, date_s)
decode_all_sets: Final = field_decoder("validatorSets", dict[str, _WarpSet], _parse_sets)
decode_validated_by: Final = field_decoder("subnetID", str, lambda text: SubnetID(parse_id(text)))
decode_validates: Final = list_decoder("blockchainIDs", str, lambda text: ChainID(parse_id(text)))
decode_current_validations: Final = field_decoder(
    "validators", list[_Current] | None, _parse_current, default=None
)
decode_tx_status: Final = field_decoder("status", str, TxStatus)
decode_subnets: Final = field_decoder(
    "subnets", list[_SubnetListed] | None, _parse_subnet_ids, default=None
)
_decode_tx: Final = field_decoder("tx", str, decode_checked_hex)


def compare_subnets(first: Subnet, second: Subnet) -> Difference:
    """Compare two records of a subnet: it is converted once, for ever."""
    if first == second:
        return Difference.NONE
    return Difference.CONFLICT if first.is_l1 and second.is_l1 else Difference.HEIGHT


def compare_validations(
    first: Iterable[CurrentValidation], second: Iterable[CurrentValidation]
) -> Difference:
    """Compare the current validations of a subnet, in any order."""
    before = {validation.validation_id: validation for validation in first}
    after = {validation.validation_id: validation for validation in second}
    if before == after:
        return Difference.NONE
    pairs = [(before[name], after[name]) for name in before.keys() & after.keys()]
    # The node and the kind of a validation never change.
    is_conflict = any((old.node_id, old.is_l1) != (new.node_id, new.is_l1) for old, new in pairs)
    return Difference.CONFLICT if is_conflict else Difference.HEIGHT


def compare_l1_validations(first: ValidationAt, second: ValidationAt) -> Difference:
    """Compare two states of an L1 validation, which stays with its L1."""
    before, after = first.state, second.state
    if before == after:
        return Difference.NONE
    is_other_l1 = before is not None and after is not None and before.subnet_id != after.subnet_id
    return Difference.CONFLICT if is_other_l1 else Difference.HEIGHT
