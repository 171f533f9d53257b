"""Whether a transaction's message is still valid: validators sign their current state, not their history.

Source of truth: avalanchego `vms/platformvm/network/warp.go`. A node below the transaction's height proves nothing.
A superseded message never becomes valid again: nonces only grow, and a removed validation stays removed.
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
    """The message is valid at a node of this height; None: forever."""

    height: int | None


@dataclass(frozen=True, slots=True)
class Superseded:
    """The message is not valid any more.

    now: the current state, JSON-ready; message: the message that states it; by: the transaction that changed it;
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
        """Whether the validation was removed."""
        return "registered" in self.now

    def as_json(self) -> dict[str, Any]:
        """Return the detail of the response or error."""
        body: dict[str, Any] = {"now": dict(self.now)}
        if self.by is not None:
            body["byTxHash"] = id_text(self.by)
        if self.height is not None:
            body["pChainHeight"] = str(self.height)
        if self.message is not None:
            body["message"] = "0x" + self.message.raw.hex()
        if self.justification is not None:
            body["justification"] = "0x" + self.justification.hex()
        return body


@dataclass(frozen=True, slots=True)
class Unknown:
    """No node or index could prove either."""

    reason: str


Validity: TypeAlias = Valid | Superseded | Unknown


def check_validity(attestation: Attestation, response: ValidationAt) -> Validity:
    """Return the validity by the response of a node that is not below the transaction's height."""
    state = response.state
    match attestation.payload:
        case SubnetToL1Conversion():
            return Valid(None)
        case L1ValidatorRegistration(registered=False):
            # The removal was accepted, so a node that still has the validation is wrong.
            return Valid(response.height) if state is None else Unknown("a node still has the validation")
        case L1ValidatorRegistration():
            return Valid(response.height) if state is not None else _removed(attestation, response.height)
        case L1ValidatorWeight(nonce=nonce, weight=weight):
            if state is None:
                return _removed(attestation, response.height)
            if state.min_nonce == nonce + 1 and state.weight == weight:
                return Valid(response.height)
            if state.min_nonce > nonce + 1:
                return _changed(attestation, state.min_nonce - 1, state.weight, height=response.height)
            return Unknown("a node does not know of the change, though it should")


def find_supersession(attestation: Attestation, changes: Iterable[L1Transaction]) -> Superseded | None:
    """Return what accepted transactions about the validation, newest first, prove; None: nothing.

    Nonces only grow, so a change with a larger nonce came later, whatever its height.
    """
    if attestation.needs_origin:
        return None
    nonce = attestation.payload.nonce if isinstance(attestation.payload, L1ValidatorWeight) else -1
    for row in changes:
        change = _change(row)
        if change is None or change.validation_id != attestation.validation_id:
            continue
        if change.weight == 0 and change.nonce > nonce:
            return _removed(attestation, row.height, row.tx_id)
        if nonce >= 0 and change.nonce > nonce:
            return _changed(attestation, change.nonce, change.weight, height=row.height, by=row.tx_id)
    return None


def _change(row: L1Transaction) -> L1ValidatorWeight | None:
    if row.kind != _CHANGE_KIND:
        return None
    try:
        unsigned = parse_p_tx(row.raw).unsigned
        return unsigned.change() if isinstance(unsigned, SetL1ValidatorWeightTx) else None
    except MalformedMessage:
        return None


def _removed(attestation: Attestation, height: int, by: bytes | None = None) -> Superseded:
    message = removal_message(attestation.message.network_id, _validation(attestation))
    return Superseded({"registered": False}, message, by, height, refusal=_NO_VALIDATION)


def _changed(attestation: Attestation, nonce: int, weight: int, *, height: int, by: bytes | None = None) -> Superseded:
    now = {"nonce": str(nonce), "weight": str(weight)}
    payload = L1ValidatorWeight(_validation(attestation), nonce, weight)
    message = weight_message(attestation.message.network_id, payload)
    return Superseded(now, message, by, height, refusal=_OTHER_NONCE)


def _validation(attestation: Attestation) -> ValidationID:
    if attestation.validation_id is None:
        raise AssertionError("a conversion is never superseded")
    return attestation.validation_id
