"""The weight that a quorum lacks: the missing validators, the reasons, and whether waiting helps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """Whether waiting helps."""

    WAIT = "wait"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class MissingConnection:
    """A node that is not connected. Times are Unix seconds.

    address: the last one that was dialed, else the first one known, else empty. last_error: of the last dial or
    connection, empty before the first. since: start of the disconnection. next_try_at: None if no dial is planned.
    """

    node_id: str
    address: str
    last_error: str
    since: float
    next_try_at: float | None

    def as_json(self) -> dict[str, Any]:
        content: dict[str, Any] = {"nodeId": self.node_id}
        if self.address:
            content["address"] = self.address
        if self.last_error:
            content["lastError"] = self.last_error
        content["disconnectedSince"] = _rfc3339(self.since)
        if self.next_try_at is not None:
            content["nextTryAt"] = _rfc3339(self.next_try_at)
        return content


@dataclass(frozen=True, slots=True)
class MissingValidator:
    """One member of the canonical set whose signature is missing, and why.

    public_key: 48 bytes, or None for weight without a key. error_code and error_message: the last refusal.
    connections: of the nodes that are not connected, if none of them is. validation_id, balance (nAVAX), state: of an
    L1 validator without enough balance.
    """

    node_ids: tuple[str, ...]
    public_key: bytes | None
    weight: int
    reason: str
    error_code: int | None = None
    error_message: str | None = None
    connections: tuple[MissingConnection, ...] = ()
    validation_id: str | None = None
    balance: int | None = None
    state: str | None = None

    def as_json(self) -> dict[str, Any]:
        content: dict[str, Any] = {"nodeIds": list(self.node_ids), "weight": str(self.weight), "reason": self.reason}
        if self.public_key is not None:
            content["publicKey"] = "0x" + self.public_key.hex()
        if self.error_code is not None:
            content["errorCode"] = self.error_code
        if self.error_message:
            content["errorMessage"] = self.error_message
        if self.balance is not None:
            content |= {"validationId": self.validation_id, "balance": str(self.balance), "state": self.state}
        if self.connections:
            content["connections"] = [connection.as_json() for connection in self.connections]
        return content


@dataclass(frozen=True, slots=True)
class QuorumShortfall:
    """The weight that a quorum lacks. counts: validators by reason; missing: heaviest first, at most 50.

    refused_weight: of all validators that refused the message with an error code. failed_keys: of all validators that
    cannot be reached, did not answer or did not sign; those that were not asked are not among them.
    """

    verdict: Verdict
    signed_weight: int
    required_weight: int
    total_weight: int
    height: int
    signing_subnet_id: str
    counts: Mapping[str, int]
    missing: tuple[MissingValidator, ...]
    retry_after_s: float | None = None
    hints: tuple[str, ...] = ()
    refused_weight: int = 0
    failed_keys: frozenset[bytes] = frozenset()

    def as_json(self) -> dict[str, Any]:
        content: dict[str, Any] = {
            "verdict": self.verdict.value,
            "signedWeight": str(self.signed_weight),
            "requiredWeight": str(self.required_weight),
            "totalWeight": str(self.total_weight),
            "pChainHeight": str(self.height),
            "signingSubnetId": self.signing_subnet_id,
            "counts": dict(self.counts),
            "validators": [validator.as_json() for validator in self.missing],
        }
        if self.hints:
            content["hints"] = list(self.hints)
        return content


def _rfc3339(unix_s: float) -> str:
    return datetime.fromtimestamp(int(unix_s), UTC).isoformat().replace("+00:00", "Z")
