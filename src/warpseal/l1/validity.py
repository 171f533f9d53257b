"""Whether a transaction's message is true now: what validators sign is their state, not their history.

Source of truth: avalanchego `vms/platformvm/network/warp.go`. A node below the transaction's height proves nothing.
What is true no more never becomes true again: nonces only grow, and a removed validation stays removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from warpseal.chains.p_txs import SetL1ValidatorWeightTx, parse_p_tx
from warpseal.l1.attestation import Attestation, removal_message, weight_message
from warpseal.node.p_chain import ValidationAt
from warpseal.store.values import L1Transaction
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import ValidationID, id_text
from warpseal.warp.l1_messages import L1ValidatorRegistration, L1ValidatorWeight, SubnetToL1Conversion
from warpseal.warp.message import UnsignedMessage

_CHANGE_KIND: Final = SetL1ValidatorWeightTx.__name__
_NO_VALIDATION: Final = 11
_OTHER_NONCE: Final = 16


@dataclass(frozen=True, slots=True)
class Valid:
    """It is true, at a node of this height; None: for ever."""

    height: int | None


@dataclass(frozen=True, slots=True)
class Superseded:
    """It is true no more. now: what is, JSON-ready; message: that says so; by: the transaction that made it so.

    refusal: the code with which validators refuse the old message.
    """

    now: Mapping[str, Any]
    message: UnsignedMessage | None
    by: bytes | None = None
    height: int | None = None
    justification: bytes | None = None
    refusal: int = 0

    @property
    def is_removal(self) -> bool:
        """Whether the validation exists no more."""
        return "registered" in self.now

    def as_json(self) -> dict[str, Any]:
        """Return what a caller is told."""
        shown: dict[str, Any] = {"now": dict(self.now)}
        if self.by is not None:
            shown["byTxHash"] = id_text(self.by)
        if self.height is not None:
            shown["pChainHeight"] = str(self.height)
        if self.message is not None:
            shown["message"] = "0x" + self.message.raw.hex()
        if self.justification is not None:
            shown["justification"] = "0x" + self.justification.hex()
        return shown


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nobody who may know was found."""

    why: str


Validity: TypeAlias = Valid | Superseded | Unknown


def check_validity(derived: Attestation, told: ValidationAt) -> Validity:
    """Return what follows from the answer of a node that is not below the transaction's height."""
    state = told.state
    match derived.payload:
        case SubnetToL1Conversion():
            return Valid(None)
        case L1ValidatorRegistration(registered=False):
            # Accepted, and yet the validation is there: such a node is not to be believed.
            return Valid(told.height) if state is None else Unknown("a node still has the validation")
        case L1ValidatorRegistration():
            return Valid(told.height) if state is not None else _removed(derived, told.height)
        case L1ValidatorWeight(nonce=nonce, weight=weight):
            if state is None:
                return _removed(derived, told.height)
            if state.min_nonce == nonce + 1 and state.weight == weight:
                return Valid(told.height)
            if state.min_nonce > nonce + 1:
                return _changed(derived, state.min_nonce - 1, state.weight, height=told.height)
            return Unknown("a node does not know of the change, though it should")


def find_supersession(derived: Attestation, changes: Iterable[L1Transaction]) -> Superseded | None:
    """Return what accepted transactions about the validation, newest first, prove; None: nothing.

    Nonces only grow, so that no height is needed: any change with a larger one came later.
    """
    if derived.needs_origin:
        return None
    nonce = derived.payload.nonce if isinstance(derived.payload, L1ValidatorWeight) else -1
    for row in changes:
        change = _change(row)
        if change is None or change.validation_id != derived.validation_id:
            continue
        if change.weight == 0 and change.nonce > nonce:
            return _removed(derived, row.height, row.tx_id)
        if nonce >= 0 and change.nonce > nonce:
            return _changed(derived, change.nonce, change.weight, height=row.height, by=row.tx_id)
    return None


def _change(row: L1Transaction) -> L1ValidatorWeight | None:
    if row.kind != _CHANGE_KIND:
        return None
    try:
        unsigned = parse_p_tx(row.raw).unsigned
        return unsigned.change() if isinstance(unsigned, SetL1ValidatorWeightTx) else None
    except MalformedMessage:
        return None


def _removed(derived: Attestation, height: int, by: bytes | None = None) -> Superseded:
    message = removal_message(derived.message.network_id, _validation(derived))
    return Superseded({"registered": False}, message, by, height, refusal=_NO_VALIDATION)


def _changed(derived: Attestation, nonce: int, weight: int, *, height: int, by: bytes | None = None) -> Superseded:
    now = {"nonce": str(nonce), "weight": str(weight)}
    payload = L1ValidatorWeight(_validation(derived), nonce, weight)
    message = weight_message(derived.message.network_id, payload)
    return Superseded(now, message, by, height, refusal=_OTHER_NONCE)


def _validation(derived: Attestation) -> ValidationID:
    if derived.validation_id is None:
        raise AssertionError("a conversion is never superseded")
    return derived.validation_id
