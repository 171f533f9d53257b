"""The reference aggregator's series under its own names, so that dashboards made for it keep
working.

Source of truth: `/metrics` of reference aggregator 0.5.4
(tests/vectors/localnet/reference-aggregator.jsonl).
Its counters carry neither `_total` nor `_created`. prometheus_client adds `_total` to every
counter, so the text of the counters is written here.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean
from typing import Final

from msgspec import Struct
from prometheus_client import Metric

from warpseal.metrics.samples import (
    CacheSample,
    MetricsSnapshot,
    SubnetSample,
    ValidatorSample,
    build_metric,
)

_NS_PER_S: Final = 10**9
_SHARE_CACHE: Final = "shares"


class ReferenceCounts(Struct):
    """Counts that only the reference's series show.

    latency_ms: duration of the latest request that got a message.
    """

    requests: int = 0
    latency_ms: int = 0
    no_validator_set: int = 0
    too_little_connected: int = 0
    bad_shares: int = 0


class ReferenceSeries(Struct, frozen=True):
    """The series of one scrape, a collector of prometheus_client."""

    counts: ReferenceCounts
    snapshot: MetricsSnapshot

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges."""
        network = self.snapshot.network
        # It is not measured: dashboards find the name, and no false number.
        yield build_metric(
            "msgcreator_codec_compressed_duration", "time spent handling compressed messages", ()
        )
        yield build_metric(
            "signature_aggregator_connected_stake_weight_percentage",
            "The percentage of connected stake weight for a specific subnet",
            [
                (
                    {"subnetID": subnet.subnet_id},
                    100 * subnet.connected_weight / (subnet.total_weight or 1),
                )
                for subnet in self.snapshot.of(SubnetSample)
            ],
        )
        latencies = [
            sample.latency_s
            for sample in self.snapshot.of(ValidatorSample)
            if sample.latency_s is not None
        ]
        average_ns = int(fmean(latencies) * _NS_PER_S) if latencies else 0
        for name, text, value in (
            (
                "signature_aggregator_agg_sigs_latency_ms",
                "Latency of requests for aggregate signatures",
                self.counts.latency_ms,
            ),
            (
                "timeoutmanager_average_latency",
                "Average network latency in nanoseconds",
                average_ns,
            ),
            (
                "timeoutmanager_current_timeout",
                "Duration of current network timeout in nanoseconds",
                int(network.request_timeout_s * _NS_PER_S),
            ),
            ("timeoutmanager_pending_timeouts", "Number of pending timeouts", network.pending),
        ):
            yield build_metric(name, text, [({}, value)])

    def counter_text(self) -> str:
        """Return the exposition text of the counters."""
        counts, network = self.counts, self.snapshot.network
        shares = [cache for cache in self.snapshot.of(CacheSample) if cache.cache == _SHARE_CACHE]
        aggregator_counters = (
            ("agg_sigs_req_count", "Number of requests for aggregate signatures", counts.requests),
            (
                "app_request_count",
                "Number of AppRequests that have been submitted to the network",
                network.requests,
            ),
            (
                "failures_sending_to_node",
                "Number of failures to send a request to a validator node",
                sum(validator.not_taken for validator in self.snapshot.of(ValidatorSample)),
            ),
            (
                "failures_to_connect_to_sufficient_stake",
                "Number of incidents of connecting to some validators but not enough stake weight",
                counts.too_little_connected,
            ),
            (
                "failures_to_get_validator_set",
                "Number of failed attempts to retrieve the validator set",
                counts.no_validator_set,
            ),
            (
                "invalid_signature_responses",
                "Number of responses from validators that were not valid signatures",
                counts.bad_shares,
            ),
            (
                "signature_cache_hits",
                "Number of signatures that were found in the cache",
                # The reference aggregates again for each request; here the finished message has the
                # signatures.
                sum(cache.hits for cache in shares)
                + sum(cache.signatures for cache in self.snapshot.of(CacheSample)),
            ),
            (
                "signature_cache_misses",
                "Number of signatures that were not found in the cache",
                sum(cache.misses for cache in shares),
            ),
            (
                "validator_timeouts",
                "Number of timeouts while waiting for a validator to respond to a request",
                network.unanswered,
            ),
        )
        return "".join(
            (
                _header("msgcreator_codec_compressed_count", "number of compressed messages"),
                *(
                    _counter(f"signature_aggregator_{name}", text, value)
                    for name, text, value in aggregator_counters
                ),
                _counter(
                    "timeoutmanager_timeouts", "Number of timed out requests", network.unanswered
                ),
            )
        )


def _header(name: str, text: str) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} counter\n"


def _counter(name: str, text: str, value: int) -> str:
    return f"{_header(name, text)}{name} {value}\n"
