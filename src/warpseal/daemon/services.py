"""All long-lived services, built once from the configuration, and their numbers for the metrics page."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from warpseal.aggregation.service import AggregationDeps, SignatureAggregator
from warpseal.config.keys import Config
from warpseal.delivery.destination import DestinationDeps, Destinations
from warpseal.delivery.preflight import Preflight, PreflightDeps
from warpseal.delivery.service import DeliveryDeps, DeliveryService
from warpseal.delivery.statement import StatementChecker
from warpseal.events.sources import EventSources
from warpseal.forwarding.evm.methods import DenyList
from warpseal.l1.context import L1Deps
from warpseal.l1.follower import PChainFollower, follower_detail, follower_sample
from warpseal.l1.prefetch import EagerDeps, EagerSigner
from warpseal.l1.service import L1MessageService
from warpseal.messages.signing_blocks import check_allowed
from warpseal.metrics.registry import Metrics
from warpseal.metrics.samples import (
    CacheSample,
    FollowerSample,
    HeightSample,
    L1QuorumSample,
    L1ValidatorSample,
    NetworkSample,
    SampleSources,
    StoreSample,
    SubnetSample,
    ValidatorSample,
)
from warpseal.node.info import UpgradeWatch
from warpseal.node.upstream import Upstream, connect_upstream
from warpseal.peers.identity import LockedIdentity
from warpseal.peers.network import PeerNetwork
from warpseal.peers.statistics import UnreachableReason
from warpseal.resources.chains import PrimaryChain
from warpseal.runtime.background import BackgroundWork
from warpseal.runtime.lazy import LazyModule
from warpseal.runtime.locks import WorkerThreads
from warpseal.store.errors import StoreDown
from warpseal.store.locks import Leadership
from warpseal.store.store import Store, open_store
from warpseal.store.url import OFF
from warpseal.upstream.node import open_session
from warpseal.validators.activity import L1Activity
from warpseal.validators.balances import describe_underfunded, underfunded_validations
from warpseal.validators.chain_validator_list import CurrentValidations
from warpseal.validators.chains import ChainLookup
from warpseal.validators.heights import EpochHeights, ProposedHeight
from warpseal.validators.set_cache import PublicKeyCache
from warpseal.validators.sets import ValidatorSets
from warpseal.validators.settings import SetSource
from warpseal.validators.subnet_tracker import SubnetTracker
from warpseal.validators.uptime.recorder import UptimeRecorder
from warpseal.warp.ids import ChainID, NodeID, SubnetID, id_text, node_id_text
from warpseal.warp.message import UnsignedMessage
from warpseal.warp.quorum_shortfall import MissingSigner

if TYPE_CHECKING:
    from warpseal.follow import index_source
    from warpseal.forwarding.evm import logs
    from warpseal.forwarding.evm.forwarder import ForwardedChain
    from warpseal.index import database as index_database
    from warpseal.node.platform import PlatformClient
    from warpseal.resources.ports import PrimaryNetworkIndex
    from warpseal.validators import indexed_platform
    from warpseal.validators.forecast import service as forecast_service
    from warpseal.validators.forecast.outlook import ValidatorOutlook
    from warpseal.validators.forecast.service import ForecastService
    from warpseal.validators.indexed_platform import IndexedPlatform
else:
    logs = LazyModule("warpseal.forwarding.evm.logs")
    index_database = LazyModule("warpseal.index.database")
    index_source = LazyModule("warpseal.follow.index_source")
    indexed_platform = LazyModule("warpseal.validators.indexed_platform")
    forecast_service = LazyModule("warpseal.validators.forecast.service")

log = logging.getLogger(__name__)

MAX_SERIES: Final = 20
"""Validators of one subnet that have a series of their forecast."""
# Two epochs of mainnet: the P-Chain height of an older one may be of no use.
_LAST_EPOCH_S: Final = 600.0


class Service(Protocol):
    """A part of the daemon that runs until shutdown."""

    async def run(self) -> None:
        """Run until cancelled."""
        ...


class Services(Struct, frozen=True):
    """The long-lived services. background: those that signing does not need, by their names in the log."""

    heights: ProposedHeight
    sets: ValidatorSets
    chains: ChainLookup
    network: PeerNetwork
    subnet_tracker: SubnetTracker
    current: CurrentValidations
    aggregator: SignatureAggregator
    store: Store
    follower: PChainFollower
    l1_messages: L1MessageService
    destinations: Destinations
    delivery: DeliveryService
    preflight: Preflight
    uptime: UptimeRecorder
    upgrades: UpgradeWatch
    background: Mapping[str, Service]
    min_balance_navax: int
    event_sources: EventSources
    leadership: Leadership

    async def run(self, background: BackgroundWork) -> None:
        """Follow the P-Chain and stay connected until cancelled. background: runs what signing does not need."""
        async with asyncio.TaskGroup() as tasks:
            needed: tuple[Service, ...] = (self.heights, self.network, self.subnet_tracker)
            for service in needed:
                tasks.create_task(service.run())
            for part, service in self.background.items():
                tasks.create_task(background.keep_running(part, service.run))

    def unreachable_reason(self, node_id: NodeID, subnet_id: SubnetID) -> str | None:
        """Return why a node of a subnet cannot be reached; None if it is connected, or was not dialed in vain."""
        unreachable = self.network.unreachable(node_id, subnet_id)
        if unreachable is not None:
            return unreachable.reason
        # A node that is dialed again at this moment.
        missing = self.network.missing_connection(node_id)
        return UnreachableReason.NOT_CONNECTED if missing is not None and missing.last_error else None

    def underfunded(self, subnet_id: SubnetID) -> tuple[MissingSigner, ...]:
        """Return the L1 validators of a tracked subnet that are inactive or nearly drained, as far as known."""
        current = self.current.latest(subnet_id) or ()
        return tuple(map(describe_underfunded, underfunded_validations(current, self.min_balance_navax)))


class Upstreams(Struct, frozen=True):
    """The clients of the nodes, the cache of parsed keys, and the thread that decodes large responses.

    indexed: the client of the P-Chain if it also reads the index; None if validator sets come from nodes.
    """

    upstream: Upstream
    keys: PublicKeyCache
    decoding: Executor
    indexed: IndexedPlatform | None = None


@asynccontextmanager
async def open_upstreams(
    config: Config, metrics: Metrics, set_source: SetSource = SetSource.NODE
) -> AsyncIterator[Upstreams]:
    """Hold the clients of the configured nodes; nothing is asked yet."""
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(open_session())
        decoding = stack.enter_context(WorkerThreads(1, "decode"))
        keys = PublicKeyCache(config.validators.key_cache_keys)
        connect = partial(
            connect_upstream, config.node, session, observer=metrics, executor=decoding, check_key=keys.parse
        )
        if set_source is SetSource.NODE:
            yield Upstreams(connect(), keys, decoding)
            return
        build = partial(
            indexed_platform.IndexedPlatform,
            source=set_source,
            count=metrics.count_set_comparison,
            has_stop=config.validators.set_source is SetSource.BOTH,
        )
        upstream = connect(build_platform=build)
        assert isinstance(upstream.platform, indexed_platform.IndexedPlatform)
        yield Upstreams(upstream, keys, decoding, upstream.platform)


@asynccontextmanager
async def build_services(
    config: Config,
    upstreams: Upstreams,
    identity: LockedIdentity,
    network_id: int,
    metrics: Metrics,
    evm_chains: Sequence[ForwardedChain] = (),
) -> AsyncIterator[Services]:
    """Build all services, and hold their worker threads and the store; nothing runs yet.

    Raises StartupError if the store cannot be used.
    """
    settings, upstream, platform = config.validators, upstreams.upstream, upstreams.upstream.platform
    async with AsyncExitStack() as stack:
        if identity.folder is not None:
            # Earlier versions kept P-Chain blocks that the index did not have yet.
            for suffix in ("", "-wal", "-shm"):
                with suppress(OSError):
                    (identity.folder / f"waiting-blocks.db{suffix}").unlink(missing_ok=True)
        verifying = stack.enter_context(WorkerThreads(1, "verify"))
        hashing = stack.enter_context(WorkerThreads(1, "hash"))
        store = await stack.enter_async_context(
            open_store(config.store, identity.folder, on_commit=metrics.observe_commit)
        )
        log.debug("store opened", extra={"url": store.status().url})
        with suppress(StoreDown):
            await store.signing_blocks.load()
        event_sources = EventSources(store.events)
        leadership = store.leadership("p-chain")
        from_index = upstreams.indexed
        chains = ChainLookup(platform, has_index=from_index is not None)
        epochs = EpochHeights(upstream.proposervm, last_reply_s=0.0 if from_index is None else _LAST_EPOCH_S)
        heights = ProposedHeight(
            platform,
            poll_s=settings.height_poll_s,
            stale_after_s=settings.height_stale_after_s,
            read_index=None if from_index is None else from_index.newest_height,
        )
        sets = ValidatorSets(platform, heights, upstreams.keys, settings, executor=upstreams.decoding)
        if from_index is not None:
            from_index.comparison.on_wrong_set = sets.forget
        destination_deps = DestinationDeps(
            epochs=epochs,
            chain_rpc=upstream.chain_rpc,
            info=upstream.info,
            chains=chains,
            primary_chains=lambda: upstream.view.primary_chains(network_id),
            configured=frozenset(chain.blockchain_id for chain in config.node.evm_chains),
        )
        destinations = Destinations(destination_deps)
        network = PeerNetwork(config.peers, identity, network_id, store.addresses)
        upgrades = UpgradeWatch(upstream.info, network.record_upgrade_time)
        uptime = UptimeRecorder(network, store.observed, identity.identity.node_id, config.uptime)
        current = CurrentValidations(platform, uptime.watch, ttl_s=2 * settings.current_refresh_s)
        subnet_tracker = SubnetTracker(heights, sets, platform, upstream.info, network, settings)
        activity = L1Activity(
            platform, chains, refresh_s=settings.activity_refresh_s, min_balance_navax=settings.min_balance_navax
        )
        stack.callback(activity.close)

        def check_signing(message: UnsignedMessage, subnet_id: SubnetID | None) -> None:
            check_allowed(store.signing_blocks, message)
            if from_index is not None and subnet_id is not None:
                from_index.comparison.check(subnet_id)

        aggregation_deps = AggregationDeps(
            peers=network,
            heights=heights,
            sets=sets,
            chains=chains,
            is_epoch_height=epochs.any_at,
            activity=activity,
            track=subnet_tracker.track,
            metrics=metrics,
            archive=store.archive,
            on_shortfall=event_sources.on_shortfall,
            check_allowed=check_signing,
        )
        aggregator = SignatureAggregator(aggregation_deps, network_id, config.aggregation, executor=verifying)
        # Without a store the follower would be of no use.
        is_kept = config.store.url != OFF
        follower_settings = replace(config.follower, follow_p_chain=config.follower.follow_p_chain and is_kept)
        indexed = None
        if PrimaryChain.P in config.indexer.chains:
            blocks = index_source.IndexedBlocks(index_database.index_url(config.index, identity.folder), config.index)
            indexed = stack.enter_context(closing(blocks))
        follower = PChainFollower(upstream.blocks, store.l1, leadership, follower_settings, indexed=indexed)
        l1_deps = L1Deps(
            upstream=upstream,
            store=store,
            evm={
                chain.chain_id: logs.EvmLogClient(chain.forwarder, config.node.call_timeout_s, upstreams.decoding)
                for chain in evm_chains
            },
            chains=chains,
            epochs=epochs,
            heights=heights,
            sets=sets,
            aggregator=aggregator,
            progress=lambda: follower_detail(follower),
            find_quorum=destinations.quorum,
            on_signed=event_sources.on_l1_signed,
        )
        l1_messages = L1MessageService(l1_deps, network_id, config.l1, config.aggregation, executor=hashing)
        delivery_deps = DeliveryDeps(destinations, aggregator.aggregate, l1_messages, chains, heights, sets)
        # Signing never waits for a preflight.
        preflight_thread = stack.enter_context(WorkerThreads(1, "preflight"))
        eth_call = upstream.chain_rpc.eth_call
        preflight_deps = PreflightDeps(
            destinations=destinations,
            sets=sets,
            chains=chains,
            heights=heights,
            statements=StatementChecker(platform, chains, eth_call, store.l1, executor=preflight_thread),
            eth_call=eth_call,
            denies_calls=partial(denies_calls, config),
        )
        eager = EagerSigner(
            EagerDeps(l1_messages.get, store.l1, leadership, chains.subnet_of, follower.subscribe),
            frozenset(settings.tracked_subnet_ids),
            network_id,
            config.l1,
        )
        background: dict[str, Service] = {"observed uptimes": uptime, "releases of the nodes": upgrades}
        if is_kept:
            background |= {
                "leadership": leadership,
                "P-Chain follower": follower,
                "audit of shares": aggregator.auditor,
                "eager signing": eager,
                "signing blocks": store.signing_blocks,
            }
        if from_index is not None:
            background["comparison of validator sets"] = from_index
        yield Services(
            heights=heights,
            sets=sets,
            chains=chains,
            network=network,
            subnet_tracker=subnet_tracker,
            current=current,
            aggregator=aggregator,
            store=store,
            follower=follower,
            l1_messages=l1_messages,
            destinations=destinations,
            delivery=DeliveryService(delivery_deps, config.delivery, config.aggregation),
            preflight=Preflight(preflight_deps, network_id, executor=preflight_thread),
            uptime=uptime,
            upgrades=upgrades,
            background=background,
            min_balance_navax=settings.min_balance_navax,
            event_sources=event_sources,
            leadership=leadership,
        )


def build_forecasts(
    config: Config,
    services: Services,
    platform: PlatformClient,
    index: Callable[[], PrimaryNetworkIndex | None],
    executor: Executor,
) -> ForecastService:
    """Return the service. index: returns the index of the primary chains; None without one."""
    network = services.network

    def is_unreachable(node_id: NodeID, subnet_id: SubnetID) -> bool:
        if services.subnet_tracker.validators_of(subnet_id) is None:
            return False
        missing = network.missing_connection(node_id)
        if missing is None:
            # Connected after its observation was read, or not wanted at the proposed height.
            return network.heard_at(node_id) is None
        return bool(missing.last_error) or network.unreachable(node_id, subnet_id) is not None

    return forecast_service.ForecastService(
        forecast_service.ForecastReader(platform, index),
        services.chains,
        services.heights,
        services.sets,
        services.uptime.connected_since,
        is_unreachable,
        config.validators,
        executor=executor,
        on_forecast=services.event_sources.on_forecast,
    )


def denies_calls(config: Config, chain_id: ChainID) -> bool:
    """Return whether the operator denies callers the method that a preflight uses for their calls."""
    of_chain = [
        name for chain in config.node.evm_chains if chain.blockchain_id == chain_id for name in chain.deny_methods
    ]
    return DenyList((*config.evm_rpc.deny_methods, *of_chain)).denies("eth_call")


def register_samples(samples: SampleSources, services: Services, config: Config, forecasts: ForecastService) -> None:
    """Let the metrics page read the services."""
    network, tracker = services.network, services.subnet_tracker
    samples.register(ValidatorSample, lambda: _validators(network))
    samples.register(
        SubnetSample,
        lambda: (
            SubnetSample(id_text(subnet.subnet_id), subnet.connected, subnet.total)
            for subnet in tracker.all_readiness()
        ),
    )
    samples.register(NetworkSample, lambda: [_network(network, services.upgrades, config.peers.slot_timeout_s)])
    sets = services.sets
    samples.register(
        CacheSample,
        lambda: (
            *services.aggregator.caches(),
            CacheSample("validator_sets", sets.hits, sets.misses, sets.held_bytes),
        ),
    )
    samples.register(HeightSample, lambda: [HeightSample(services.heights.last)])
    samples.register(FollowerSample, lambda: [follower_sample(services.follower)])
    samples.register(StoreSample, lambda: _store(services.store))
    samples.register(L1ValidatorSample, lambda: validator_samples(forecasts))
    samples.register(L1QuorumSample, lambda: quorum_samples(forecasts))


def validator_samples(forecasts: ForecastService) -> Iterator[L1ValidatorSample]:
    """Yield the validators of each tracked L1 that run out first; inactive ones come last, with 0 seconds."""
    for forecast in forecasts.latest():
        ending = [
            row
            for row in forecast.outlook.validators
            if row.validator.balance_navax is not None and row.seconds_left is not None
        ]
        for row in sorted(ending, key=_urgency)[:MAX_SERIES]:
            assert row.seconds_left is not None
            names = (node_id_text(row.validator.node_id), id_text(row.validator.id))
            yield L1ValidatorSample(id_text(forecast.subnet_id), *names, row.seconds_left)


def quorum_samples(forecasts: ForecastService) -> Iterator[L1QuorumSample]:
    """Yield the quorum of each tracked L1."""
    for forecast in forecasts.latest():
        if forecast.fee is None:
            continue
        outlook = forecast.outlook
        margins = {"active": float(outlook.margin)}
        if forecast.is_answering_known:
            margins["answering"] = float(outlook.answering_margin)
        ends_at = outlook.today.quorum_impossible_at_s
        left_s = None if ends_at is None else ends_at - outlook.as_of_s
        yield L1QuorumSample(id_text(forecast.subnet_id), margins, left_s)


def _urgency(row: ValidatorOutlook) -> tuple[bool, int]:
    assert row.seconds_left is not None
    return not row.validator.is_active, row.seconds_left


def _validators(network: PeerNetwork) -> Iterator[ValidatorSample]:
    for node_id, peer in list(network.statistics.items()):
        counts = (peer.requests, peer.responses, peer.errors, peer.refused)
        yield ValidatorSample(node_id_text(node_id), *counts, peer.latency_s)


def _store(store: Store) -> Iterator[StoreSample]:
    now = store.status()
    if now.url != OFF:
        waiting = (now.waiting_writes, now.dropped_writes)
        yield StoreSample(now.is_up, *waiting, now.size_bytes, now.evictable_bytes, now.evicted)


def _network(network: PeerNetwork, upgrades: UpgradeWatch, request_timeout_s: float) -> NetworkSample:
    versions, totals, advertised = network.versions(), network.totals, network.advertised_version
    return NetworkSample(
        connections=len(network.connected),
        dials=totals.dials,
        dial_failures=dict(totals.dial_failures),
        endings=dict(totals.disconnects),
        newer_peers=sum(version > advertised for version in versions),
        newest_version=".".join(map(str, max(versions, default=()))),
        untested_upgrades=upgrades.untested(),
        clock_offset_s=network.clock_offset_s,
        requests=totals.requests,
        pending=sum(connection.outstanding for connection in network.connected.values()),
        unanswered=totals.timeouts,
        request_timeout_s=request_timeout_s,
    )
