"""The forecast of a subnet as a resource; see docs/forecast.md.

Weights and amounts (nAVAX) are decimal texts, times are Unix seconds. What is not known, and what
lies more than ten years ahead, is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from warpseal.resources.base import UNSET, Resource, UnsetType, or_unset
from warpseal.warp.ids import id_text, node_id_text
from warpseal.warp.validator_set import DEFAULT_QUORUM

if TYPE_CHECKING:
    from warpseal.validators.forecast.outlook import Course, ValidatorOutlook
    from warpseal.validators.forecast.service import FeeReading, SubnetForecast


class ForecastFee(Resource, frozen=True, gc=False, kw_only=True):
    """The fee of an active L1 validator, nAVAX a second, and the number of active validators that
    it follows.
    """

    price: str
    excess: str
    active_validators: int | UnsetType = UNSET
    source: Literal["index", "slope", "minimum", "unknown"]
    target: int
    capacity: int


class ForecastQuorum(Resource, frozen=True, gc=False, kw_only=True):
    """The weights of a quorum. A margin is the weight above the required one, over the total."""

    percentage: int
    total_weight: str
    required_weight: str
    active_weight: str
    margin: float
    answering_weight: str | UnsetType = UNSET
    answering_margin: float | UnsetType = UNSET


class ValidatorForecast(Resource, frozen=True, gc=False, kw_only=True):
    """How long a validator stays.

    An L1 validator has a validation id and a balance, a stake a transaction.
    """

    validation_id: str | UnsetType = UNSET
    tx_hash: str | UnsetType = UNSET
    node_id: str
    weight: str
    is_active: bool
    has_key: bool
    has_answered: bool | UnsetType = UNSET
    balance: str | UnsetType = UNSET
    seconds_left: int | UnsetType = UNSET
    runs_out_at: int | UnsetType = UNSET
    seconds_left_at_capacity: int | UnsetType = UNSET
    runs_out_at_capacity: int | UnsetType = UNSET
    ends_at: int | UnsetType = UNSET


class ForecastLoss(Resource, frozen=True, gc=False, kw_only=True):
    """The validators that leave at the same time, by validation id or transaction, and the weights
    after it.
    """

    at: int
    validation_ids: tuple[str, ...]
    weight_lost: str
    active_weight: str
    total_weight: str


class ForecastTopUp(Resource, frozen=True, gc=False, kw_only=True):
    """What a validator's balance needs now, nAVAX."""

    validation_id: str
    amount: str


class ForecastCourse(Resource, frozen=True, gc=False, kw_only=True):
    """The quorum from now on. Without top-ups no balance keeps it for 30 days."""

    losses: tuple[ForecastLoss, ...]
    quorum_impossible_at: int | UnsetType = UNSET
    top_ups: tuple[ForecastTopUp, ...] | UnsetType = UNSET
    top_up_total: str | UnsetType = UNSET


class Forecast(Resource, frozen=True, gc=False, kw_only=True):
    """When the validators of a subnet leave its quorum, and what keeps it."""

    subnet_id: str
    kind: Literal["l1", "permissioned", "primary"]
    as_of: int
    fee: ForecastFee | UnsetType = UNSET
    quorum: ForecastQuorum
    validators: tuple[ValidatorForecast, ...]
    today: ForecastCourse
    at_capacity: ForecastCourse | UnsetType = UNSET


def forecast_resource(forecast: SubnetForecast) -> Forecast:
    """Return a forecast as a resource."""
    outlook, is_observed = forecast.outlook, forecast.is_answering_known
    at_capacity = outlook.at_capacity
    return Forecast(
        subnet_id=id_text(forecast.subnet_id),
        kind=forecast.kind.value,
        as_of=outlook.as_of_s,
        fee=UNSET if forecast.fee is None else _fee(forecast.fee),
        quorum=ForecastQuorum(
            percentage=DEFAULT_QUORUM,
            total_weight=str(outlook.total_weight),
            required_weight=str(outlook.required_weight),
            active_weight=str(outlook.active_weight),
            margin=float(outlook.margin),
            answering_weight=str(outlook.answering_weight) if is_observed else UNSET,
            answering_margin=float(outlook.answering_margin) if is_observed else UNSET,
        ),
        validators=tuple(
            [
                _validator(row, outlook.as_of_s, is_observed=is_observed)
                for row in outlook.validators
            ]
        ),
        today=_course(outlook.today, has_balances=at_capacity is not None),
        at_capacity=UNSET if at_capacity is None else _course(at_capacity, has_balances=True),
    )


def _fee(fee: FeeReading) -> ForecastFee:
    return ForecastFee(
        price=str(fee.state.price),
        excess=str(fee.state.excess),
        active_validators=or_unset(fee.active),
        source=fee.source.value,
        target=fee.config.target,
        capacity=fee.config.capacity,
    )


def _validator(row: ValidatorOutlook, as_of_s: int, *, is_observed: bool) -> ValidatorForecast:
    validator, is_l1 = row.validator, row.validator.balance_navax is not None
    name = id_text(validator.id)
    runs_out = is_l1 and validator.is_active
    left_s, left_at_capacity_s = row.seconds_left, row.seconds_left_at_capacity

    def end_of(seconds_left: int | None) -> int | UnsetType:
        return as_of_s + seconds_left if runs_out and seconds_left is not None else UNSET

    return ValidatorForecast(
        validation_id=name if is_l1 else UNSET,
        tx_hash=UNSET if is_l1 else name,
        node_id=node_id_text(validator.node_id),
        weight=str(validator.weight),
        is_active=validator.is_active,
        has_key=validator.has_key,
        has_answered=validator.has_answered if is_observed else UNSET,
        balance=str(validator.balance_navax) if is_l1 else UNSET,
        seconds_left=or_unset(left_s),
        runs_out_at=end_of(left_s),
        seconds_left_at_capacity=or_unset(left_at_capacity_s) if is_l1 else UNSET,
        runs_out_at_capacity=end_of(left_at_capacity_s),
        ends_at=or_unset(validator.end_s),
    )


def _course(course: Course, *, has_balances: bool) -> ForecastCourse:
    losses = [
        ForecastLoss(
            at=loss.at_s,
            validation_ids=tuple(map(id_text, loss.ids)),
            weight_lost=str(loss.weight_lost),
            active_weight=str(loss.active_weight),
            total_weight=str(loss.total_weight),
        )
        for loss in course.losses
    ]
    top_ups = [
        ForecastTopUp(validation_id=id_text(top_up.validation_id), amount=str(top_up.amount_navax))
        for top_up in course.top_ups or ()
    ]
    has_top_ups = has_balances and course.top_ups is not None
    return ForecastCourse(
        losses=tuple(losses),
        quorum_impossible_at=or_unset(course.quorum_impossible_at_s),
        top_ups=tuple(top_ups) if has_top_ups else UNSET,
        top_up_total=str(course.top_up_total_navax) if has_top_ups else UNSET,
    )
