"""The course of a subnet's quorum: who leaves when, when the quorum becomes impossible, and the top-ups that keep it.

Pure. Source of truth: ACP-77, avalanchego `vms/platformvm/block/executor/verifier.go`, `vms/platformvm/warp`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from warpseal.ledger.params import DAY_S
from warpseal.warp.ids import NodeID, ValidationID

QUORUM_PERCENT: Final = 67
# For how long top-ups keep the quorum.
TOP_UP_S: Final = 30 * DAY_S


@dataclass(frozen=True, slots=True)
class ForecastValidator:
    """A validator whose weight counts in the quorum, as a node lists it.

    id: the validation ID of an L1 validator, or the ID of the transaction that staked. balance_navax: of an L1
    validator, 0 if inactive; None for a stake, which has `end_s`, Unix time. has_key: whether it has a BLS key.
    has_answered: whether it answered in the last day.
    """

    id: bytes
    node_id: NodeID
    weight: int
    balance_navax: int | None
    end_s: int | None
    has_key: bool
    has_answered: bool

    @property
    def is_active(self) -> bool:
        """Whether it is a stake or has a balance."""
        return self.balance_navax != 0

    @property
    def can_sign(self) -> bool:
        """Whether it is active and has a BLS key."""
        return self.has_key and self.is_active


@dataclass(frozen=True, slots=True)
class ValidatorOutlook:
    """How long a validator stays active: 0 if it is inactive, None for longer than ten years.

    With today's number of active validators, and with the capacity of the network active from now on. A block of
    exactly that second deactivates the validator. A stake has the same seconds in both.
    """

    validator: ForecastValidator
    seconds_left: int | None
    seconds_left_at_capacity: int | None


@dataclass(frozen=True, slots=True)
class WeightLoss:
    """The validators that leave in the same second, and the weights after it.

    ids: of the validators, in order. active_weight: of validators that can sign. total_weight: falls only by stakes.
    """

    at_s: int
    ids: tuple[bytes, ...]
    weight_lost: int
    active_weight: int
    total_weight: int


@dataclass(frozen=True, slots=True)
class TopUp:
    """An amount that an IncreaseL1ValidatorBalanceTx adds now, so that a validator is active for 30 days."""

    validation_id: ValidationID
    amount_navax: int


@dataclass(frozen=True, slots=True)
class Course:
    """The quorum from now on, for one number of active validators.

    losses: of the next ten years, in order of time. quorum_impossible_at_s: the first Unix time at which the validators
    that can sign are too few; the time of the forecast if they are too few now; None: not within ten years.
    top_ups: a cheap set that keeps the quorum for 30 days, in order of validation IDs; empty if none is needed; None if
    no balance can keep it.
    """

    losses: tuple[WeightLoss, ...]
    quorum_impossible_at_s: int | None
    top_ups: tuple[TopUp, ...] | None

    @property
    def top_up_total_navax(self) -> int:
        """Return the sum of the top-ups."""
        return sum(top_up.amount_navax for top_up in self.top_ups or ())


@dataclass(frozen=True, slots=True)
class QuorumOutlook:
    """The forecast of a subnet at a chain time.

    total_weight: of all validators, inactive and keyless ones included. required_weight: 67 % of it, rounded up.
    active_weight: of validators that can sign; answering_weight: of those among them that answered in the last day.
    at_capacity: None for a subnet without L1 validators.
    """

    as_of_s: int
    total_weight: int
    required_weight: int
    active_weight: int
    answering_weight: int
    validators: tuple[ValidatorOutlook, ...]
    today: Course
    at_capacity: Course | None

    @property
    def margin(self) -> Fraction:
        """Return the active weight above the required one, over the total; negative if the quorum is impossible."""
        return self._margin(self.active_weight)

    @property
    def answering_margin(self) -> Fraction:
        """Return the same of the answering weight."""
        return self._margin(self.answering_weight)

    def _margin(self, weight: int) -> Fraction:
        if not self.total_weight:
            return Fraction(-QUORUM_PERCENT, 100)
        return Fraction(weight - self.required_weight, self.total_weight)
