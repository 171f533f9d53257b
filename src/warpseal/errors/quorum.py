"""Errors of a missed quorum: the missing validators, the reasons, and whether waiting helps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from warpseal.errors.base import WarpsealError


class Verdict(StrEnum):
    """Whether waiting helps."""

    WAIT = "wait"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class MissingValidator:
    """One member of the canonical set whose signature is missing, and why.

    public_key: 48 bytes, or None for weight without a key. error_code and error_message: the last refusal.
    """

    node_ids: tuple[str, ...]
    public_key: bytes | None
    weight: int
    reason: str
    error_code: int | None = None
    error_message: str | None = None

    def as_json(self) -> dict[str, Any]:
        content: dict[str, Any] = {
            "nodeIds": list(self.node_ids),
            "weight": str(self.weight),
            "reason": self.reason,
        }
        if self.public_key is not None:
            content["publicKey"] = "0x" + self.public_key.hex()
        if self.error_code is not None:
            content["errorCode"] = self.error_code
        if self.error_message:
            content["errorMessage"] = self.error_message
        return content


@dataclass(frozen=True, slots=True)
class QuorumShortfall:
    """What is missing for a quorum. counts: validators by reason; missing: heaviest first, at most 50."""

    verdict: Verdict
    signed_weight: int
    required_weight: int
    total_weight: int
    height: int
    signing_subnet_id: str
    counts: Mapping[str, int]
    missing: tuple[MissingValidator, ...]
    retry_after_s: float | None = None
    hints: tuple[str, ...] = field(default=())

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


class QuorumNotReached(WarpsealError):
    """The quorum was not reached, and waiting may help.

    at_deadline: the caller's time ran out; else it failed at once, because the quorum cannot be reached now.
    """

    code = "quorum_not_reached"

    def __init__(self, shortfall: QuorumShortfall, *, at_deadline: bool) -> None:
        super().__init__(
            f"failed to reach a threshold of stake: {shortfall.signed_weight} of {shortfall.required_weight} "
            f"required weight has signed (total {shortfall.total_weight})"
        )
        self.shortfall = shortfall
        self.at_deadline = at_deadline

    def detail(self) -> Mapping[str, Any]:
        return self.shortfall.as_json()


class QuorumImpossible(WarpsealError):
    """The quorum can never be reached: the weight that is lost for good makes it unreachable."""

    code = "quorum_impossible"

    def __init__(self, shortfall: QuorumShortfall) -> None:
        super().__init__(
            f"this quorum cannot be reached: of total weight {shortfall.total_weight}, "
            f"{shortfall.required_weight} is required, and too much of it is lost for good"
        )
        self.shortfall = shortfall

    def detail(self) -> Mapping[str, Any]:
        return self.shortfall.as_json()
