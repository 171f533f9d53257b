"""The daemon's metrics: series that count reported events, series read at each scrape, and the page
of both.
"""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cache
from time import perf_counter
from typing import Any, Final, TypeVar

import prometheus_client
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.openmetrics import exposition as openmetrics

from warpseal.bls import BACKEND
from warpseal.metrics.reference import ReferenceCounts, ReferenceSeries
from warpseal.metrics.samples import MetricsSnapshot, Sample, SampleRegistry, ValidatorSample
from warpseal.version import __version__

T = TypeVar("T")

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text"
OPENMETRICS_CONTENT_TYPE: Final = f"{OPENMETRICS}; version=1.0.0; charset=utf-8"
DURATION_BUCKETS_S: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0,
)  # fmt: skip
TOTAL_STAGE: Final = "total"

# A scrape reads samples for no longer than this without yielding.
_STRETCH_S: Final = 0.002
_END: Final = b"# EOF\n"


class Metrics:
    """Counts reported events. Every method is cheap and for the event loop.

    samples: functions that a scrape reads.
    refresh: function that is called before a scrape.
    """

    def __init__(self) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._reference = ReferenceCounts()
        self.samples = SampleRegistry()
        self.refresh: Callable[[], Awaitable[None]] | None = None
        self._bad_shares: Tally[str] = Tally()
        self._paused_webhooks: int | None = None
        self._add_series()
        # Children are looked up for every request, and there are few of them.
        self._duration_of = cache(self._duration.labels)
        self._stage_of = cache(self._stages.labels)
        self._http_of = cache(self._http.labels)
        self._evm_calls_of = cache(self._evm_calls.labels)
        ProcessCollector(registry=self.registry)

    def _add_series(self) -> None:
        self._duration = self._histogram(
            "warpseal_aggregation_duration_seconds", "Time from request to response", ["outcome"]
        )
        self._stages = self._histogram(
            "warpseal_aggregation_stage_duration_seconds",
            "Time spent in one stage",
            ["stage", "outcome"],
        )
        self._http = self._counter(
            "warpseal_http_requests",
            "HTTP requests answered, by route and status",
            ["route", "status"],
        )
        self._node_calls = self._counter(
            "warpseal_node_calls",
            "Calls to upstream nodes, by method and outcome",
            ["method", "outcome"],
        )
        self._node_disagreements = self._counter(
            "warpseal_node_disagreements",
            "Replies of a node that contradicted those that agree, by position (info-api last) and"
            " method",
            ["node", "method"],
        )
        self._set_comparisons = self._counter(
            "warpseal_validator_set_comparisons",
            "Validator sets of the index that were compared with those of the nodes, by result:"
            " equal or different",
            ["result"],
        )
        self._background_failures = self._counter(
            "warpseal_background_failures",
            "Internal errors of work in the background, which starts again by itself, by part",
            ["part"],
        )
        self._node_seconds = self._histogram(
            "warpseal_node_call_duration_seconds",
            "Time of one call to an upstream node",
            ["method"],
        )
        self._evm_calls = self._counter(
            "warpseal_evm_calls",
            "Calls of EVM chains, by chain, class of method, node and outcome",
            ["chain", "method_class", "upstream", "outcome"],
        )
        self._bad_share_count = self._counter("warpseal_bad_shares", "Shares that were found bad")
        self._reissued = self._counter(
            "warpseal_messages_reissued",
            "Messages that were signed again for another validator set without a request to a"
            " validator",
        )
        self._commit_seconds = Histogram(
            "warpseal_store_commit_duration_seconds",
            "Time of one transaction of the store",
            registry=self.registry,
            buckets=DURATION_BUCKETS_S,
        )
        self._rows_written = self._counter(
            "warpseal_store_rows_written", "Rows that the store has committed"
        )
        build_text = "Always 1; its labels are the version and the BLS backend"
        build = Gauge("warpseal_build_info", build_text, ["version", "bls"], registry=self.registry)
        build.labels(__version__, BACKEND).set(1)

    def _histogram(self, name: str, text: str, labels: Sequence[str]) -> Histogram:
        return Histogram(name, text, labels, registry=self.registry, buckets=DURATION_BUCKETS_S)

    def _counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def observe_aggregation(
        self, outcome: str, stages: Mapping[str, float], trace_id: str = ""
    ) -> None:
        """Record one aggregation, successful or not.

        outcome: "ok", the code of the error, or "cancelled".
        stages: seconds by stage; "total" is the sum.
        trace_id: id of the trace, if the aggregation is sampled, as exemplar.
        """
        exemplar = {"trace_id": trace_id} if trace_id else None
        for stage, seconds in stages.items():
            if stage == TOTAL_STAGE:
                self._duration_of(outcome).observe(seconds, exemplar)
            else:
                self._stage_of(stage, outcome).observe(seconds)

    def observe_http(self, route: str, status: int) -> None:
        """Count one HTTP response.

        route: template of the path; there are few templates.
        """
        self._http_of(route, status).inc()

    def observe_call(self, method: str, outcome: str, seconds: float) -> None:
        """Count one call to an upstream node; outcome is "ok" or the kind of error."""
        self._node_calls.labels(method, outcome).inc()
        self._node_seconds.labels(method).observe(seconds)

    def observe_forwarding(
        self, chain: str, method_class: str, upstream: str, outcome: str, calls: int = 1
    ) -> None:
        """Count calls of an EVM chain.

        upstream: position of the node in its list; empty if no node was called.
        """
        self._evm_calls_of(chain, method_class, upstream, outcome).inc(calls)

    def count_disagreement(self, position: int, method: str) -> None:
        """Count a reply of a node that contradicted the nodes that agree."""
        self._node_disagreements.labels(str(position), method).inc()

    def count_background_failure(self, part: str) -> None:
        """Count an internal error of a part of the daemon that starts again."""
        self._background_failures.labels(part).inc()

    def count_set_comparison(self, result: str) -> None:
        """Count a comparison of a validator set of the index with that of the nodes."""
        self._set_comparisons.labels(result).inc()

    def count_bad_share(self, node_ids: Iterable[str]) -> None:
        """Count one bad share, also against each node of its key."""
        self._bad_share_count.inc()
        self._bad_shares.update(node_ids)
        self._reference.bad_shares += 1

    def count_reissued_message(self) -> None:
        """Count a message signed for another set without a request to a validator."""
        self._reissued.inc()

    def observe_commit(self, rows: int, seconds: float) -> None:
        """Record one transaction of the store; from any thread."""
        self._rows_written.inc(rows)
        self._commit_seconds.observe(seconds)

    def aggregation_requested(self) -> None:
        """Count a request for an aggregation, whether it succeeds or not."""
        self._reference.requests += 1

    def aggregation_answered(self, duration_s: float) -> None:
        """Record the duration of a request that was answered with a signed message."""
        self._reference.latency_ms = int(duration_s * 1000)

    def count_missing_validator_set(self) -> None:
        """Count a request that failed because no validator set was found."""
        self._reference.no_validator_set += 1

    def count_too_little_connected(self) -> None:
        """Count a request that missed its quorum while validators were not connected."""
        self._reference.too_little_connected += 1

    def report_paused_webhooks(self, count: int | None) -> None:
        """Record the number of paused webhooks; None if this process sends no webhooks."""
        self._paused_webhooks = count

    async def snapshot(self, *, is_openmetrics: bool = False) -> Callable[[], bytes]:
        """Read all samples, yielding to the event loop; return the function that writes the page in
        a worker thread.

        is_openmetrics: the page is OpenMetrics, which has exemplars.
        """
        if self.refresh is not None:
            await self.refresh()
        validators = await _yielding(self.samples.read(ValidatorSample))
        node_ids = {validator.node_id for validator in validators}
        self._bad_shares = Tally(
            {node: count for node, count in self._bad_shares.items() if node in node_ids}
        )
        samples: dict[type[Sample], tuple[Sample, ...]] = {}
        for kind in self.samples.kinds:
            is_read = kind is ValidatorSample
            samples[kind] = validators if is_read else await _yielding(self.samples.read(kind))
        snapshot = MetricsSnapshot(samples, self._paused_webhooks, dict(self._bad_shares))
        return lambda: self._page(snapshot, is_openmetrics)

    def _page(self, snapshot: MetricsSnapshot, is_openmetrics: bool) -> bytes:
        reference = ReferenceSeries(self._reference, snapshot)
        # The function only calls their `collect`.
        collectors: tuple[Any, ...] = (self.registry, snapshot, reference)
        if is_openmetrics:
            pages = [openmetrics.generate_latest(item) for item in collectors]  # type: ignore[no-untyped-call]
            parts = [page.removesuffix(_END) for page in pages]
            # A counter without `_total` is none there.
            counters = reference.counter_text().replace(" counter\n", " unknown\n")
            return b"".join((*parts, counters.encode(), _END))
        collected = map(generate_latest, collectors)
        return b"".join((*collected, reference.counter_text().encode()))


async def _yielding(items: Iterable[T]) -> tuple[T, ...]:
    """Return all items, yielding to the event loop whenever making them took long."""
    yielded_items: list[T] = []
    yielded_at = perf_counter()
    for item in items:
        yielded_items.append(item)
        if perf_counter() - yielded_at > _STRETCH_S:
            await asyncio.sleep(0)
            yielded_at = perf_counter()
    return tuple(yielded_items)
