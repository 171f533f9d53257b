"""The values that a scrape reads from other packages, and the metrics that their fields declare.

They are not kept between scrapes: a thousand validators cost nothing then, and one that has left
has no series.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar, cast

from msgspec import Struct
from prometheus_client import Metric
from prometheus_client.samples import Sample as MetricRow

from warpseal.runtime.declared_fields import DeclaredField, DeclaredFieldsMeta

_ICM_TEXT: Final = (
    "ICM messages between indexed chains that are pending for more than 5 minutes; absent"
    " without any"
)

Labels = dict[str, str]


class _MetricField(DeclaredField, frozen=True):
    """A field whose value is a metric."""

    name: str
    text: str
    by: str


class Sample(Struct, metaclass=DeclaredFieldsMeta, frozen=True):
    """What a scrape reads of one thing."""


S = TypeVar("S", bound=Sample)


def metric(default: Any, name: str, text: str, by: str = "") -> Any:
    """Return a field of a Sample whose value is a metric.

    text: its help. A value of None has no row.

    by: the label of a value that is a mapping, with one row for each key, or of a text, with one
        row of value 1.
    """
    return _MetricField(default, name, text, by)


class ValidatorSample(Sample, frozen=True):
    """One wanted validator.

    latency_s: None before the first reply.
    """

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

    subnet_id: str
    connected_weight: int = metric(
        0, "warpseal_connected_weight", "Weight of the connected validators of a followed subnet"
    )
    total_weight: int = metric(
        0, "warpseal_total_weight", "Weight of all validators of a followed subnet"
    )


class NetworkSample(Sample, frozen=True):
    """All peers together; counters since the start.

    unanswered: requests that got no reply in time.
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


class CacheSample(Sample, frozen=True):
    """One cache: "shares", "answers", "validator_sets".

    Counters since the start; size_bytes is what it holds.

    signatures: in the answers that were found.
    """

    cache: str
    hits: int = 0
    misses: int = 0
    size_bytes: int = metric(0, "warpseal_cache_bytes", "Bytes that a cache holds")
    signatures: int = 0


class FollowerSample(Sample, frozen=True):
    """One followed chain. None: not known.

    height: of the newest block that was read; node_height: of the node's newest block.
    remaining_blocks: of the backfill and of gaps.
    blocks_read: since the start.
    stopped: why it stopped.
    """

    chain: str
    height: int | None = metric(
        None, "warpseal_follower_height", "Newest block of a chain that was read"
    )
    node_height: int | None = metric(
        None,
        "warpseal_follower_node_height",
        "Newest accepted block of a chain, as a node reports it",
    )
    lag_blocks: int | None = metric(
        None, "warpseal_follower_lag_blocks", "Accepted blocks above the newest one that was read"
    )
    remaining_blocks: int | None = metric(
        None,
        "warpseal_follower_remaining_blocks",
        "Blocks that the backfill still has to read; absent until its end is known",
    )
    blocks_read: int = metric(
        0, "warpseal_follower_blocks_read_total", "Blocks that this process has read"
    )
    is_leader: bool = metric(
        False,
        "warpseal_follower_leader",
        "1 if this process follows the chain, 0 if another one may",
    )
    stopped: str | None = metric(
        None,
        "warpseal_follower_stopped",
        "Always 1; its label is why following stopped; absent while it goes on",
        by="reason",
    )


class IndexSample(Sample, frozen=True):
    """One indexed chain, as the indexer last reported it.

    rate, eta_s: pace of catching up, None if no block is missing.
    pages: number of pages that this process read from the index.
    traced_height, documents, requests, icm_stuck: of EVM chains only; icm_stuck counts the stuck
        messages of ICM by destination.
    """

    chain: str
    height: int | None = metric(
        None, "warpseal_index_height", "Newest block of a chain that is indexed"
    )
    node_height: int | None = metric(
        None,
        "warpseal_index_node_height",
        "Newest accepted block of an indexed chain, as nodes report it",
    )
    first_height: int | None = metric(
        None,
        "warpseal_index_first_height",
        "First block of a chain that is indexed; 0 if none is missing",
    )
    lag_s: int | None = metric(
        None,
        "warpseal_index_lag_seconds",
        "Age of the newest indexed block; 0 if it is the node's newest",
    )
    rate: float | None = metric(
        None,
        "warpseal_index_blocks_per_second",
        "Blocks indexed in a second while a chain catches up; else absent",
    )
    eta_s: float | None = metric(
        None,
        "warpseal_index_eta_seconds",
        "Time until a chain has caught up at that rate; else absent",
    )
    stopped: str | None = metric(
        None,
        "warpseal_index_stopped",
        "Always 1; its label is why indexing a chain stopped; absent while it goes on",
        by="reason",
    )
    pages: Mapping[str, int] = metric(
        {}, "warpseal_index_pages_total", "Pages read from the index, by what they list", by="kind"
    )
    traced_height: int | None = metric(
        None,
        "warpseal_index_internal_height",
        "Block of an EVM chain up to which creations inside of transactions are complete; absent if"
        " none is traced",
    )
    documents: Mapping[str, int] = metric(
        {},
        "warpseal_index_documents_total",
        "Metadata documents of an EVM chain that the indexer fetched, by outcome",
        by="status",
    )
    requests: Mapping[str, int] = metric(
        {},
        "warpseal_index_requests_pending",
        "Requests of pages and clients that wait for the indexer of an EVM chain",
        by="kind",
    )
    icm_stuck: Mapping[str, int] = {}


class StoreSample(Sample, frozen=True):
    """The store; counters since the start.

    size_bytes, evictable_bytes: about half a minute old.
    """

    is_up: bool = metric(False, "warpseal_store_up", "1 while the store works, 0 while it is down")
    waiting_writes: int = metric(
        0, "warpseal_store_waiting_writes", "Writes that wait in memory to be committed"
    )
    dropped_writes: int = metric(
        0,
        "warpseal_store_dropped_writes_total",
        "Writes dropped because the store was down for too long",
    )
    size_bytes: int = metric(0, "warpseal_store_bytes", "Size of the store's database")
    evictable_bytes: int = metric(
        0, "warpseal_store_evictable_bytes", "Approximate size of what the store may evict"
    )
    evicted: int = metric(
        0, "warpseal_store_evicted_total", "Messages and addresses that the store has evicted"
    )


class UsageSample(Sample, frozen=True):
    """Metered calls of one method on one path, since the start."""

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


class L1ValidatorSample(Sample, frozen=True):
    """One L1 validator of a tracked subnet, among those whose balance runs out first."""

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

    margins: by basis.
    """

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


class HeightSample(Sample, frozen=True):
    """The proposed height of the P-Chain."""

    proposed_height: int | None = metric(
        None,
        "warpseal_proposed_height",
        "Latest proposed P-Chain height; absent while none is known",
    )


class CertificateSample(Sample, frozen=True):
    """The certificate of the daemon's identity."""

    expires_at: int | None = metric(
        None,
        "warpseal_certificate_expiration_timestamp_seconds",
        "Unix time at which the certificate of the daemon's identity expires; absent while there is"
        " none",
    )


class HealthSample(Sample, frozen=True):
    """The health checks.

    passes: by name, whether a check passed when it last ran.
    """

    passes: Mapping[str, bool] = metric(
        {},
        "warpseal_health_check_passes",
        "1 if a check of /ext/health passed when it last ran, else 0",
        by="check",
    )


class SampleSources:
    """The functions that a scrape calls on the event loop, by the type of the samples that they
    return.

    A series exists only while a source returns its sample.
    """

    def __init__(self) -> None:
        self._sources: dict[type[Sample], list[Callable[[], Iterable[Sample]]]] = {}

    def register(self, kind: type[S], read: Callable[[], Iterable[S]]) -> None:
        """Read these samples at each scrape, behind those of the same type that were registered
        before.
        """
        self._sources.setdefault(kind, []).append(read)

    def read(self, kind: type[S]) -> Iterator[S]:
        """Yield the samples of a type."""
        for read in self._sources.get(kind, ()):
            yield from cast("Iterable[S]", read())


class MetricsSnapshot(Sample, frozen=True):
    """The values of all sources at one scrape, a collector of prometheus_client.

    samples: by their type.
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
        """Yield the metrics; other threads may run between two of them."""
        yield from _declared(SubnetSample, self.of(SubnetSample), "subnet_id")
        yield from _declared(HeightSample, self.of(HeightSample))
        yield from _declared(CertificateSample, self.of(CertificateSample))
        yield from _declared(MetricsSnapshot, (self,))
        yield from _declared(HealthSample, self.of(HealthSample))
        lookups = [
            ({"cache": cache.cache, "result": result}, count)
            for cache in self.of(CacheSample)
            for result, count in (("hit", cache.hits), ("miss", cache.misses))
        ]
        yield build_metric("warpseal_cache_lookups_total", "Lookups in a cache", lookups)
        yield from _declared(CacheSample, self.of(CacheSample), "cache")
        yield from _declared(NetworkSample, (self.network,))
        yield from _declared(ValidatorSample, self.of(ValidatorSample), "node_id")
        yield from _declared(FollowerSample, self.of(FollowerSample), "chain")
        yield from _declared(IndexSample, self.of(IndexSample), "chain")
        pending = [
            ({"source": sample.chain, "destination": destination}, count)
            for sample in self.of(IndexSample)
            for destination, count in sample.icm_stuck.items()
        ]
        yield build_metric("warpseal_icm_pending_messages", _ICM_TEXT, pending)
        yield from _declared(StoreSample, self.of(StoreSample))
        yield from _declared(UsageSample, self.of(UsageSample), "path", "method")
        yield from _declared(
            L1ValidatorSample, self.of(L1ValidatorSample), "subnet_id", "node_id", "validation_id"
        )
        yield from _declared(L1QuorumSample, self.of(L1QuorumSample), "subnet_id")


SCRAPED: Final[tuple[type[Sample], ...]] = (
    SubnetSample,
    HeightSample,
    CertificateSample,
    HealthSample,
    CacheSample,
    NetworkSample,
    FollowerSample,
    IndexSample,
    StoreSample,
    UsageSample,
    L1ValidatorSample,
    L1QuorumSample,
)
"""The types of samples that a scrape reads behind those of the validators."""


def build_metric(name: str, text: str, rows: Iterable[tuple[Labels, float | None]]) -> Metric:
    """Return a metric with its rows that have a value.

    Its type is in its name: counters end with `_total`.
    """
    built = Metric(
        name.removesuffix("_total"), text, "counter" if name.endswith("_total") else "gauge"
    )
    built.samples = [MetricRow(name, labels, value) for labels, value in rows if value is not None]
    return built


def _declared(kind: DeclaredFieldsMeta, samples: Iterable[Any], *names: str) -> Iterator[Metric]:
    """Yield the metrics that the fields of a sample type declare.

    names: the fields that are its labels.
    """
    # The rows of one sample share their labels: there may be a thousand validators.
    labelled = [({name: getattr(sample, name) for name in names}, sample) for sample in samples]
    for field, declared in kind.declared_fields.items():
        time.sleep(0)
        rows = [(labels, getattr(sample, field)) for labels, sample in labelled]
        yield build_metric(
            declared.name, declared.text, _split(rows, declared.by) if declared.by else rows
        )


def _split(
    rows: Iterable[tuple[Labels, Mapping[str, float] | str | None]], by: str
) -> Iterator[tuple[Labels, float]]:
    """Yield a row for each key of each mapping, or for each text."""
    for labels, value in rows:
        counts = value if isinstance(value, Mapping) else {value: 1} if value else {}
        yield from (({**labels, by: key}, count) for key, count in sorted(counts.items()))
