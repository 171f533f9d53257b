"""Our own series that are written from a snapshot: of validators, subnets, peers and caches.

No library keeps them, so that a thousand validators cost nothing between scrapes, and what is gone is gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from warpseal.metrics.samples import FollowerSample, IndexSample, MetricsSnapshot

Rows = Iterable[tuple[str, float | None]]
"""Label part (as written, with its braces, or empty) and value; None leaves the row out."""


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric: its name, type, help text and, given a snapshot, its rows."""

    name: str
    kind: str
    text: str
    rows: Callable[[MetricsSnapshot], Rows]

    def lines(self, snapshot: MetricsSnapshot) -> Iterator[str]:
        """Yield the text of the metric."""
        yield f"# HELP {self.name} {self.text}\n# TYPE {self.name} {self.kind}\n"
        for labels, value in self.rows(snapshot):
            if value is not None:
                yield f"{self.name}{labels} {value}\n"


def family_lines(snapshot: MetricsSnapshot) -> Iterator[str]:
    """Yield the text of all families; gives way to other threads between them."""
    for family in FAMILIES:
        time.sleep(0)
        yield from family.lines(snapshot)


def label(name: str, value: str) -> str:
    """Return one label with its braces."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{{{name}="{escaped}"}}'


def _single(value: float | None) -> Rows:
    return (("", value),)


def _by_reason(counts: Mapping[str, int]) -> Rows:
    return ((label("reason", reason), count) for reason, count in sorted(counts.items()))


def _lookups(snapshot: MetricsSnapshot) -> Rows:
    for cache in snapshot.caches:
        yield f'{{cache="{cache.name}",result="hit"}}', cache.hits
        yield f'{{cache="{cache.name}",result="miss"}}', cache.misses


def _of_validators(value: Callable[..., float | None]) -> Callable[[MetricsSnapshot], Rows]:
    return lambda snapshot: ((f'{{node_id="{one.node_id}"}}', value(one)) for one in snapshot.validators)


def _of_subnets(value: Callable[..., int]) -> Callable[[MetricsSnapshot], Rows]:
    return lambda snapshot: ((f'{{subnet_id="{one.subnet_id}"}}', value(one)) for one in snapshot.subnets)


def _of_network(value: Callable[..., float | None]) -> Callable[[MetricsSnapshot], Rows]:
    return lambda snapshot: _single(value(snapshot.network))


def _of_store(name: str) -> Callable[[MetricsSnapshot], Rows]:
    return lambda snapshot: () if snapshot.store is None else _single(int(getattr(snapshot.store, name)))


def _of_followers(value: Callable[..., float | None]) -> Callable[[MetricsSnapshot], Rows]:
    return lambda snapshot: ((label("chain", one.chain), value(one)) for one in snapshot.followers)


def _of_index(value: Callable[..., float | None]) -> Callable[[MetricsSnapshot], Rows]:
    return lambda snapshot: ((label("chain", one.chain), value(one)) for one in snapshot.indexed)


def _pages(snapshot: MetricsSnapshot) -> Rows:
    for one in snapshot.indexed:
        for kind, count in sorted(one.pages.items()):
            yield f'{{chain="{one.chain}",kind="{kind}"}}', count


def _stopped(snapshot: MetricsSnapshot) -> Rows:
    return _reasons(snapshot.followers)


def _index_stopped(snapshot: MetricsSnapshot) -> Rows:
    return _reasons(snapshot.indexed)


def _reasons(chains: Iterable[FollowerSample | IndexSample]) -> Rows:
    for one in chains:
        if one.stopped is not None:
            yield f'{{chain="{one.chain}",reason="{one.stopped}"}}', 1


FAMILIES: Final = (
    MetricFamily(
        "warpseal_connected_weight",
        "gauge",
        "Weight of the connected validators of a followed subnet",
        _of_subnets(lambda one: one.connected_weight),
    ),
    MetricFamily(
        "warpseal_total_weight",
        "gauge",
        "Weight of all validators of a followed subnet",
        _of_subnets(lambda one: one.total_weight),
    ),
    MetricFamily(
        "warpseal_proposed_height",
        "gauge",
        "Latest proposed P-Chain height; absent while none is known",
        lambda snapshot: _single(snapshot.proposed_height),
    ),
    MetricFamily("warpseal_cache_lookups_total", "counter", "Lookups in a cache", _lookups),
    MetricFamily(
        "warpseal_cache_bytes",
        "gauge",
        "Bytes that a cache holds",
        lambda snapshot: ((label("cache", one.name), one.size_bytes) for one in snapshot.caches),
    ),
    MetricFamily(
        "warpseal_peer_connections",
        "gauge",
        "Peers whose handshake is complete",
        _of_network(lambda one: one.connections),
    ),
    MetricFamily("warpseal_peer_dials_total", "counter", "Dials of peers", _of_network(lambda one: one.dials)),
    MetricFamily(
        "warpseal_peer_dial_failures_total",
        "counter",
        "Dials that made no connection, by reason",
        lambda snapshot: _by_reason(snapshot.network.dial_failures),
    ),
    MetricFamily(
        "warpseal_peer_disconnects_total",
        "counter",
        "Connections that ended, by reason",
        lambda snapshot: _by_reason(snapshot.network.endings),
    ),
    MetricFamily(
        "warpseal_peer_requests_total",
        "counter",
        "Requests sent to peers",
        _of_network(lambda one: one.requests),
    ),
    MetricFamily(
        "warpseal_peer_requests_pending",
        "gauge",
        "Requests to peers that wait for an answer",
        _of_network(lambda one: one.pending),
    ),
    MetricFamily(
        "warpseal_newer_peers",
        "gauge",
        "Connected peers that run a newer version than the advertised one",
        _of_network(lambda one: one.newer_peers),
    ),
    MetricFamily(
        "warpseal_newest_peer_version_info",
        "gauge",
        "Always 1; its label is the newest version of any peer",
        lambda snapshot: (
            [(label("version", snapshot.network.newest_version), 1)] if snapshot.network.newest_version else []
        ),
    ),
    MetricFamily(
        "warpseal_clock_offset_seconds",
        "gauge",
        "Median of the peers' clocks minus our own; absent while too few are known",
        _of_network(lambda one: one.clock_offset_s),
    ),
    MetricFamily(
        "warpseal_validator_requests_total",
        "counter",
        "Requests sent to a validator",
        _of_validators(lambda one: one.requests),
    ),
    MetricFamily(
        "warpseal_validator_answers_total",
        "counter",
        "Answers of a validator that were no refusal",
        _of_validators(lambda one: one.answers),
    ),
    MetricFamily(
        "warpseal_validator_refusals_total",
        "counter",
        "Refusals of a validator",
        _of_validators(lambda one: one.refusals),
    ),
    MetricFamily(
        "warpseal_validator_not_taken_total",
        "counter",
        "Requests that were dropped because too many waited for the validator",
        _of_validators(lambda one: one.not_taken),
    ),
    MetricFamily(
        "warpseal_validator_latency_seconds",
        "gauge",
        "Time that a validator takes to answer, recent answers counting most",
        _of_validators(lambda one: one.latency_s),
    ),
    MetricFamily(
        "warpseal_validator_bad_shares_total",
        "counter",
        "Shares of a validator that were found bad; absent where there was none",
        lambda snapshot: ((label("node_id", node_id), count) for node_id, count in sorted(snapshot.bad_shares.items())),
    ),
    MetricFamily(
        "warpseal_follower_height",
        "gauge",
        "Newest block of a chain that was read",
        _of_followers(lambda one: one.height),
    ),
    MetricFamily(
        "warpseal_follower_node_height",
        "gauge",
        "Newest accepted block of a chain, as a node tells it",
        _of_followers(lambda one: one.node_height),
    ),
    MetricFamily(
        "warpseal_follower_lag_blocks",
        "gauge",
        "Accepted blocks above the newest one that was read",
        _of_followers(lambda one: one.lag),
    ),
    MetricFamily(
        "warpseal_follower_remaining_blocks",
        "gauge",
        "Blocks that the backfill still has to read; absent until its end is known",
        _of_followers(lambda one: one.remaining),
    ),
    MetricFamily(
        "warpseal_follower_blocks_read_total",
        "counter",
        "Blocks that this process has read",
        _of_followers(lambda one: one.blocks_read),
    ),
    MetricFamily(
        "warpseal_follower_leader",
        "gauge",
        "1 where this process follows the chain, 0 where another one may",
        _of_followers(lambda one: int(one.is_leader)),
    ),
    MetricFamily(
        "warpseal_follower_stopped",
        "gauge",
        "Always 1; its label is why following stopped; absent while it goes on",
        _stopped,
    ),
    MetricFamily(
        "warpseal_index_height",
        "gauge",
        "Newest block of a chain that is indexed",
        _of_index(lambda one: one.height),
    ),
    MetricFamily(
        "warpseal_index_node_height",
        "gauge",
        "Newest accepted block of an indexed chain, as nodes tell it",
        _of_index(lambda one: one.node_height),
    ),
    MetricFamily(
        "warpseal_index_first_height",
        "gauge",
        "First block of a chain that is indexed; 0 where nothing is missing",
        _of_index(lambda one: one.first_height),
    ),
    MetricFamily(
        "warpseal_index_lag_seconds",
        "gauge",
        "Age of the newest indexed block; 0 where it is the node's newest",
        _of_index(lambda one: one.lag_s),
    ),
    MetricFamily(
        "warpseal_index_blocks_per_second",
        "gauge",
        "Blocks that are indexed a second while a chain catches up; else absent",
        _of_index(lambda one: one.rate),
    ),
    MetricFamily(
        "warpseal_index_eta_seconds",
        "gauge",
        "Time until a chain has caught up at that rate; absent where there is none",
        _of_index(lambda one: one.eta_s),
    ),
    MetricFamily(
        "warpseal_index_stopped",
        "gauge",
        "Always 1; its label is why indexing a chain stopped; absent while it goes on",
        _index_stopped,
    ),
    MetricFamily("warpseal_index_pages_total", "counter", "Pages read from the index, by what they list", _pages),
    MetricFamily(
        "warpseal_health_check_passes",
        "gauge",
        "1 where a check of /ext/health passed when it was last looked at, else 0",
        lambda snapshot: ((label("check", name), int(passes)) for name, passes in sorted(snapshot.health.items())),
    ),
    MetricFamily("warpseal_store_up", "gauge", "1 while the store works, 0 while it is down", _of_store("is_up")),
    MetricFamily(
        "warpseal_store_waiting_writes",
        "gauge",
        "Writes that wait in memory to be committed",
        _of_store("waiting_writes"),
    ),
    MetricFamily(
        "warpseal_store_dropped_writes_total",
        "counter",
        "Writes given up because the store was down for too long",
        _of_store("dropped_writes"),
    ),
    MetricFamily("warpseal_store_bytes", "gauge", "Size of the store's database", _of_store("size_bytes")),
    MetricFamily(
        "warpseal_store_evictable_bytes",
        "gauge",
        "Bytes of what the store may evict, about",
        _of_store("evictable_bytes"),
    ),
    MetricFamily(
        "warpseal_store_evicted_total",
        "counter",
        "Messages and addresses that the store has evicted",
        _of_store("evicted"),
    ),
)
