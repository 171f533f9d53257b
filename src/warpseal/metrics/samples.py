"""The values that a scrape reads from other packages: their own counters at that moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ValidatorSample:
    """One wanted validator. requests: sent to it; not_taken: requests that its full queue refused.

    answers, refusals: replies. latency_s: time to a reply, None before the first one.
    """

    node_id: str
    requests: int = 0
    answers: int = 0
    refusals: int = 0
    not_taken: int = 0
    latency_s: float | None = None


@dataclass(frozen=True, slots=True)
class SubnetSample:
    """One followed subnet: the weight of its validators, and of those of them that are connected."""

    subnet_id: str
    connected_weight: int
    total_weight: int


@dataclass(frozen=True, slots=True)
class NetworkSample:
    """All peers together; counters since the start.

    dial_failures, endings: failed dials and closed connections, by reason. newer_peers: connected peers that
    run a newer version than we advertise; newest_version: the newest of any peer. clock_offset_s: the median of
    the peers' clocks minus the daemon's. pending, unanswered: requests that wait for a reply, or got none in time.
    """

    connections: int = 0
    dials: int = 0
    dial_failures: Mapping[str, int] = field(default_factory=dict)
    endings: Mapping[str, int] = field(default_factory=dict)
    newer_peers: int = 0
    newest_version: str = ""
    clock_offset_s: float | None = None
    requests: int = 0
    pending: int = 0
    unanswered: int = 0
    request_timeout_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CacheSample:
    """One cache: "shares", "answers", "validator_sets". Counters since the start; size_bytes is what it holds."""

    name: str
    hits: int = 0
    misses: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class FollowerSample:
    """One followed chain. height, node_height: newest block read, and the node's; None: not known.

    remaining: blocks of backfill and gaps, None until its end is known. blocks_read: since the start. stopped: why
    following stopped, or None.
    """

    chain: str
    height: int | None = None
    node_height: int | None = None
    lag: int | None = None
    remaining: int | None = None
    blocks_read: int = 0
    is_leader: bool = False
    stopped: str | None = None


@dataclass(frozen=True, slots=True)
class IndexSample:
    """One indexed chain, as the indexer last reported it. first_height: no block below it is indexed.

    lag_s: the age of the newest indexed block, 0 if it is the node's newest. rate, eta_s: of catching up, in blocks a
    second; None: there is nothing to catch up with. stopped: why indexing stopped, or None. A chain without blocks has
    None everywhere. pages: read from the index by this process, by what they list.
    """

    chain: str
    height: int | None = None
    node_height: int | None = None
    first_height: int | None = None
    lag_s: int | None = None
    rate: float | None = None
    eta_s: float | None = None
    stopped: str | None = None
    pages: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoreSample:
    """The store. waiting_writes: in memory, not committed yet; dropped_writes, evicted: since the start.

    size_bytes, evictable_bytes: of the database, and of its rows that may be evicted; about half a minute old.
    """

    is_up: bool
    waiting_writes: int = 0
    dropped_writes: int = 0
    size_bytes: int = 0
    evictable_bytes: int = 0
    evicted: int = 0


@dataclass(frozen=True, slots=True)
class MetricSources:
    """The functions that a scrape calls on the event loop. A series exists only while its source returns it."""

    validators: Callable[[], Iterable[ValidatorSample]] = tuple
    subnets: Callable[[], Iterable[SubnetSample]] = tuple
    network: Callable[[], NetworkSample] = NetworkSample
    caches: Callable[[], Iterable[CacheSample]] = tuple
    proposed_height: Callable[[], int | None] = lambda: None
    followers: Callable[[], Iterable[FollowerSample]] = tuple
    indexed: Callable[[], Iterable[IndexSample]] = tuple
    store: Callable[[], StoreSample | None] = lambda: None
    health: Callable[[], Mapping[str, bool]] = dict


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """The values of all sources at one scrape. bad_shares: by node id; health: by check, whether it passes."""

    validators: tuple[ValidatorSample, ...] = ()
    subnets: tuple[SubnetSample, ...] = ()
    network: NetworkSample = NetworkSample()
    caches: tuple[CacheSample, ...] = ()
    proposed_height: int | None = None
    bad_shares: Mapping[str, int] = field(default_factory=dict)
    followers: tuple[FollowerSample, ...] = ()
    indexed: tuple[IndexSample, ...] = ()
    health: Mapping[str, bool] = field(default_factory=dict)
    store: StoreSample | None = None
