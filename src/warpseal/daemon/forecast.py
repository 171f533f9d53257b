"""The forecast of the validators: metrics, status, and the service that the Data API asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Final

from warpseal.api.status.document import (
    MAX_LOSS_NODES,
    MAX_LOSSES,
    MAX_TOP_UPS,
    ForecastStatus,
    LossStatus,
    TopUpStatus,
    utc_text,
)
from warpseal.daemon.core import Core
from warpseal.daemon.events import Events
from warpseal.daemon.registries import StatusRequest
from warpseal.daemon.validators import ValidatorNetwork
from warpseal.indexer.status import IndexStatus
from warpseal.metrics.samples import Sample, metric
from warpseal.validators.forecast.outlook import Course, ValidatorOutlook
from warpseal.validators.forecast.service import ForecastReader, ForecastService, SubnetForecast
from warpseal.warp.ids import id_text, node_id_text
from warpseal.warp.validator_set import DEFAULT_QUORUM, required_weight

MAX_SERIES: Final = 20
"""Validators of one subnet that have a series of their forecast."""


class L1ValidatorSample(Sample, frozen=True):
    """One L1 validator of a tracked subnet, among those whose balance runs out first."""

    labels = ("subnet_id", "node_id", "validation_id")

    subnet_id: str
    node_id: str
    validation_id: str
    seconds_left: int = metric(
        0,
        "warpseal_l1_validator_seconds_left",
        "Seconds until the balance of an L1 validator is used up, of the 20 shortest of a tracked"
        " subnet",
    )


class L1QuorumSample(Sample, frozen=True):
    """The quorum of a tracked L1.

    margins: margin of the quorum by basis, "active" or "answering".
    """

    labels = ("subnet_id",)

    subnet_id: str
    margins: Mapping[str, float] = metric(
        {},
        "warpseal_l1_quorum_margin_ratio",
        "Weight above the required one over the total, of validators that are active, and that"
        " answered in a day",
        by="basis",
    )
    seconds_left: int | None = metric(
        None,
        "warpseal_l1_quorum_seconds_left",
        "Seconds until the quorum of a tracked L1 is impossible; absent if that is more than ten"
        " years ahead",
    )


@asynccontextmanager
async def open_forecast(
    core: Core,
    tasks: asyncio.TaskGroup,
    validators: ValidatorNetwork,
    events: Events,
    index_status: IndexStatus,
) -> AsyncIterator[ForecastService]:
    """Forecast the tracked subnets in the background, and others on request."""
    # One thread: several would delay the event loop of signing by their number.
    with ThreadPoolExecutor(1, "forecast") as executor:
        forecasts = ForecastService(
            ForecastReader(core.platform, lambda: index_status.index),
            validators.chains,
            validators.heights,
            validators.sets,
            validators.uptime.connected_since,
            validators.is_unreachable,
            core.config.validators,
            executor=executor,
            on_forecast=events.recorder.on_forecast,
        )

        async def status(request: StatusRequest) -> Mapping[str, Any]:
            return {"forecasts": [forecast_status(forecast) for forecast in forecasts.latest()]}

        core.metrics.samples.register(L1ValidatorSample, lambda: validator_samples(forecasts))
        core.metrics.samples.register(L1QuorumSample, lambda: quorum_samples(forecasts))
        core.status.register(status)
        core.keep_running(tasks, "forecasts", forecasts.run)
        yield forecasts


def validator_samples(forecasts: ForecastService) -> Iterator[L1ValidatorSample]:
    """Yield the validators of each tracked L1 that run out first; inactive ones come last, with 0
    seconds.
    """
    for forecast in forecasts.latest():
        ending = [
            row
            for row in forecast.outlook.validators
            if row.validator.balance_navax is not None and row.seconds_left is not None
        ]
        for row in sorted(ending, key=_urgency)[:MAX_SERIES]:
            assert row.seconds_left is not None
            names = (node_id_text(row.validator.node_id), id_text(row.validator.id))
            yield L1ValidatorSample(id_text(forecast.subnet_id), *names, row.seconds_left)


def quorum_samples(forecasts: ForecastService) -> Iterator[L1QuorumSample]:
    """Yield the quorum of each tracked L1."""
    for forecast in forecasts.latest():
        if forecast.fee is None:
            continue
        outlook = forecast.outlook
        margins = {"active": float(outlook.margin)}
        if forecast.is_answering_known:
            margins["answering"] = float(outlook.answering_margin)
        ends_at = outlook.today.quorum_impossible_at_s
        left_s = None if ends_at is None else ends_at - outlook.as_of_s
        yield L1QuorumSample(id_text(forecast.subnet_id), margins, left_s)


def _urgency(row: ValidatorOutlook) -> tuple[bool, int]:
    assert row.seconds_left is not None
    return not row.validator.is_active, row.seconds_left


def forecast_status(forecast: SubnetForecast) -> ForecastStatus:
    """Return the forecast of a tracked subnet for the status."""
    outlook, today = forecast.outlook, forecast.outlook.today
    first_loss = today.losses[0] if today.losses else None
    nodes = {row.validator.id: row.validator.node_id for row in outlook.validators}
    losses = [
        LossStatus(
            at=utc_text(loss.at_s),
            validators=len(loss.ids),
            node_ids=[node_id_text(nodes[name]) for name in loss.ids[:MAX_LOSS_NODES]],
            weight_lost=str(loss.weight_lost),
            active_weight=str(loss.active_weight),
            required_weight=str(required_weight(loss.total_weight, DEFAULT_QUORUM)),
            total_weight=str(loss.total_weight),
        )
        for loss in today.losses[:MAX_LOSSES]
    ]
    top_ups = [
        TopUpStatus(
            node_id_text(nodes[top_up.validation_id]),
            id_text(top_up.validation_id),
            str(top_up.amount_navax),
        )
        for top_up in (today.top_ups or ())[:MAX_TOP_UPS]
    ]
    return ForecastStatus(
        subnet_id=id_text(forecast.subnet_id),
        kind=forecast.kind.value,
        as_of=utc_text(outlook.as_of_s),
        total_weight=str(outlook.total_weight),
        required_weight=str(outlook.required_weight),
        active_weight=str(outlook.active_weight),
        answering_weight=str(outlook.answering_weight) if forecast.is_answering_known else None,
        margin=float(outlook.margin),
        can_be_kept=today.top_ups is not None,
        answering_margin=float(outlook.answering_margin) if forecast.is_answering_known else None,
        first_loss_at=None if first_loss is None else utc_text(first_loss.at_s),
        first_loss_weight=None if first_loss is None else str(first_loss.weight_lost),
        quorum_impossible_at=_impossible_at(today),
        quorum_impossible_at_capacity=None
        if outlook.at_capacity is None
        else _impossible_at(outlook.at_capacity),
        losses=losses,
        omitted_losses=max(0, len(today.losses) - MAX_LOSSES),
        top_ups=top_ups,
        omitted_top_ups=max(0, len(today.top_ups or ()) - MAX_TOP_UPS),
        top_up_total=str(today.top_up_total_navax),
    )


def _impossible_at(course: Course) -> str | None:
    return (
        None if course.quorum_impossible_at_s is None else utc_text(course.quorum_impossible_at_s)
    )
