"""Samples, which a scrape reads from the parts of the daemon, and the metrics that they declare.

A part declares a Sample, whose fields are metrics, and registers a function that returns such
samples. Samples are not kept between scrapes: a thousand validators cost nothing then, and a
validator that has left has no series. This module has the samples that the series of the reference
read as well, and those of usage.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeVar, cast

from msgspec import Struct
from prometheus_client import Metric
from prometheus_client.samples import Sample as MetricRow

from warpseal.runtime.declared_fields import DeclaredField, DeclaredFieldsMeta

Labels = dict[str, str]


class _MetricField(DeclaredField, frozen=True):
    """A field whose value is a metric."""

    name: str
    text: str
    by: str


class Sample(Struct, metaclass=DeclaredFieldsMeta, frozen=True):
    """The values of one validator, chain, or part of the daemon at a scrape.

    labels: fields that are the labels of all metrics of the sample.
    """

    labels: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def metrics(cls, samples: Sequence[Any]) -> Iterator[Metric]:
        """Yield the metrics of all samples of this type; other threads may run in between."""
        # The rows of one sample share their labels: there may be a thousand validators.
        labelled = [
            ({name: getattr(sample, name) for name in cls.labels}, sample) for sample in samples
        ]
        for field, declared in cls.declared_fields.items():
            time.sleep(0)
            rows = [(labels, getattr(sample, field)) for labels, sample in labelled]
            values = _split(rows, declared.by) if declared.by else rows
            yield build_metric(declared.name, declared.text, values)


S = TypeVar("S", bound=Sample)


def metric(default: Any, name: str, text: str, by: str = "") -> Any:
    """Return a field of a Sample whose value is a metric. A value of None has no row.

    text: help of the metric.
    by: label of a value that is a mapping, which has a row for each key, or that is a text, which
        has one row of value 1.
    """
    return _MetricField(default, name, text, by)


class ValidatorSample(Sample, frozen=True):
    """One validator to which the daemon keeps a connection.

    latency_s: time of a response; None before the first one.
    """

    labels = ("node_id",)

    node_id: str
    requests: int = metric(0, "warpseal_validator_requests_total", "Requests sent to a validator")
    responses: int = metric(
        0, "warpseal_validator_answers_total", "Responses of a validator that were no refusal"
    )
    refusals: int = metric(0, "warpseal_validator_refusals_total", "Refusals of a validator")
    not_taken: int = metric(
        0,
        "warpseal_validator_not_taken_total",
        "Requests that were dropped because too many waited for the validator",
    )
    latency_s: float | None = metric(
        None,
        "warpseal_validator_latency_seconds",
        "Time that a validator takes to respond, recent responses counting most",
    )


class SubnetSample(Sample, frozen=True):
    """One followed subnet."""

    labels = ("subnet_id",)

    subnet_id: str
    connected_weight: int = metric(
        0, "warpseal_connected_weight", "Weight of the connected validators of a followed subnet"
    )
    total_weight: int = metric(
        0, "warpseal_total_weight", "Weight of all validators of a followed subnet"
    )


class NetworkSample(Sample, frozen=True):
    """All peers together; counters since the start.

    unanswered: number of requests without a reply in time.
    """

    connections: int = metric(0, "warpseal_peer_connections", "Peers whose handshake is complete")
    dials: int = metric(0, "warpseal_peer_dials_total", "Dials of peers")
    dial_failures: Mapping[str, int] = metric(
        {},
        "warpseal_peer_dial_failures_total",
        "Dials that made no connection, by reason",
        by="reason",
    )
    endings: Mapping[str, int] = metric(
        {}, "warpseal_peer_disconnects_total", "Connections that ended, by reason", by="reason"
    )
    newer_peers: int = metric(
        0,
        "warpseal_newer_peers",
        "Connected peers that run a newer version than the advertised one",
    )
    newest_version: str = metric(
        "",
        "warpseal_newest_peer_version_info",
        "Always 1; its label is the newest version of any peer",
        by="version",
    )
    untested_upgrades: Mapping[str, int] = metric(
        {},
        "warpseal_untested_upgrade_timestamp_seconds",
        "Time of a network upgrade that this version was not tested with, from 30 days before"
        " it on",
        by="upgrade",
    )
    clock_offset_s: float | None = metric(
        None,
        "warpseal_clock_offset_seconds",
        "Median of the peers' clocks minus our own; absent while too few are known",
    )
    requests: int = metric(0, "warpseal_peer_requests_total", "Requests sent to peers")
    pending: int = metric(
        0, "warpseal_peer_requests_pending", "Requests to peers that wait for a response"
    )
    unanswered: int = 0
    request_timeout_s: float = 0.0

    @classmethod
    def metrics(cls, samples: Sequence[NetworkSample]) -> Iterator[Metric]:
        """Yield the metrics, zeros while there is no network."""
        yield from super().metrics(samples or (NetworkSample(),))


class CacheSample(Sample, frozen=True):
    """One cache: "shares", "answers" or "validator_sets". Its counters begin with the process.

    signatures: number of signatures in the answers that lookups returned.
    """

    labels = ("cache",)

    cache: str
    hits: int = 0
    misses: int = 0
    size_bytes: int = metric(0, "warpseal_cache_bytes", "Bytes that a cache holds")
    signatures: int = 0

    @classmethod
    def metrics(cls, samples: Sequence[CacheSample]) -> Iterator[Metric]:
        """Yield the lookups by result, then the metrics of the fields."""
        lookups = [
            ({"cache": sample.cache, "result": result}, count)
            for sample in samples
            for result, count in (("hit", sample.hits), ("miss", sample.misses))
        ]
        yield build_metric("warpseal_cache_lookups_total", "Lookups in a cache", lookups)
        yield from super().metrics(samples)


class UsageSample(Sample, frozen=True):
    """Metered calls of one method on one path, since the start."""

    labels = ("path", "method")

    path: str
    method: str
    calls: Mapping[str, int] = metric(
        {}, "warpseal_usage_calls_total", "Metered calls, by path, method and outcome", by="outcome"
    )
    credits: int = metric(0, "warpseal_usage_credits_total", "Credits of metered calls")
    credits_wasted: int = metric(
        0, "warpseal_usage_credits_wasted_total", "Credits of metered calls that were invalid"
    )
    time_s: float = metric(
        0.0,
        "warpseal_usage_call_seconds_total",
        "Time from reading metered calls to the start of their responses",
    )


_LISTED: Final[tuple[type[Sample], ...]] = (
    SubnetSample,
    CacheSample,
    NetworkSample,
    ValidatorSample,
    UsageSample,
)
"""Types whose metrics the page lists also while no function is registered for them."""


class SampleRegistry:
    """The functions that a scrape calls on the event loop, by the type of the samples that they
    return.

    A series exists only while a function returns its sample.
    """

    def __init__(self) -> None:
        self._readers: dict[type[Sample], list[Callable[[], Iterable[Sample]]]] = {
            kind: [] for kind in _LISTED
        }

    @property
    def kinds(self) -> tuple[type[Sample], ...]:
        """The types of samples, in the order of the page."""
        return tuple(self._readers)

    def register(self, kind: type[S], read: Callable[[], Iterable[S]]) -> None:
        """Read these samples at each scrape, behind those of the same type that were registered
        before.
        """
        self._readers.setdefault(kind, []).append(read)

    def read(self, kind: type[S]) -> Iterator[S]:
        """Yield the samples of a type."""
        for read in self._readers.get(kind, ()):
            yield from cast("Iterable[S]", read())


class MetricsSnapshot(Sample, frozen=True):
    """All samples of one scrape, a collector of prometheus_client.

    samples: samples of each type, in the order of the page.
    """

    samples: Mapping[type[Sample], tuple[Sample, ...]]
    paused_webhooks: int | None = metric(
        None,
        "warpseal_paused_webhooks",
        "Webhooks that are paused after a day of failures; absent without a sender",
    )
    bad_shares: Mapping[str, int] = metric(
        {},
        "warpseal_validator_bad_shares_total",
        "Shares of a validator that were found bad; absent without any",
        by="node_id",
    )

    def of(self, kind: type[S]) -> tuple[S, ...]:
        """Return the samples of a type."""
        return cast("tuple[S, ...]", self.samples.get(kind, ()))

    @property
    def network(self) -> NetworkSample:
        """The connections to validators; zeros while there is no network."""
        return next(iter(self.of(NetworkSample)), NetworkSample())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all samples; other threads may run in between."""
        for kind, samples in self.samples.items():
            yield from kind.metrics(samples)
        yield from MetricsSnapshot.metrics((self,))


def build_metric(name: str, text: str, rows: Iterable[tuple[Labels, float | None]]) -> Metric:
    """Return a metric with its rows that have a value.

    Its type is in its name: counters end with `_total`.
    """
    built = Metric(
        name.removesuffix("_total"), text, "counter" if name.endswith("_total") else "gauge"
    )
    built.samples = [MetricRow(name, labels, value) for labels, value in rows if value is not None]
    return built


def _split(
    rows: Iterable[tuple[Labels, Mapping[str, float] | str | None]], by: str
) -> Iterator[tuple[Labels, float]]:
    """Yield a row for each key of each mapping, or for each text."""
    for labels, value in rows:
        counts = value if isinstance(value, Mapping) else {value: 1} if value else {}
        yield from (({**labels, by: key}, count) for key, count in sorted(counts.items()))
