"""What the rooms report, and the page that shows it: our own series, each validator's, and the reference's."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

import warpseal
from warpseal.metrics.reference import ReferenceMetrics
from warpseal.metrics.validators import ValidatorSample, ValidatorSource, validator_lines

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
DURATION_BUCKETS_S: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0,
)  # fmt: skip
TOTAL_STAGE: Final = "total"


class Metrics:
    """Counts what the rooms report. Every method is cheap; all but `page` are for the event loop."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry or CollectorRegistry()
        self.reference = ReferenceMetrics()
        self._validators: ValidatorSource = tuple
        self._bad_shares: Tally[str] = Tally()
        self._add_own_series()
        ProcessCollector(registry=self.registry)

    def _add_own_series(self) -> None:
        self._duration = self._histogram(
            "warpseal_aggregation_duration_seconds", "Time from request to answer", ["outcome"]
        )
        self._stages = self._histogram(
            "warpseal_aggregation_stage_duration_seconds", "Time spent in one stage", ["stage", "outcome"]
        )
        self._http = self._counter(
            "warpseal_http_requests", "HTTP requests answered, by route and status", ["route", "status"]
        )
        self._lookups = self._counter(
            "warpseal_cache_lookups", "Lookups in a cache, by result (hit, miss)", ["cache", "result"]
        )
        self._cache_bytes = self._gauge("warpseal_cache_bytes", "Bytes that a cache holds", ["cache"])
        self._node_calls = self._counter(
            "warpseal_node_calls", "Calls to upstream nodes, by method and outcome", ["method", "outcome"]
        )
        self._node_seconds = self._histogram(
            "warpseal_node_call_duration_seconds", "Time of one call to an upstream node", ["method"]
        )
        self._height = self._gauge("warpseal_proposed_height", "Latest proposed P-Chain height")
        self._connected_weight = self._gauge(
            "warpseal_connected_weight", "Weight of the connected validators of a subnet", ["subnet_id"]
        )
        self._total_weight = self._gauge("warpseal_total_weight", "Weight of all validators of a subnet", ["subnet_id"])
        self._connections = self._gauge("warpseal_peer_connections", "Peers whose handshake is complete")
        self._dials = self._counter("warpseal_peer_dials", "Dials of peers, by outcome", ["outcome"])
        self._newer_peers = self._gauge(
            "warpseal_newer_peers", "Connected peers that run a newer version than the advertised one"
        )
        self._clock_offset = self._gauge(
            "warpseal_clock_offset_seconds", "Median of the peers' clocks minus our own clock"
        )
        self._bad_share_count = self._counter("warpseal_bad_shares", "Shares that were found bad")
        build = self._gauge("warpseal_build_info", "Always 1; its label is the version", ["version"])
        build.labels(warpseal.__version__).set(1)

    def _histogram(self, name: str, text: str, labels: Sequence[str]) -> Histogram:
        return Histogram(name, text, labels, registry=self.registry, buckets=DURATION_BUCKETS_S)

    def _counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def aggregation_requested(self) -> None:
        """Count a request for an aggregation, whatever becomes of it."""
        self.reference.counts["agg_sigs_req_count"] += 1

    def aggregation_answered(self, duration_s: float) -> None:
        """Note how long a request took that was answered with a signed message."""
        self.reference.latency_ms = duration_s * 1000

    def observe_aggregation(self, outcome: str, stages: Mapping[str, float]) -> None:
        """Note one aggregation, failed ones too. stages: seconds by stage; "total" is the whole of it."""
        for stage, seconds in stages.items():
            if stage == TOTAL_STAGE:
                self._duration.labels(outcome).observe(seconds)
            else:
                self._stages.labels(stage, outcome).observe(seconds)

    def observe_http(self, route: str, status: int) -> None:
        """Count one HTTP answer. route: the template of the path, of which there are few."""
        self._http.labels(route, str(status)).inc()

    def observe_lookup(self, cache: str, *, hits: int = 0, misses: int = 0) -> None:
        """Count lookups in the cache `cache`, such as "shares", "answers" or "validator_sets"."""
        if hits:
            self._lookups.labels(cache, "hit").inc(hits)
        if misses:
            self._lookups.labels(cache, "miss").inc(misses)
        if cache == "shares":
            self.reference.counts["signature_cache_hits"] += hits
            self.reference.counts["signature_cache_misses"] += misses

    def set_cache_bytes(self, cache: str, size: int) -> None:
        """Note how many bytes the cache `cache` holds."""
        self._cache_bytes.labels(cache).set(size)

    def observe_call(self, method: str, outcome: str, seconds: float) -> None:
        """Count one call to an upstream node; outcome is "ok" or what went wrong."""
        self._node_calls.labels(method, outcome).inc()
        self._node_seconds.labels(method).observe(seconds)

    def set_proposed_height(self, height: int) -> None:
        """Note the proposed P-Chain height."""
        self._height.set(height)

    def set_connected_weight(self, subnet_id: str, connected: int, total: int) -> None:
        """Note how much of a subnet's weight is connected."""
        self._connected_weight.labels(subnet_id).set(connected)
        self._total_weight.labels(subnet_id).set(total)
        self.reference.connected_percent[subnet_id] = 100 * connected / total if total else 0.0

    def forget_subnet(self, subnet_id: str) -> None:
        """Drop the series of a subnet that is not followed any more."""
        for gauge in (self._connected_weight, self._total_weight):
            gauge.remove(subnet_id)
        self.reference.connected_percent.pop(subnet_id, None)

    def set_connections(self, count: int, newer: int = 0) -> None:
        """Note how many peers are connected, and how many of them run a newer version than we advertise."""
        self._connections.set(count)
        self._newer_peers.set(newer)

    def observe_dial(self, outcome: str) -> None:
        """Count one dial of a peer: "connected" or the class of failure."""
        self._dials.labels(outcome).inc()

    def set_clock_offset(self, seconds: float) -> None:
        """Note the median of the peers' clocks minus our own."""
        self._clock_offset.set(seconds)

    def count_bad_share(self, node_ids: Iterable[str]) -> None:
        """Count a bad share against the nodes of its key."""
        self._bad_share_count.inc()
        self._bad_shares.update(node_ids)
        self.reference.counts["invalid_signature_responses"] += 1

    def count_reference(self, name: str, amount: int = 1) -> None:
        """Count an event that only the reference's series know; `name` is without its prefix."""
        if name not in self.reference.counts:
            raise KeyError(name)
        self.reference.counts[name] += amount

    def watch_validators(self, source: ValidatorSource) -> None:
        """Take the series of validators from `source` at each scrape."""
        self._validators = source

    def snapshot(self) -> Callable[[], bytes]:
        """Return the page as it is now, yet to be written: call the result in a worker thread."""
        samples = sorted(self._validators(), key=lambda sample: sample.node_id)
        known = {sample.node_id for sample in samples}
        self._bad_shares = Tally({node: count for node, count in self._bad_shares.items() if node in known})
        bad_shares = dict(self._bad_shares)
        reference = list(self.reference.lines(samples))
        return lambda: self._page(samples, bad_shares, reference)

    def _page(
        self, samples: Sequence[ValidatorSample], bad_shares: Mapping[str, int], reference: Iterable[str]
    ) -> bytes:
        text = "".join([*validator_lines(samples, bad_shares), *reference])
        return generate_latest(self.registry) + text.encode()
