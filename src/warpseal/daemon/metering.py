"""Counts of the calls of forwarded routes: recorded in memory, for metrics, status and the metrics
database.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from warpseal.api.status.document import MAX_METHODS, MAX_ROUTES, RouteUsage
from warpseal.daemon.registries import Registries, StatusRequest
from warpseal.metrics.samples import UsageSample
from warpseal.usage.recorder import MethodUsage, UsageRecorder


@asynccontextmanager
async def open_metering(registries: Registries) -> AsyncIterator[UsageRecorder]:
    """Record calls from the first one on."""
    recorder = UsageRecorder()

    async def status(request: StatusRequest) -> Mapping[str, Any]:
        return {"usage": route_usage(recorder.since_start)}

    registries.metrics.samples.register(UsageSample, lambda: usage_samples(recorder))
    registries.status.register(status)
    yield recorder


def usage_samples(recorder: UsageRecorder) -> Iterator[UsageSample]:
    """Yield the metered calls since the start."""
    for (path, method), usage in list(recorder.since_start.items()):
        calls = {str(outcome): count for outcome, count in usage.by_outcome().items()}
        yield UsageSample(
            path, method, calls, usage.credits, usage.credits_wasted, usage.time_ms / 1_000
        )


def route_usage(since_start: Mapping[tuple[str, str], MethodUsage]) -> list[RouteUsage]:
    """Return the usage of the busiest routes.

    since_start: usage by path and method.
    """
    routes: defaultdict[str, dict[str, MethodUsage]] = defaultdict(dict)
    for (path, method), usage in since_start.items():
        routes[path][method] = usage
    rows = []
    for path, methods in routes.items():
        busiest = sorted(methods, key=lambda method: methods[method].requests, reverse=True)
        rows.append(
            RouteUsage(
                path=path,
                requests=sum(usage.requests for usage in methods.values()),
                invalid=sum(usage.invalid for usage in methods.values()),
                failed=sum(usage.failed for usage in methods.values()),
                credits=sum(usage.credits for usage in methods.values()),
                methods={method: methods[method].requests for method in busiest[:MAX_METHODS]},
            )
        )
    return sorted(rows, key=lambda row: row.requests, reverse=True)[:MAX_ROUTES]
