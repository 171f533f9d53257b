"""The aggregation of signatures: rounds, their metrics and their rows of the status."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from warpseal.aggregation.last_hour import MinuteCounts
from warpseal.aggregation.request_course import AggregationRecord
from warpseal.aggregation.service import SignatureAggregator
from warpseal.api.status.document import AggregationMinute, AggregationStatus, utc_text
from warpseal.daemon.core import Core
from warpseal.daemon.events import Events
from warpseal.daemon.registries import StatusRequest
from warpseal.daemon.validators import ValidatorNetwork
from warpseal.messages.signing_blocks import check_allowed
from warpseal.metrics.samples import CacheSample
from warpseal.usage.response_times import percentile_ms
from warpseal.validators.sets import ValidatorSets
from warpseal.warp.ids import SubnetID, id_text
from warpseal.warp.message import UnsignedMessage


@asynccontextmanager
async def open_signing(
    core: Core, tasks: asyncio.TaskGroup, validators: ValidatorNetwork, events: Events
) -> AsyncIterator[SignatureAggregator]:
    """Aggregate signatures, unless a signing block or a difference of validator sets forbids it."""

    def check_signing(message: UnsignedMessage, subnet_id: SubnetID | None) -> None:
        check_allowed(core.store.signing_blocks, message)
        if subnet_id is not None:
            validators.check_sets(subnet_id)

    async def status(request: StatusRequest) -> Mapping[str, Any]:
        records = reversed(tuple(aggregator.reports.recent))
        minutes = aggregator.reports.last_hour.minutes(time.time())
        return {
            "aggregations": [_aggregation(record) for record in records],
            "aggregation_minutes": [_minute(minute) for minute in minutes],
        }

    with ThreadPoolExecutor(1, "verify") as verifying:
        aggregator = SignatureAggregator(
            network_id=core.network_id,
            settings=core.config.aggregation,
            heights=validators.heights,
            epochs=validators.epochs,
            sets=validators.sets,
            chains=validators.chains,
            peers=validators.network,
            tracker=validators.subnet_tracker,
            activity=validators.activity,
            archive=core.store.archive,
            metrics=core.metrics,
            check_allowed=check_signing,
            on_shortfall=events.recorder.on_shortfall,
            executor=verifying,
        )
        core.metrics.samples.register(CacheSample, aggregator.caches.samples)
        core.metrics.samples.register(CacheSample, lambda: _set_cache(validators.sets))
        core.status.register(status)
        if core.has_store:
            core.keep_running(tasks, "audit of shares", aggregator.auditor.run)
        yield aggregator


def _set_cache(sets: ValidatorSets) -> Iterator[CacheSample]:
    yield CacheSample("validator_sets", sets.hits, sets.misses, sets.held_bytes)


def _aggregation(record: AggregationRecord) -> AggregationStatus:
    stages_ms = {stage: round(seconds * 1_000, 1) for stage, seconds in record.stages.items()}
    outcome = (utc_text(record.ended_at), record.outcome, stages_ms, record.reason or None)
    if record.message_id is None or record.signing_subnet_id is None:
        return AggregationStatus(*outcome)
    return AggregationStatus(
        *outcome,
        message_id=id_text(record.message_id),
        signing_subnet_id=id_text(record.signing_subnet_id),
        height=None if record.height is None else str(record.height),
        signed_weight=str(record.signed_weight),
        required_weight=str(record.required_weight),
        total_weight=str(record.total_weight),
    )


def _minute(minute: MinuteCounts) -> AggregationMinute:
    p50_ms, p95_ms = (round(percentile_ms(minute.times, percent), 1) for percent in (50, 95))
    times = {"p50_ms": p50_ms, "p95_ms": p95_ms} if minute.times else {}
    return AggregationMinute(utc_text(minute.start_s), dict(minute.outcomes), **times)
