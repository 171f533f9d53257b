"""What validations a subnet has now, as the P-Chain lists them: those of an L1, and permissioned ones.

Source of truth: avalanchego `vms/platformvm/service.go` (getCurrentValidators).
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from warpseal.node.numbers import u64
from warpseal.warp.ids import NodeID, parse_id, parse_node_id


@dataclass(frozen=True, slots=True)
class CurrentValidation:
    """One validation under way. A node may have several: a permissioned one may outlive the conversion to an L1.

    validation_id: 32 bytes; of a permissioned one the id of the transaction that added it.
    is_active: an L1 validator pays for it with its balance; a permissioned one always is.
    """

    validation_id: bytes
    node_id: NodeID
    weight: int
    start_unix_s: int
    is_l1: bool
    is_active: bool


class _Current(msgspec.Struct):
    node_id: str = msgspec.field(name="nodeID")
    weight: int | str
    start_time: int | str = msgspec.field(name="startTime")
    tx_id: str | None = msgspec.field(name="txID", default=None)
    validation_id: str | None = msgspec.field(name="validationID", default=None)
    balance: int | str | None = None


class _AllCurrent(msgspec.Struct):
    validators: list[_Current] | None = None


def decode_current_validations(result: bytes) -> tuple[CurrentValidation, ...]:
    """Return what getCurrentValidators lists, in its order. Raises ValueError."""
    return tuple(map(_validation, msgspec.json.decode(result, type=_AllCurrent).validators or ()))


def _validation(told: _Current) -> CurrentValidation:
    """Return one entry; a validation id marks those of an L1."""
    is_l1 = told.validation_id is not None
    name = told.validation_id if told.validation_id is not None else told.tx_id
    if name is None:
        raise ValueError("a validator has neither a validation id nor a transaction")
    return CurrentValidation(
        validation_id=parse_id(name),
        node_id=parse_node_id(told.node_id),
        weight=u64(told.weight),
        start_unix_s=u64(told.start_time),
        is_l1=is_l1,
        is_active=not is_l1 or u64(told.balance or 0) > 0,
    )
