"""The values that a scrape reads from other packages, and the metrics that their fields declare.

They are not kept between scrapes: a thousand validators cost nothing then, and one that has left has no series.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import cache
from typing import Annotated, Any, NamedTuple, get_type_hints

from msgspec import Struct, field
from prometheus_client import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

Labels = dict[str, str]


class MetricField(NamedTuple):
    """Annotates a field whose value is a metric. text: its help. A value of None has no row.

    by: the label of a value that is a mapping, with one row for each key, or of a text, with one row of value 1.
    """

    name: str
    text: str
    by: str = ""


class ValidatorSample(Struct, frozen=True):
    """One wanted validator. latency_s: None before the first reply."""

    node_id: str
    requests: Annotated[int, MetricField("warpseal_validator_requests_total", "Requests sent to a validator")] = 0
    answers: Annotated[
        int, MetricField("warpseal_validator_answers_total", "Answers of a validator that were no refusal")
    ] = 0
    refusals: Annotated[int, MetricField("warpseal_validator_refusals_total", "Refusals of a validator")] = 0
    not_taken: Annotated[
        int,
        MetricField(
            "warpseal_validator_not_taken_total", "Requests that were dropped because too many waited for the validator"
        ),
    ] = 0
    latency_s: Annotated[
        float | None,
        MetricField(
            "warpseal_validator_latency_seconds", "Time that a validator takes to answer, recent answers counting most"
        ),
    ] = None


class SubnetSample(Struct, frozen=True):
    """One followed subnet."""

    subnet_id: str
    connected_weight: Annotated[
        int, MetricField("warpseal_connected_weight", "Weight of the connected validators of a followed subnet")
    ] = 0
    total_weight: Annotated[
        int, MetricField("warpseal_total_weight", "Weight of all validators of a followed subnet")
    ] = 0


class NetworkSample(Struct, frozen=True):
    """All peers together; counters since the start. unanswered: requests that got no reply in time."""

    connections: Annotated[int, MetricField("warpseal_peer_connections", "Peers whose handshake is complete")] = 0
    dials: Annotated[int, MetricField("warpseal_peer_dials_total", "Dials of peers")] = 0
    dial_failures: Annotated[
        Mapping[str, int],
        MetricField("warpseal_peer_dial_failures_total", "Dials that made no connection, by reason", by="reason"),
    ] = field(default_factory=dict)
    endings: Annotated[
        Mapping[str, int],
        MetricField("warpseal_peer_disconnects_total", "Connections that ended, by reason", by="reason"),
    ] = field(default_factory=dict)
    newer_peers: Annotated[
        int, MetricField("warpseal_newer_peers", "Connected peers that run a newer version than the advertised one")
    ] = 0
    newest_version: Annotated[
        str,
        MetricField(
            "warpseal_newest_peer_version_info", "Always 1; its label is the newest version of any peer", by="version"
        ),
    ] = ""
    clock_offset_s: Annotated[
        float | None,
        MetricField(
            "warpseal_clock_offset_seconds", "Median of the peers' clocks minus our own; absent while too few are known"
        ),
    ] = None
    requests: Annotated[int, MetricField("warpseal_peer_requests_total", "Requests sent to peers")] = 0
    pending: Annotated[
        int, MetricField("warpseal_peer_requests_pending", "Requests to peers that wait for an answer")
    ] = 0
    unanswered: int = 0
    request_timeout_s: float = 0.0


class CacheSample(Struct, frozen=True):
    """One cache: "shares", "answers", "validator_sets". Counters since the start; size_bytes is what it holds."""

    cache: str
    hits: int = 0
    misses: int = 0
    size_bytes: Annotated[int, MetricField("warpseal_cache_bytes", "Bytes that a cache holds")] = 0


class FollowerSample(Struct, frozen=True):
    """One followed chain; `l1.follower.follower.FollowerStatus` adds what is no metric. None: not known.

    height: of the newest block that was read; node_height: of the node's newest block. remaining_blocks: of the
    backfill and of gaps. blocks_read: since the start. stopped: the reason of a fault.
    """

    chain: str
    height: Annotated[int | None, MetricField("warpseal_follower_height", "Newest block of a chain that was read")] = (
        None
    )
    node_height: Annotated[
        int | None,
        MetricField("warpseal_follower_node_height", "Newest accepted block of a chain, as a node reports it"),
    ] = None
    lag_blocks: Annotated[
        int | None, MetricField("warpseal_follower_lag_blocks", "Accepted blocks above the newest one that was read")
    ] = None
    remaining_blocks: Annotated[
        int | None,
        MetricField(
            "warpseal_follower_remaining_blocks",
            "Blocks that the backfill still has to read; absent until its end is known",
        ),
    ] = None
    blocks_read: Annotated[
        int, MetricField("warpseal_follower_blocks_read_total", "Blocks that this process has read")
    ] = 0
    is_leader: Annotated[
        bool, MetricField("warpseal_follower_leader", "1 if this process follows the chain, 0 if another one may")
    ] = False
    stopped: Annotated[
        str | None,
        MetricField(
            "warpseal_follower_stopped",
            "Always 1; its label is why following stopped; absent while it goes on",
            by="reason",
        ),
    ] = None


class IndexSample(Struct, frozen=True):
    """One indexed chain, as the indexer last reported it; one without blocks has None everywhere.

    rate, eta_s: None if there is nothing to catch up with. pages: read from the index by this process. waiting: what
    the chain waits for, else "". Only EVM chains have an evm_chain_id, traced_height, trace_gap, documents and
    requests.
    """

    chain: str
    height: Annotated[int | None, MetricField("warpseal_index_height", "Newest block of a chain that is indexed")] = (
        None
    )
    node_height: Annotated[
        int | None,
        MetricField("warpseal_index_node_height", "Newest accepted block of an indexed chain, as nodes report it"),
    ] = None
    first_height: Annotated[
        int | None,
        MetricField("warpseal_index_first_height", "First block of a chain that is indexed; 0 if none is missing"),
    ] = None
    lag_s: Annotated[
        int | None,
        MetricField("warpseal_index_lag_seconds", "Age of the newest indexed block; 0 if it is the node's newest"),
    ] = None
    rate: Annotated[
        float | None,
        MetricField(
            "warpseal_index_blocks_per_second", "Blocks indexed in a second while a chain catches up; else absent"
        ),
    ] = None
    eta_s: Annotated[
        float | None,
        MetricField("warpseal_index_eta_seconds", "Time until a chain has caught up at that rate; else absent"),
    ] = None
    stopped: Annotated[
        str | None,
        MetricField(
            "warpseal_index_stopped",
            "Always 1; its label is why indexing a chain stopped; absent while it goes on",
            by="reason",
        ),
    ] = None
    pages: Annotated[
        Mapping[str, int],
        MetricField("warpseal_index_pages_total", "Pages read from the index, by what they list", by="kind"),
    ] = field(default_factory=dict)
    waiting: str = ""
    evm_chain_id: int | None = None
    trace_gap: int | None = None
    traced_height: Annotated[
        int | None,
        MetricField(
            "warpseal_index_internal_height",
            "Block of an EVM chain up to which creations inside of transactions are complete; absent if none is traced",
        ),
    ] = None
    documents: Annotated[
        Mapping[str, int],
        MetricField(
            "warpseal_index_documents_total",
            "Metadata documents of an EVM chain that the indexer fetched, by outcome",
            by="status",
        ),
    ] = field(default_factory=dict)
    requests: Annotated[
        Mapping[str, int],
        MetricField(
            "warpseal_index_requests_pending",
            "Requests of pages and clients that wait for the indexer of an EVM chain",
            by="kind",
        ),
    ] = field(default_factory=dict)


class StoreSample(Struct, frozen=True):
    """The store; counters since the start. size_bytes, evictable_bytes: about half a minute old."""

    is_up: Annotated[bool, MetricField("warpseal_store_up", "1 while the store works, 0 while it is down")] = False
    waiting_writes: Annotated[
        int, MetricField("warpseal_store_waiting_writes", "Writes that wait in memory to be committed")
    ] = 0
    dropped_writes: Annotated[
        int,
        MetricField("warpseal_store_dropped_writes_total", "Writes dropped because the store was down for too long"),
    ] = 0
    size_bytes: Annotated[int, MetricField("warpseal_store_bytes", "Size of the store's database")] = 0
    evictable_bytes: Annotated[
        int, MetricField("warpseal_store_evictable_bytes", "Approximate size of what the store may evict")
    ] = 0
    evicted: Annotated[
        int, MetricField("warpseal_store_evicted_total", "Messages and addresses that the store has evicted")
    ] = 0


class UsageSample(Struct, frozen=True):
    """Metered calls of one method on one path, since the start."""

    path: str
    method: str
    calls: Annotated[
        Mapping[str, int],
        MetricField("warpseal_usage_calls_total", "Metered calls, by path, method and outcome", by="outcome"),
    ] = field(default_factory=dict)
    credits: Annotated[int, MetricField("warpseal_usage_credits_total", "Credits of metered calls")] = 0
    credits_wasted: Annotated[
        int, MetricField("warpseal_usage_credits_wasted_total", "Credits of metered calls that were invalid")
    ] = 0
    time_s: Annotated[
        float,
        MetricField(
            "warpseal_usage_call_seconds_total", "Time from reading metered calls to the start of their responses"
        ),
    ] = 0.0


class L1ValidatorSample(Struct, frozen=True):
    """One L1 validator of a tracked subnet, among those whose balance runs out first."""

    subnet_id: str
    node_id: str
    validation_id: str
    seconds_left: Annotated[
        int,
        MetricField(
            "warpseal_l1_validator_seconds_left",
            "Seconds until the balance of an L1 validator is used up, of the 20 shortest of a tracked subnet",
        ),
    ] = 0


class L1QuorumSample(Struct, frozen=True):
    """The quorum of a tracked L1. margins: by basis."""

    subnet_id: str
    margins: Annotated[
        Mapping[str, float],
        MetricField(
            "warpseal_l1_quorum_margin_ratio",
            "Weight above the required one over the total, of validators that are active, and that answered in a day",
            by="basis",
        ),
    ] = field(default_factory=dict)
    seconds_left: Annotated[
        int | None,
        MetricField(
            "warpseal_l1_quorum_seconds_left",
            "Seconds until the quorum of a tracked L1 is impossible; absent if that is more than ten years ahead",
        ),
    ] = None


class MetricSources(Struct, frozen=True):
    """The functions that a scrape calls on the event loop. A series exists only while its source returns it.

    refresh: called first.
    """

    validators: Callable[[], Iterable[ValidatorSample]] = tuple
    subnets: Callable[[], Iterable[SubnetSample]] = tuple
    network: Callable[[], NetworkSample] = NetworkSample
    caches: Callable[[], Iterable[CacheSample]] = tuple
    proposed_height: Callable[[], int | None] = lambda: None
    followers: Callable[[], Iterable[FollowerSample]] = tuple
    indexed: Callable[[], Iterable[IndexSample]] = tuple
    store: Callable[[], StoreSample | None] = lambda: None
    usage: Callable[[], Iterable[UsageSample]] = tuple
    l1_validators: Callable[[], Iterable[L1ValidatorSample]] = tuple
    l1_quorums: Callable[[], Iterable[L1QuorumSample]] = tuple
    health: Callable[[], Mapping[str, bool]] = dict
    certificate_expires_at: Callable[[], int | None] = lambda: None
    refresh: Callable[[], Awaitable[None]] | None = None


@dataclass(frozen=True, slots=True)
class MetricsSnapshot(Collector):
    """The values of all sources at one scrape."""

    validators: tuple[ValidatorSample, ...]
    subnets: tuple[SubnetSample, ...]
    network: NetworkSample
    caches: tuple[CacheSample, ...]
    followers: tuple[FollowerSample, ...]
    indexed: tuple[IndexSample, ...]
    store: StoreSample | None
    usage: tuple[UsageSample, ...]
    l1_validators: tuple[L1ValidatorSample, ...]
    l1_quorums: tuple[L1QuorumSample, ...]
    proposed_height: Annotated[
        int | None,
        MetricField("warpseal_proposed_height", "Latest proposed P-Chain height; absent while none is known"),
    ] = None
    certificate_expires_at: Annotated[
        int | None,
        MetricField(
            "warpseal_certificate_expiration_timestamp_seconds",
            "Unix time at which the certificate of the daemon's identity expires; absent while there is none",
        ),
    ] = None
    bad_shares: Annotated[
        Mapping[str, int],
        MetricField(
            "warpseal_validator_bad_shares_total",
            "Shares of a validator that were found bad; absent without any",
            by="node_id",
        ),
    ] = dataclass_field(default_factory=dict)
    health: Annotated[
        Mapping[str, bool],
        MetricField(
            "warpseal_health_check_passes", "1 if a check of /ext/health passed when it last ran, else 0", by="check"
        ),
    ] = dataclass_field(default_factory=dict)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; other threads may run between two of them."""
        yield from _declared(SubnetSample, self.subnets, "subnet_id")
        yield from _declared(MetricsSnapshot, (self,))
        lookups = [
            ({"cache": cache.cache, "result": result}, count)
            for cache in self.caches
            for result, count in (("hit", cache.hits), ("miss", cache.misses))
        ]
        yield build_metric("warpseal_cache_lookups_total", "Lookups in a cache", lookups)
        yield from _declared(CacheSample, self.caches, "cache")
        yield from _declared(NetworkSample, (self.network,))
        yield from _declared(ValidatorSample, self.validators, "node_id")
        yield from _declared(FollowerSample, self.followers, "chain")
        yield from _declared(IndexSample, self.indexed, "chain")
        yield from _declared(StoreSample, () if self.store is None else (self.store,))
        yield from _declared(UsageSample, self.usage, "path", "method")
        yield from _declared(L1ValidatorSample, self.l1_validators, "subnet_id", "node_id", "validation_id")
        yield from _declared(L1QuorumSample, self.l1_quorums, "subnet_id")


def build_metric(name: str, text: str, rows: Iterable[tuple[Labels, float | None]]) -> Metric:
    """Return a metric with its rows that have a value. Its type is in its name: counters end with `_total`."""
    built = Metric(name.removesuffix("_total"), text, "counter" if name.endswith("_total") else "gauge")
    built.samples = [Sample(name, labels, value) for labels, value in rows if value is not None]
    return built


def _declared(kind: type[object], samples: Iterable[Any], *names: str) -> Iterator[Metric]:
    """Yield the metrics that the fields of a sample type declare. names: the fields that are its labels."""
    # The rows of one sample share their labels: there may be a thousand validators.
    labelled = [({name: getattr(sample, name) for name in names}, sample) for sample in samples]
    for field_name, (name, text, by) in _metric_fields(kind).items():  # type: ignore[arg-type]
        time.sleep(0)
        rows = [(labels, getattr(sample, field_name)) for labels, sample in labelled]
        yield build_metric(name, text, _split(rows, by) if by else rows)


@cache
def _metric_fields(kind: type[object]) -> Mapping[str, MetricField]:
    """Return the fields of a sample type that are metrics, in their order."""
    annotations = get_type_hints(kind, include_extras=True)
    return {
        name: described
        for name, annotation in annotations.items()
        for described in getattr(annotation, "__metadata__", ())
    }


def _split(rows: Iterable[tuple[Labels, Mapping[str, float] | str | None]], by: str) -> Iterator[tuple[Labels, float]]:
    """Yield a row for each key of each mapping, or for each text."""
    for labels, value in rows:
        counts = value if isinstance(value, Mapping) else {value: 1} if value else {}
        yield from (({**labels, by: key}, count) for key, count in sorted(counts.items()))
