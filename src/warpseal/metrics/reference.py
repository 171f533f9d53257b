"""The reference aggregator's series under its own names, so that dashboards made for it keep working.

Source of truth: `/metrics` of reference aggregator 0.5.4 (tests/vectors/localnet/reference-aggregator.jsonl). Its
counters carry no `_total` and no `_created`, which no Python library writes; so the lines are written here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final

from warpseal.metrics.validators import ValidatorSample

PREFIX: Final = "signature_aggregator_"

COUNTERS: Final[Mapping[str, str]] = {
    "agg_sigs_req_count": "Number of requests for aggregate signatures",
    "app_request_count": "Number of AppRequests that have been submitted to the network",
    "failures_sending_to_node": "Number of failures to send a request to a validator node",
    "failures_to_connect_to_sufficient_stake": (
        "Number of incidents of connecting to some validators but not enough stake weight"
    ),
    "failures_to_get_validator_set": "Number of failed attempts to retrieve the validator set",
    "invalid_signature_responses": "Number of responses from validators that were not valid signatures",
    "signature_cache_hits": "Number of signatures that were found in the cache",
    "signature_cache_misses": "Number of signatures that were not found in the cache",
    "validator_timeouts": "Number of timeouts while waiting for a validator to respond to a request",
}
"""Counters of the aggregator by name without prefix, with the reference's help texts."""

_NS_PER_S: Final = 10**9


@dataclass(slots=True)
class ReferenceMetrics:
    """Values of the reference's series. latency_ms: of the latest request that was answered with a message.

    connected_percent: by subnet id. request_timeout_s: how long an unanswered request holds its place at a peer.
    """

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))
    latency_ms: float = 0.0
    connected_percent: dict[str, float] = field(default_factory=dict)
    request_timeout_s: float = 0.0
    pending_requests: int = 0

    def lines(self, validators: Sequence[ValidatorSample]) -> Iterator[str]:
        """Yield every series. validators: the connected ones."""
        yield from _header("msgcreator_codec_compressed_count", "counter", "number of compressed messages")
        yield from _header("msgcreator_codec_compressed_duration", "gauge", "time spent handling compressed messages")
        yield from _series(
            PREFIX + "agg_sigs_latency_ms",
            "gauge",
            "Latency of requests for aggregate signatures",
            int(self.latency_ms),
        )
        for name, text in COUNTERS.items():
            yield from _series(PREFIX + name, "counter", text, self.counts[name])
        yield from self._connected_weight()
        yield from self._timeout_manager(validators)

    def _connected_weight(self) -> Iterator[str]:
        name = PREFIX + "connected_stake_weight_percentage"
        yield from _header(name, "gauge", "The percentage of connected stake weight for a specific subnet")
        for subnet_id, percent in sorted(self.connected_percent.items()):
            yield f'{name}{{subnetID="{subnet_id}"}} {percent}\n'

    def _timeout_manager(self, validators: Sequence[ValidatorSample]) -> Iterator[str]:
        latencies = [sample.latency_s for sample in validators if sample.latency_s is not None]
        average_ns = int(fmean(latencies) * _NS_PER_S) if latencies else 0
        timeout_ns = int(self.request_timeout_s * _NS_PER_S)
        timeouts = self.counts["validator_timeouts"]
        yield from _series(
            "timeoutmanager_average_latency", "gauge", "Average network latency in nanoseconds", average_ns
        )
        yield from _series(
            "timeoutmanager_current_timeout",
            "gauge",
            "Duration of current network timeout in nanoseconds",
            timeout_ns,
        )
        yield from _series(
            "timeoutmanager_pending_timeouts", "gauge", "Number of pending timeouts", self.pending_requests
        )
        yield from _series("timeoutmanager_timeouts", "counter", "Number of timed out requests", timeouts)


def _header(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _series(name: str, kind: str, text: str, value: int) -> Iterator[str]:
    yield from _header(name, kind, text)
    yield f"{name} {value}\n"
