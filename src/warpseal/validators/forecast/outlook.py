"""The course of a subnet's quorum: losses of weight, its end, and the top-ups that prevent it.

Pure. Source of truth: ACP-77, avalanchego `vms/platformvm/block/executor/verifier.go`,
`vms/platformvm/warp`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate, chain, combinations
from typing import Final

from msgspec import Struct

from warpseal.ledger.params import DAY_S
from warpseal.validators.forecast.fee_curve import HORIZON_S, FeeCurve
from warpseal.warp.ids import NodeID, ValidationID
from warpseal.warp.validator_set import DEFAULT_QUORUM, required_weight

# Time for which top-ups keep the quorum.
TOP_UP_S: Final = 30 * DAY_S

_MAX_BALANCE_NAVAX: Final = 2**64 - 1
# Up to this number of candidates, all choices of top-ups are compared.
_EXACT_CANDIDATES: Final = 12
# Pairs of candidates and needs; an L1 has one need, and one more for each end of a stake.
_MOST_PAIRS: Final = 100_000


def _no_step() -> None:
    """Go on: the step of a computation that no caller cancels."""


class ForecastValidator(Struct, frozen=True):
    """A validator whose weight counts in the quorum, as a node lists it.

    id: validation ID of an L1 validator, or ID of the transaction that staked.
    balance_navax: balance of an L1 validator, 0 if it is inactive; None for a stake.
    end_s: Unix time at which a stake ends; None for an L1 validator and a stake that renews itself.
    has_key: the validator has a BLS key.
    has_answered: the daemon was connected to the validator in the last day.
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
        """Return whether the validator is a stake or has a balance."""
        return self.balance_navax != 0

    @property
    def can_sign(self) -> bool:
        """Return whether the validator is active and has a BLS key."""
        return self.has_key and self.is_active


class ValidatorOutlook(Struct, frozen=True):
    """The seconds for which a validator stays active; a block of exactly that second ends it.

    The seconds are 0 for an inactive validator, and None for more than ten years.
    seconds_left: seconds with today's number of active validators.
    seconds_left_at_capacity: seconds with the network's capacity active from now on; a stake has
        the same in both.
    """

    validator: ForecastValidator
    seconds_left: int | None
    seconds_left_at_capacity: int | None


class WeightLoss(Struct, frozen=True):
    """The validators that leave in the same second, and the weights after it.

    ids: IDs of the validators that leave, in ascending order.
    active_weight: weight of the validators that can sign.
    total_weight: weight of all validators; only stakes that end lower it.
    """

    at_s: int
    ids: tuple[bytes, ...]
    weight_lost: int
    active_weight: int
    total_weight: int


class TopUp(Struct, frozen=True):
    """The amount of an IncreaseL1ValidatorBalanceTx that keeps a validator active for 30 days."""

    validation_id: ValidationID
    amount_navax: int


class Course(Struct, frozen=True):
    """The quorum from now on, for one number of active validators.

    losses: losses of weight in the next ten years, in order of time.
    quorum_impossible_at_s: first Unix time at which too little weight can sign; the time of the
        forecast if too little can sign already; None if ten years pass before.
    top_ups: cheap set that keeps the quorum for 30 days, in order of validation IDs; empty if the
        quorum needs no top-up; None if no balance can keep it.
    """

    losses: tuple[WeightLoss, ...]
    quorum_impossible_at_s: int | None
    top_ups: tuple[TopUp, ...] | None

    @property
    def top_up_total_navax(self) -> int:
        """Return the sum of the top-ups."""
        return sum(top_up.amount_navax for top_up in self.top_ups or ())


class QuorumOutlook(Struct, frozen=True):
    """The forecast of a subnet at a chain time.

    total_weight: weight of all validators, including inactive and keyless ones.
    required_weight: 67 % of the total weight, rounded up.
    active_weight: weight of the validators that can sign.
    answering_weight: weight of the validators that can sign and were connected in the last day.
    at_capacity: course with the capacity of the network active; None for a subnet without L1
        validators.
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
        """Return the active weight above the required weight, over the total weight.

        The margin is negative if the quorum is impossible.
        """
        return self._margin(self.active_weight)

    @property
    def answering_margin(self) -> Fraction:
        """Return the answering weight above the required weight, over the total weight."""
        return self._margin(self.answering_weight)

    def _margin(self, weight: int) -> Fraction:
        if not self.total_weight:
            return Fraction(-DEFAULT_QUORUM, 100)
        return Fraction(weight - self.required_weight, self.total_weight)


def forecast_quorum(
    validators: Sequence[ForecastValidator],
    as_of_s: int,
    today: FeeCurve | None = None,
    at_capacity: FeeCurve | None = None,
    *,
    top_up_s: int = TOP_UP_S,
    step: Callable[[], None] = _no_step,
) -> QuorumOutlook:
    """Return the forecast of a subnet; its validators keep their order.

    Raises ValueError if a fee curve is missing and the subnet has L1 validators.
    validators: all validators of the subnet.
    as_of_s: chain time at which their balances were read, and at which the fee curves begin.
    top_up_s: seconds for which top-ups keep the quorum.
    step: function that is called after each small part of the computation; it may raise.
    """
    has_l1_validators = any(validator.balance_navax is not None for validator in validators)
    if has_l1_validators and (today is None or at_capacity is None):
        raise ValueError("expected the fee of L1 validators")
    left_today = _find_seconds_left(validators, as_of_s, today, step)
    left_at_capacity = _find_seconds_left(validators, as_of_s, at_capacity, step)
    total_weight = sum(validator.weight for validator in validators)
    active = [validator for validator in validators if validator.can_sign]
    course_at_capacity = None
    if at_capacity is not None:
        course_at_capacity = _follow_course(
            validators, as_of_s, left_at_capacity, at_capacity, top_up_s, step
        )
    return QuorumOutlook(
        as_of_s=as_of_s,
        total_weight=total_weight,
        required_weight=required_weight(total_weight, DEFAULT_QUORUM),
        active_weight=sum(validator.weight for validator in active),
        answering_weight=sum(validator.weight for validator in active if validator.has_answered),
        validators=tuple(map(ValidatorOutlook, validators, left_today, left_at_capacity)),
        today=_follow_course(validators, as_of_s, left_today, today, top_up_s, step),
        at_capacity=course_at_capacity,
    )


def _find_seconds_left(
    validators: Sequence[ForecastValidator],
    as_of_s: int,
    curve: FeeCurve | None,
    step: Callable[[], None],
) -> tuple[int | None, ...]:
    """Return the seconds for which each validator stays active; None for more than ten years."""
    seconds_left: list[int | None] = []
    for validator in validators:
        step()
        seconds: int | None = None
        if validator.end_s is not None:
            seconds = max(0, validator.end_s - as_of_s)
            if seconds >= HORIZON_S:
                seconds = None
        elif validator.balance_navax == 0:
            seconds = 0
        elif validator.balance_navax is not None and curve is not None:
            seconds = curve.seconds_covered(validator.balance_navax)
        seconds_left.append(seconds)
    return tuple(seconds_left)


def _follow_course(
    validators: Sequence[ForecastValidator],
    as_of_s: int,
    seconds_left: Sequence[int | None],
    curve: FeeCurve | None,
    top_up_s: int,
    step: Callable[[], None],
) -> Course:
    """Return the course of a quorum.

    seconds_left: seconds after which each validator leaves; None for a validator that stays.
    curve: fee of L1 validators; None if the subnet has none, so that no top-up helps.
    """
    leaving: dict[int, list[ForecastValidator]] = defaultdict(list)
    for validator, seconds in zip(validators, seconds_left, strict=True):
        if validator.is_active and seconds is not None:
            leaving[seconds].append(validator)
    total_weight = sum(validator.weight for validator in validators)
    active_weight = sum(validator.weight for validator in validators if validator.can_sign)
    # By the second from which on they hold: the weight that can sign, and all weight.
    weights = {0: (active_weight, total_weight)}
    losses: list[WeightLoss] = []
    for seconds, leavers in sorted(leaving.items()):
        weight_lost = sum(validator.weight for validator in leavers)
        active_weight -= sum(validator.weight for validator in leavers if validator.can_sign)
        total_weight -= sum(
            validator.weight for validator in leavers if validator.balance_navax is None
        )
        ids = tuple(sorted(validator.id for validator in leavers))
        losses.append(WeightLoss(as_of_s + seconds, ids, weight_lost, active_weight, total_weight))
        weights[seconds] = (active_weight, total_weight)
    shortfalls: dict[int, int] = {}
    for seconds, (active, total) in weights.items():
        # Without any weight there is no signer.
        required = max(1, required_weight(total, DEFAULT_QUORUM))
        if active < required:
            shortfalls[seconds] = required - active
    # Seconds stand in ascending order, so that the first shortfall is the earliest.
    impossible_at_s = next((as_of_s + seconds for seconds in shortfalls), None)
    top_ups: tuple[TopUp, ...] | None = ()
    if curve is not None:
        # While the total stays, its last second needs the most weight: the others do not count.
        last_seconds = {
            total: seconds for seconds, (_, total) in weights.items() if seconds <= top_up_s
        }
        needs = {
            seconds: shortfalls[seconds]
            for seconds in last_seconds.values()
            if seconds in shortfalls
        }
        if needs:
            candidates = _find_candidates(validators, seconds_left, curve, top_up_s)
            top_ups = _choose_top_ups(candidates, needs, step)
    return Course(tuple(losses), impossible_at_s, top_ups)


class _Candidate(Struct, frozen=True):
    """A possible top-up.

    weight: weight that the top-up keeps.
    missing_from: second from which on that weight is missing without the top-up.
    """

    top_up: TopUp
    weight: int
    missing_from: int

    @property
    def rank(self) -> tuple[int, bytes]:
        """Return the key that sorts candidates, the cheapest weight first."""
        # As many bits as distinguish quotients of weights of 64 bits.
        return (self.top_up.amount_navax << 128) // self.weight, self.top_up.validation_id


def _find_candidates(
    validators: Sequence[ForecastValidator],
    seconds_left: Sequence[int | None],
    curve: FeeCurve,
    top_up_s: int,
) -> list[_Candidate]:
    """Return top-ups of L1 validators that leave within `top_up_s`, the cheapest weight first.

    The list is empty if no balance lasts longer.
    """
    # Behind the transactions of a block, a validator needs the price of the next second.
    target_navax = max(1, curve.cost(top_up_s + 1))
    if target_navax >= _MAX_BALANCE_NAVAX:
        return []
    candidates: list[_Candidate] = []
    for validator, seconds in zip(validators, seconds_left, strict=True):
        if seconds is None or seconds > top_up_s:
            continue
        if validator.balance_navax is not None and validator.has_key and validator.weight:
            amount_navax = target_navax - validator.balance_navax
            top_up = TopUp(ValidationID(validator.id), amount_navax)
            candidates.append(_Candidate(top_up, validator.weight, seconds))
    return sorted(candidates, key=lambda candidate: candidate.rank)


def _choose_top_ups(
    candidates: Sequence[_Candidate], needs: Mapping[int, int], step: Callable[[], None]
) -> tuple[TopUp, ...] | None:
    """Return a cheap choice, in order of validation IDs; None if all candidates are too few.

    needs: weight that the choice has to keep, by the second from which on it is needed.
    """
    needs = _find_decisive_needs(candidates, needs)
    if not _is_enough(candidates, needs):
        return None
    chosen = candidates
    if len(candidates) <= _EXACT_CANDIDATES:
        chosen = _choose_least(candidates, needs)
    elif len(candidates) * len(needs) <= _MOST_PAIRS:
        chosen = _choose_greedily(candidates, needs, step)
    top_ups = [candidate.top_up for candidate in chosen]
    return tuple(sorted(top_ups, key=lambda top_up: top_up.validation_id))


def _find_decisive_needs(
    candidates: Sequence[_Candidate], needs: Mapping[int, int]
) -> Mapping[int, int]:
    """Return the needs that imply all others, at most one more than there are candidates.

    A candidate that helps at a second helps at all later ones. Later needs that are no larger are
    therefore implied, and smaller ones since the same candidates began to help.
    """
    starts = sorted(candidate.missing_from for candidate in candidates)
    decisive: dict[int, tuple[int, int]] = {}
    largest = 0
    for second, weight in sorted(needs.items()):
        if weight > largest:
            largest = weight
            decisive[bisect_right(starts, second)] = second, weight
    return dict(decisive.values())


def _is_enough(chosen: Sequence[_Candidate], needs: Mapping[int, int]) -> bool:
    """Return whether the chosen candidates keep the weight that each second needs."""
    ordered = sorted(chosen, key=lambda candidate: candidate.missing_from)
    starts = [candidate.missing_from for candidate in ordered]
    weights = list(accumulate((candidate.weight for candidate in ordered), initial=0))
    return all(weights[bisect_right(starts, second)] >= weight for second, weight in needs.items())


def _choose_least(
    candidates: Sequence[_Candidate], needs: Mapping[int, int]
) -> Sequence[_Candidate]:
    """Return the choice of the least sum; of equal sums the choice of fewest validators."""

    def sum_of(choice: Sequence[_Candidate]) -> int:
        return sum(candidate.top_up.amount_navax for candidate in choice)

    # Small choices come first, and min keeps the first of equal sums.
    sizes = range(len(candidates) + 1)
    choices = chain.from_iterable(combinations(candidates, size) for size in sizes)
    return min((choice for choice in choices if _is_enough(choice, needs)), key=sum_of)


def _choose_greedily(
    candidates: Sequence[_Candidate], needs: Mapping[int, int], step: Callable[[], None]
) -> Sequence[_Candidate]:
    """Choose in order while weight is missing, then drop superfluous ones, the largest first."""
    missing = dict(needs)
    chosen: list[_Candidate] = []
    for candidate in candidates:
        step()
        helped = [second for second in missing if candidate.missing_from <= second]
        if any(missing[second] > 0 for second in helped):
            chosen.append(candidate)
            for second in helped:
                missing[second] -= candidate.weight
    superfluous: set[bytes] = set()
    largest_first = sorted(
        chosen, key=lambda candidate: candidate.top_up.amount_navax, reverse=True
    )
    for candidate in largest_first:
        step()
        helped = [second for second in missing if candidate.missing_from <= second]
        if all(missing[second] + candidate.weight <= 0 for second in helped):
            superfluous.add(candidate.top_up.validation_id)
            for second in helped:
                missing[second] += candidate.weight
    return [candidate for candidate in chosen if candidate.top_up.validation_id not in superfluous]
