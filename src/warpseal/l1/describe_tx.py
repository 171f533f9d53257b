"""What a P-Chain transaction says to L1s, as JSON: what asked for it, and the message that follows from it."""

from __future__ import annotations

from typing import Any

from warpseal.chains.components import BaseFields
from warpseal.chains.p_txs import PSignedTx, RegisterL1ValidatorTx, SetL1ValidatorWeightTx, parse_p_tx
from warpseal.errors import NoMessage, UndecodableTransaction
from warpseal.l1.attestation import Derived, derive
from warpseal.l1.describe import both, describe, hex_text
from warpseal.warp.message import MalformedMessage, SignedMessage


def describe_transaction(raw: bytes) -> dict[str, Any]:
    """Return what the signed bytes of a P-Chain transaction say. Raises MalformedMessage where they are none."""
    tx = parse_p_tx(raw)
    shown: dict[str, Any] = {"type": "P-Chain transaction", "transactionId": both(tx.id), "transactionType": tx.kind}
    asked_by = carried_message(tx)
    if asked_by is not None:
        shown["askedForBy"] = describe(asked_by.encode())
    try:
        return shown | _derived(derive(tx, _network_of(tx)))
    except (NoMessage, UndecodableTransaction) as error:
        return shown | {"message": None, "reason": str(error)}


def carried_message(tx: PSignedTx) -> SignedMessage | None:
    """Return the signed message that a transaction brought to the P-Chain, if it is of such a type."""
    if not isinstance(tx.unsigned, RegisterL1ValidatorTx | SetL1ValidatorWeightTx):
        return None
    try:
        return tx.unsigned.signed_message()
    except MalformedMessage:
        return None


def _network_of(tx: PSignedTx) -> int:
    """Return the network of a transaction; 0 of the two types that name none, and have no message either."""
    base = getattr(tx.unsigned, "base", None)
    return base.network_id if isinstance(base, BaseFields) else 0


def _derived(derived: Derived) -> dict[str, Any]:
    return {
        "managerBlockchainId": both(derived.manager_chain_id),
        "managerAddress": hex_text(derived.manager_address),
        "justification": _justification(derived),
        "message": describe(derived.message.raw),
    }


def _justification(derived: Derived) -> str:
    if derived.justification is None:
        return "needed: the proof of where the validation began"
    return hex_text(derived.justification) if derived.justification else "none is needed"
