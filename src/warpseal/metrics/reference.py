"""The reference aggregator's series under its own names, so that dashboards made for it keep working.

Source of truth: `/metrics` of reference aggregator 0.5.4 (tests/vectors/localnet/reference-aggregator.jsonl).
Its counters carry neither `_total` nor `_created`. prometheus_client adds `_total` to every counter, so the text of the
counters is written here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from warpseal.metrics.collectors import MetricFamily, Rows, single
from warpseal.metrics.samples import MetricsSnapshot

_NS_PER_S: Final = 10**9
_SHARE_CACHE: Final = "shares"


@dataclass(slots=True)
class ReferenceCounts:
    """Counts that only the reference's series show. latency_ms: of the latest request answered with a message."""

    requests: int = 0
    latency_ms: int = 0
    no_validator_set: int = 0
    too_little_connected: int = 0
    bad_shares: int = 0

    def gauges(self) -> tuple[MetricFamily, ...]:
        """Return the reference's gauges."""
        latency = single(
            "signature_aggregator_agg_sigs_latency_ms",
            "Latency of requests for aggregate signatures",
            lambda _: self.latency_ms,
        )
        return (latency, *_GAUGES)

    def counter_text(self, snapshot: MetricsSnapshot) -> str:
        """Return the exposition text of the reference's counters."""
        rows = (f"{_header(name, text)}{name} {value(self, snapshot)}\n" for name, text, value in _COUNTERS)
        return _header("msgcreator_codec_compressed_count", "number of compressed messages") + "".join(rows)


def _header(name: str, text: str) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} counter\n"


def _connected_percent(snapshot: MetricsSnapshot) -> Rows:
    for subnet in snapshot.subnets:
        percent = 100 * subnet.connected_weight / subnet.total_weight if subnet.total_weight else 0.0
        yield (subnet.subnet_id,), percent


def _average_latency_ns(snapshot: MetricsSnapshot) -> int:
    latencies = [validator.latency_s for validator in snapshot.validators if validator.latency_s is not None]
    return int(fmean(latencies) * _NS_PER_S) if latencies else 0


_GAUGES: Final = (
    # Not measured: dashboards find the name, and no false number.
    MetricFamily(
        "msgcreator_codec_compressed_duration", "time spent handling compressed messages", (), lambda snapshot: ()
    ),
    MetricFamily(
        "signature_aggregator_connected_stake_weight_percentage",
        "The percentage of connected stake weight for a specific subnet",
        ("subnetID",),
        _connected_percent,
    ),
    single("timeoutmanager_average_latency", "Average network latency in nanoseconds", _average_latency_ns),
    single(
        "timeoutmanager_current_timeout",
        "Duration of current network timeout in nanoseconds",
        lambda snapshot: int(snapshot.network.request_timeout_s * _NS_PER_S),
    ),
    single("timeoutmanager_pending_timeouts", "Number of pending timeouts", lambda snapshot: snapshot.network.pending),
)
_COUNTERS: Final[tuple[tuple[str, str, Callable[[ReferenceCounts, MetricsSnapshot], int]], ...]] = (
    (
        "signature_aggregator_agg_sigs_req_count",
        "Number of requests for aggregate signatures",
        lambda counts, _: counts.requests,
    ),
    (
        "signature_aggregator_app_request_count",
        "Number of AppRequests that have been submitted to the network",
        lambda _, snapshot: snapshot.network.requests,
    ),
    (
        "signature_aggregator_failures_sending_to_node",
        "Number of failures to send a request to a validator node",
        lambda _, snapshot: sum(validator.not_taken for validator in snapshot.validators),
    ),
    (
        "signature_aggregator_failures_to_connect_to_sufficient_stake",
        "Number of incidents of connecting to some validators but not enough stake weight",
        lambda counts, _: counts.too_little_connected,
    ),
    (
        "signature_aggregator_failures_to_get_validator_set",
        "Number of failed attempts to retrieve the validator set",
        lambda counts, _: counts.no_validator_set,
    ),
    (
        "signature_aggregator_invalid_signature_responses",
        "Number of responses from validators that were not valid signatures",
        lambda counts, _: counts.bad_shares,
    ),
    (
        "signature_aggregator_signature_cache_hits",
        "Number of signatures that were found in the cache",
        lambda _, snapshot: sum(cache.hits for cache in snapshot.caches if cache.name == _SHARE_CACHE),
    ),
    (
        "signature_aggregator_signature_cache_misses",
        "Number of signatures that were not found in the cache",
        lambda _, snapshot: sum(cache.misses for cache in snapshot.caches if cache.name == _SHARE_CACHE),
    ),
    (
        "signature_aggregator_validator_timeouts",
        "Number of timeouts while waiting for a validator to respond to a request",
        lambda _, snapshot: snapshot.network.unanswered,
    ),
    ("timeoutmanager_timeouts", "Number of timed out requests", lambda _, snapshot: snapshot.network.unanswered),
)
