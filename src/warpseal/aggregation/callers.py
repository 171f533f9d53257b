"""Who waits for a fan-out, and what becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from warpseal.aggregation.answers import Answer
from warpseal.aggregation.goals import Goal
from warpseal.errors import QuorumShortfall
from warpseal.warp.ids import SubnetID
from warpseal.warp.message import UnsignedMessage
from warpseal.warp.validator_set import CanonicalValidatorSet


@dataclass(frozen=True, slots=True)
class Subject:
    """What a fan-out is about: its callers agree in all of it."""

    message: UnsignedMessage
    justification: bytes
    subnet_id: SubnetID
    members: CanonicalValidatorSet

    @property
    def key(self) -> tuple[bytes, bytes, bytes]:
        """Equal for requests that share one fan-out."""
        return self.message.raw, self.justification, self.members.digest


@dataclass(frozen=True, slots=True)
class Reached:
    """A caller's answer. stages: seconds spent on connecting, collecting, verifying."""

    answer: Answer
    stages: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Missed:
    """Why a caller gets no answer. late: its deadline has come. is_unread: what is kept could not be read."""

    shortfall: QuorumShortfall
    late: bool
    stages: Mapping[str, float]
    is_unread: bool = False


@dataclass(slots=True, eq=False)
class Caller:
    """One who waits: height and hints are the caller's own and go into the explanation of a failure.

    entered_at, connected_at (the required weight was connected), ready_at: times of `clock`, which measures what
    the event loop's clock may be too coarse for.
    """

    goal: Goal
    height: int
    hints: tuple[str, ...]
    clock: Callable[[], float]
    outcome: asyncio.Future[Reached | Missed]
    entered_at: float = field(init=False)
    connected_at: float | None = None
    ready_at: float | None = None

    def __post_init__(self) -> None:
        self.entered_at = self.clock()

    def stages(self) -> dict[str, float]:
        """Return seconds by stage, up to now."""
        now = self.clock()
        connected_at = now if self.connected_at is None else self.connected_at
        ready_at = now if self.ready_at is None else self.ready_at
        return {
            "connect": connected_at - self.entered_at,
            "collect": max(0.0, ready_at - connected_at),
            "verify": now - ready_at,
        }

    def settle(self, outcome: Reached | Missed) -> None:
        """Set the outcome, unless the caller has left."""
        if not self.outcome.done():
            self.outcome.set_result(outcome)
