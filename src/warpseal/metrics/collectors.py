"""Warpseal's series that are read from a snapshot at each scrape: of validators, subnets, peers, caches, the store.

They are not kept between scrapes: a thousand validators cost nothing then, and one that has left has no series.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import Metric
from prometheus_client.registry import Collector

from warpseal.metrics.samples import FollowerSample, IndexSample, MetricsSnapshot

Rows = Iterable[tuple[tuple[str, ...], float | None]]
"""Label values and the value of each row; a row without a value is left out."""


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric. text: its help; labels: their names. Its type is in its name: counters end with `_total`."""

    name: str
    text: str
    labels: tuple[str, ...]
    rows: Callable[[MetricsSnapshot], Rows]

    def collect(self, snapshot: MetricsSnapshot) -> Metric:
        """Return the metric with its rows."""
        kind = "counter" if self.name.endswith("_total") else "gauge"
        metric = Metric(self.name.removesuffix("_total"), self.text, kind)
        for values, value in self.rows(snapshot):
            if value is not None:
                metric.add_sample(self.name, dict(zip(self.labels, values, strict=True)), value)
        return metric


class SnapshotCollector(Collector):
    """Collects families from one snapshot; other threads may run between two families."""

    def __init__(self, families: Iterable[MetricFamily], snapshot: MetricsSnapshot) -> None:
        self._families = tuple(families)
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        for family in self._families:
            time.sleep(0)
            yield family.collect(self._snapshot)


def single(name: str, text: str, value: Callable[[MetricsSnapshot], float | None]) -> MetricFamily:
    """Return a metric without labels."""
    return MetricFamily(name, text, (), lambda snapshot: [((), value(snapshot))])


def _by_subnet(name: str, text: str, value: Callable[[Any], float | None]) -> MetricFamily:
    return MetricFamily(
        name,
        text,
        ("subnet_id",),
        lambda snapshot: (((subnet.subnet_id,), value(subnet)) for subnet in snapshot.subnets),
    )


def _by_validator(name: str, text: str, value: Callable[[Any], float | None]) -> MetricFamily:
    return MetricFamily(
        name,
        text,
        ("node_id",),
        lambda snapshot: (((validator.node_id,), value(validator)) for validator in snapshot.validators),
    )


def _by_follower(name: str, text: str, value: Callable[[Any], float | None]) -> MetricFamily:
    return MetricFamily(
        name, text, ("chain",), lambda snapshot: (((chain.chain,), value(chain)) for chain in snapshot.followers)
    )


def _by_indexed_chain(name: str, text: str, value: Callable[[Any], float | None]) -> MetricFamily:
    return MetricFamily(
        name, text, ("chain",), lambda snapshot: (((chain.chain,), value(chain)) for chain in snapshot.indexed)
    )


def _of_store(name: str, text: str, field: str) -> MetricFamily:
    return single(name, text, lambda snapshot: None if snapshot.store is None else int(getattr(snapshot.store, field)))


def _lookups(snapshot: MetricsSnapshot) -> Rows:
    for cache in snapshot.caches:
        yield (cache.name, "hit"), cache.hits
        yield (cache.name, "miss"), cache.misses


def _pages(snapshot: MetricsSnapshot) -> Rows:
    for chain in snapshot.indexed:
        for kind, count in sorted(chain.pages.items()):
            yield (chain.chain, kind), count


def _stop_reasons(chains: Iterable[FollowerSample | IndexSample]) -> Rows:
    for chain in chains:
        if chain.stopped is not None:
            yield (chain.chain, chain.stopped), 1


def _newest_version(snapshot: MetricsSnapshot) -> Rows:
    if snapshot.network.newest_version:
        yield (snapshot.network.newest_version,), 1


FAMILIES: Final = (
    _by_subnet(
        "warpseal_connected_weight",
        "Weight of the connected validators of a followed subnet",
        lambda subnet: subnet.connected_weight,
    ),
    _by_subnet(
        "warpseal_total_weight", "Weight of all validators of a followed subnet", lambda subnet: subnet.total_weight
    ),
    single(
        "warpseal_proposed_height",
        "Latest proposed P-Chain height; absent while none is known",
        lambda snapshot: snapshot.proposed_height,
    ),
    MetricFamily("warpseal_cache_lookups_total", "Lookups in a cache", ("cache", "result"), _lookups),
    MetricFamily(
        "warpseal_cache_bytes",
        "Bytes that a cache holds",
        ("cache",),
        lambda snapshot: (((cache.name,), cache.size_bytes) for cache in snapshot.caches),
    ),
    single(
        "warpseal_peer_connections",
        "Peers whose handshake is complete",
        lambda snapshot: snapshot.network.connections,
    ),
    single("warpseal_peer_dials_total", "Dials of peers", lambda snapshot: snapshot.network.dials),
    MetricFamily(
        "warpseal_peer_dial_failures_total",
        "Dials that made no connection, by reason",
        ("reason",),
        lambda snapshot: (((reason,), count) for reason, count in sorted(snapshot.network.dial_failures.items())),
    ),
    MetricFamily(
        "warpseal_peer_disconnects_total",
        "Connections that ended, by reason",
        ("reason",),
        lambda snapshot: (((reason,), count) for reason, count in sorted(snapshot.network.endings.items())),
    ),
    single("warpseal_peer_requests_total", "Requests sent to peers", lambda snapshot: snapshot.network.requests),
    single(
        "warpseal_peer_requests_pending",
        "Requests to peers that wait for an answer",
        lambda snapshot: snapshot.network.pending,
    ),
    single(
        "warpseal_newer_peers",
        "Connected peers that run a newer version than the advertised one",
        lambda snapshot: snapshot.network.newer_peers,
    ),
    MetricFamily(
        "warpseal_newest_peer_version_info",
        "Always 1; its label is the newest version of any peer",
        ("version",),
        _newest_version,
    ),
    single(
        "warpseal_clock_offset_seconds",
        "Median of the peers' clocks minus our own; absent while too few are known",
        lambda snapshot: snapshot.network.clock_offset_s,
    ),
    _by_validator(
        "warpseal_validator_requests_total", "Requests sent to a validator", lambda validator: validator.requests
    ),
    _by_validator(
        "warpseal_validator_answers_total",
        "Answers of a validator that were no refusal",
        lambda validator: validator.answers,
    ),
    _by_validator("warpseal_validator_refusals_total", "Refusals of a validator", lambda validator: validator.refusals),
    _by_validator(
        "warpseal_validator_not_taken_total",
        "Requests that were dropped because too many waited for the validator",
        lambda validator: validator.not_taken,
    ),
    _by_validator(
        "warpseal_validator_latency_seconds",
        "Time that a validator takes to answer, recent answers counting most",
        lambda validator: validator.latency_s,
    ),
    MetricFamily(
        "warpseal_validator_bad_shares_total",
        "Shares of a validator that were found bad; absent without any",
        ("node_id",),
        lambda snapshot: (((node_id,), count) for node_id, count in sorted(snapshot.bad_shares.items())),
    ),
    _by_follower("warpseal_follower_height", "Newest block of a chain that was read", lambda chain: chain.height),
    _by_follower(
        "warpseal_follower_node_height",
        "Newest accepted block of a chain, as a node reports it",
        lambda chain: chain.node_height,
    ),
    _by_follower(
        "warpseal_follower_lag_blocks", "Accepted blocks above the newest one that was read", lambda chain: chain.lag
    ),
    _by_follower(
        "warpseal_follower_remaining_blocks",
        "Blocks that the backfill still has to read; absent until its end is known",
        lambda chain: chain.remaining,
    ),
    _by_follower(
        "warpseal_follower_blocks_read_total",
        "Blocks that this process has read",
        lambda chain: chain.blocks_read,
    ),
    _by_follower(
        "warpseal_follower_leader",
        "1 if this process follows the chain, 0 if another one may",
        lambda chain: int(chain.is_leader),
    ),
    MetricFamily(
        "warpseal_follower_stopped",
        "Always 1; its label is why following stopped; absent while it goes on",
        ("chain", "reason"),
        lambda snapshot: _stop_reasons(snapshot.followers),
    ),
    _by_indexed_chain("warpseal_index_height", "Newest block of a chain that is indexed", lambda chain: chain.height),
    _by_indexed_chain(
        "warpseal_index_node_height",
        "Newest accepted block of an indexed chain, as nodes report it",
        lambda chain: chain.node_height,
    ),
    _by_indexed_chain(
        "warpseal_index_first_height",
        "First block of a chain that is indexed; 0 if none is missing",
        lambda chain: chain.first_height,
    ),
    _by_indexed_chain(
        "warpseal_index_lag_seconds",
        "Age of the newest indexed block; 0 if it is the node's newest",
        lambda chain: chain.lag_s,
    ),
    _by_indexed_chain(
        "warpseal_index_blocks_per_second",
        "Blocks indexed in a second while a chain catches up; else absent",
        lambda chain: chain.rate,
    ),
    _by_indexed_chain(
        "warpseal_index_eta_seconds",
        "Time until a chain has caught up at that rate; else absent",
        lambda chain: chain.eta_s,
    ),
    MetricFamily(
        "warpseal_index_stopped",
        "Always 1; its label is why indexing a chain stopped; absent while it goes on",
        ("chain", "reason"),
        lambda snapshot: _stop_reasons(snapshot.indexed),
    ),
    MetricFamily(
        "warpseal_index_pages_total", "Pages read from the index, by what they list", ("chain", "kind"), _pages
    ),
    MetricFamily(
        "warpseal_health_check_passes",
        "1 if a check of /ext/health passed when it last ran, else 0",
        ("check",),
        lambda snapshot: (((name,), int(passes)) for name, passes in sorted(snapshot.health.items())),
    ),
    _of_store("warpseal_store_up", "1 while the store works, 0 while it is down", "is_up"),
    _of_store("warpseal_store_waiting_writes", "Writes that wait in memory to be committed", "waiting_writes"),
    _of_store(
        "warpseal_store_dropped_writes_total",
        "Writes dropped because the store was down for too long",
        "dropped_writes",
    ),
    _of_store("warpseal_store_bytes", "Size of the store's database", "size_bytes"),
    _of_store("warpseal_store_evictable_bytes", "Approximate size of what the store may evict", "evictable_bytes"),
    _of_store("warpseal_store_evicted_total", "Messages and addresses that the store has evicted", "evicted"),
)
