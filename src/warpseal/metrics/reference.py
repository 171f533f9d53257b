"""The reference aggregator's series under its own names, so that dashboards made for it keep working.

Source of truth: `/metrics` of reference aggregator 0.5.4 (tests/vectors/localnet/reference-aggregator.jsonl).
Its counters carry neither `_total` nor `_created`, which no Python library leaves out; so they are written here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from warpseal.metrics.collectors import MetricFamily, Rows, label
from warpseal.metrics.samples import MetricsSnapshot

_NS_PER_S: Final = 10**9
_SHARE_CACHE: Final = "shares"


@dataclass(slots=True)
class ReferenceCounts:
    """What only the reference's series know. latency_ms: of the latest request answered with a message."""

    requests: int = 0
    latency_ms: int = 0
    no_validator_set: int = 0
    too_little_connected: int = 0
    bad_shares: int = 0

    def lines(self, snapshot: MetricsSnapshot) -> Iterator[str]:
        """Yield the text of all the reference's series."""
        for family in _families(self):
            yield from family.lines(snapshot)


def _families(counts: ReferenceCounts) -> Iterator[MetricFamily]:
    yield _unmeasured("msgcreator_codec_compressed_count", "counter", "number of compressed messages")
    yield _unmeasured("msgcreator_codec_compressed_duration", "gauge", "time spent handling compressed messages")
    yield from _aggregator_families(counts)
    yield from _timeout_manager_families()


def _aggregator_families(counts: ReferenceCounts) -> Iterator[MetricFamily]:
    yield _aggregator(
        "agg_sigs_latency_ms",
        "gauge",
        "Latency of requests for aggregate signatures",
        lambda _: counts.latency_ms,
    )
    yield _aggregator(
        "agg_sigs_req_count",
        "counter",
        "Number of requests for aggregate signatures",
        lambda _: counts.requests,
    )
    yield _aggregator(
        "app_request_count",
        "counter",
        "Number of AppRequests that have been submitted to the network",
        lambda snapshot: snapshot.network.requests,
    )
    yield MetricFamily(
        "signature_aggregator_connected_stake_weight_percentage",
        "gauge",
        "The percentage of connected stake weight for a specific subnet",
        _connected_percent,
    )
    yield _aggregator(
        "failures_sending_to_node",
        "counter",
        "Number of failures to send a request to a validator node",
        lambda snapshot: sum(one.not_taken for one in snapshot.validators),
    )
    yield _aggregator(
        "failures_to_connect_to_sufficient_stake",
        "counter",
        "Number of incidents of connecting to some validators but not enough stake weight",
        lambda _: counts.too_little_connected,
    )
    yield _aggregator(
        "failures_to_get_validator_set",
        "counter",
        "Number of failed attempts to retrieve the validator set",
        lambda _: counts.no_validator_set,
    )
    yield _aggregator(
        "invalid_signature_responses",
        "counter",
        "Number of responses from validators that were not valid signatures",
        lambda _: counts.bad_shares,
    )
    yield _aggregator(
        "signature_cache_hits",
        "counter",
        "Number of signatures that were found in the cache",
        lambda snapshot: sum(one.hits for one in snapshot.caches if one.name == _SHARE_CACHE),
    )
    yield _aggregator(
        "signature_cache_misses",
        "counter",
        "Number of signatures that were not found in the cache",
        lambda snapshot: sum(one.misses for one in snapshot.caches if one.name == _SHARE_CACHE),
    )
    yield _aggregator(
        "validator_timeouts",
        "counter",
        "Number of timeouts while waiting for a validator to respond to a request",
        lambda snapshot: snapshot.network.unanswered,
    )


def _timeout_manager_families() -> Iterator[MetricFamily]:
    yield _single(
        "timeoutmanager_average_latency", "gauge", "Average network latency in nanoseconds", _average_latency_ns
    )
    yield _single(
        "timeoutmanager_current_timeout",
        "gauge",
        "Duration of current network timeout in nanoseconds",
        lambda snapshot: int(snapshot.network.request_timeout_s * _NS_PER_S),
    )
    yield _single(
        "timeoutmanager_pending_timeouts",
        "gauge",
        "Number of pending timeouts",
        lambda snapshot: snapshot.network.pending,
    )
    yield _single(
        "timeoutmanager_timeouts",
        "counter",
        "Number of timed out requests",
        lambda snapshot: snapshot.network.unanswered,
    )


def _single(name: str, kind: str, text: str, value: Callable[[MetricsSnapshot], int]) -> MetricFamily:
    return MetricFamily(name, kind, text, lambda snapshot: (("", value(snapshot)),))


def _aggregator(name: str, kind: str, text: str, value: Callable[[MetricsSnapshot], int]) -> MetricFamily:
    return _single(f"signature_aggregator_{name}", kind, text, value)


def _unmeasured(name: str, kind: str, text: str) -> MetricFamily:
    """Return a family without rows: dashboards find the name, and no false number."""
    return MetricFamily(name, kind, text, lambda snapshot: ())


def _connected_percent(snapshot: MetricsSnapshot) -> Rows:
    for one in snapshot.subnets:
        percent = 100 * one.connected_weight / one.total_weight if one.total_weight else 0.0
        yield label("subnetID", one.subnet_id), percent


def _average_latency_ns(snapshot: MetricsSnapshot) -> int:
    latencies = [one.latency_s for one in snapshot.validators if one.latency_s is not None]
    return int(fmean(latencies) * _NS_PER_S) if latencies else 0
