"""What one caller of a round wants, and how it stands. Pure; integers only, times of the event loop's clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from warpseal.warp.validator_set import required_weight


class Standing(Enum):
    """How a goal stands. LOST: the quorum cannot be reached; LATE: its deadline has come."""

    WAITING = "waiting"
    READY = "ready"
    LOST = "lost"
    LATE = "late"


@dataclass(slots=True, eq=False)
class Goal:
    """quorum, buffer: percent of `total` weight; deadline: when the caller's patience ends.

    required: weight without which there is no answer. target: weight at which nothing is awaited any more.
    met_at: since when the required weight is there. stored_only: nobody is asked and nothing awaited for it.
    """

    quorum: int
    buffer: int
    deadline: float
    total: int
    required: int = field(init=False)
    target: int = field(init=False)
    met_at: float | None = None
    stored_only: bool = False

    def __post_init__(self) -> None:
        # A message without any signer is no answer, whatever the quorum.
        self.required = max(1, required_weight(self.total, self.quorum))
        self.target = max(self.required, required_weight(self.total, self.quorum + self.buffer))
