"""The weight that a quorum lacks: missing validators, reasons, and whether waiting helps."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace


class Verdict(StrEnum):
    """Whether waiting helps."""

    WAIT = "wait"
    NEVER = "never"


class DisconnectedNode(Struct, frozen=True, gc=False, kw_only=True, rename="camel"):
    """A node that is not connected. Times are RFC 3339 in UTC.

    address: address of the node; only callers on the daemon's machine get it.
    last_error: error of the last dial or connection.
    next_try_at: left out if no dial is planned.
    """

    node_id: str
    address: str | UnsetType = UNSET
    last_error: str | UnsetType = UNSET
    disconnected_since: str
    next_try_at: str | UnsetType = UNSET


class MissingSigner(Struct, frozen=True, gc=False, kw_only=True, rename="camel"):
    """A validator whose signature is missing, and why.

    verdict: "wait" if this validator may still sign, else "never"; only in the shortfall of a
        round.
    error_code: error code of its last refusal.
    error_message: error text of its last refusal.
    validation_id: validation of an L1 validator without enough balance.
    balance: balance of that validation, nAVAX.
    state: state of that validation.
    connections: connections of its nodes, if none of them is connected.
    """

    node_ids: tuple[str, ...]
    weight: str
    reason: str
    verdict: Verdict | UnsetType = UNSET
    public_key: str | UnsetType = UNSET
    error_code: int | UnsetType = UNSET
    error_message: str | UnsetType = UNSET
    validation_id: str | UnsetType = UNSET
    balance: str | UnsetType = UNSET
    state: str | UnsetType = UNSET
    connections: tuple[DisconnectedNode, ...] | UnsetType = UNSET


class QuorumShortfall(Struct, frozen=True):
    """The weight that a quorum lacks.

    counts: numbers of validators by reason, the greatest first, `not_asked` last.
    missing: up to 50 validators, the heaviest first, those that were not asked last.
    cause: reason that costs most weight, with advice, in words; empty if none is known.
    refused_weight: weight of all validators that refused the message with an error code.
    failed_keys: keys of all validators that cannot be reached, did not answer or did not sign;
        those that were not asked are not among them.
    """

    verdict: Verdict
    signed_weight: int
    required_weight: int
    total_weight: int
    height: int
    signing_subnet_id: str
    counts: Mapping[str, int]
    missing: tuple[MissingSigner, ...]
    retry_after_s: float | None = None
    hints: tuple[str, ...] = ()
    cause: str = ""
    refused_weight: int = 0
    failed_keys: frozenset[bytes] = frozenset()

    def advised(self, hint: str) -> QuorumShortfall:
        """Return the same shortfall with advice that matters more than that which it has."""
        return replace(self, hints=(hint, *self.hints), cause=hint)

    def detail(self) -> dict[str, Any]:
        """Return the detail of the error."""
        return {
            "verdict": self.verdict,
            "signed_weight": str(self.signed_weight),
            "required_weight": str(self.required_weight),
            "total_weight": str(self.total_weight),
            "p_chain_height": str(self.height),
            "signing_subnet_id": self.signing_subnet_id,
            "counts": self.counts,
            "validators": self.missing,
            "hints": self.hints or UNSET,
        }
