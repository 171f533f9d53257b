"""The node API of the daemon, under `/ext`: its endpoints, health checks, aliases and loggers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from warpseal.api.node.admin import CHAINS, AdminMethods
from warpseal.api.node.app import NodeInterfaces
from warpseal.config.keys import Config
from warpseal.errors import CallRefused, StartupError
from warpseal.forwarding.primary.methods import INDEX, ROUTES
from warpseal.indexer.status import IndexStatus
from warpseal.indexer.subprocess import HeartbeatReader
from warpseal.metrics.registry import Metrics
from warpseal.metrics.samples import UsageSample
from warpseal.ops.health.chains import (
    FollowedChain,
    NodeMonitor,
    chain_check,
    evm_index_check,
    gateway_check,
)
from warpseal.ops.health.checks import (
    background_check,
    bootstrap_check,
    database_check,
    diskspace_check,
    indexer_check,
    peer_checks,
    quorum_check,
    signing_blocks_check,
)
from warpseal.ops.health.registry import HealthRegistry, not_shown
from warpseal.ops.logs.loggers import DaemonLoggers
from warpseal.ops.plugins.registry import VM_ALIASES_NAME, PluginRegistry
from warpseal.ops.plugins.registry import read_aliases as read_vm_aliases
from warpseal.ops.profiles.profiler import PROFILES_NAME, Profiler
from warpseal.resources.aliases import (
    PRIMARY_NAMES,
    ChainAliases,
    InvalidAlias,
    read_aliases,
)
from warpseal.resources.chains import PUBLIC_C_CHAIN_EVM_IDS, PUBLIC_CHAINS, PrimaryChain, PrimaryChains
from warpseal.runtime.background import BackgroundWork
from warpseal.runtime.lazy import LazyModule
from warpseal.runtime.retry import Backoff, Retrier
from warpseal.upstream.errors import NodeUnavailable
from warpseal.upstream.pool import NodePool
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, ChainID, NodeID, SubnetID, id_text, node_id_text

if TYPE_CHECKING:
    from warpseal.api.rpc.admission import Admission
    from warpseal.daemon.services import Services
    from warpseal.forwarding.primary.gateway import Gateway
    from warpseal.node.info import InfoClient
    from warpseal.node.upstream import Upstream
    from warpseal.usage import recorder
    from warpseal.validators.subnet_tracker import SubnetReadiness
else:
    recorder = LazyModule("warpseal.usage.recorder")

log = logging.getLogger(__name__)

_BACKOFF: Final = Backoff(first_s=0.5, cap_s=30.0)


class NodeApi:
    """Answers from the start; the checks that need the network are registered by `open`.

    node_monitor: the state of the upstream nodes, once they are known. usage: of forwarded routes; None if it is not
    recorded.
    """

    def __init__(self, config: Config, loggers: DaemonLoggers, metrics: Metrics, background: BackgroundWork) -> None:
        self._config = config
        self._background = background
        self._services: Services | None = None
        self._info: InfoClient | None = None
        self._loggers = loggers
        self._followed_chains: dict[str, FollowedChain] = {}
        self._heartbeat = HeartbeatReader(config.peers.data_dir)
        self._held = ExitStack()
        self.node_monitor: NodeMonitor | None = None
        self.aliases = ChainAliases()
        self.gateway_pools: Mapping[str, NodePool[int]] = {}
        self._chains: asyncio.Future[PrimaryChains] = asyncio.get_running_loop().create_future()
        self.health = HealthRegistry(config.health)
        self.usage = recorder.UsageRecorder() if config.records_usage else None
        self.interfaces = NodeInterfaces(config.api, config.data_api, config.node_api, metrics, self.usage)
        tracked, counted = config.validators.tracked_subnet_ids, config.validators.ready_subnet_ids
        pinned = dict.fromkeys((PRIMARY_NETWORK, *tracked))
        self.health.register(
            bootstrap_check(tracked, self._readiness, lambda: self._followed_chains),
            diskspace_check(config.peers.data_dir, config.health),
            background_check(background.failing),
            *(quorum_check(subnet_id, self._readiness_of) for subnet_id in pinned),
            # The daemon is not ready for a subnet that it does not track, which /ext/health does not show.
            *(
                replace(quorum_check(subnet_id, self._readiness_of), run=not_shown)
                for subnet_id in dict.fromkeys(counted)
                if subnet_id not in pinned
            ),
        )

    def mount(self) -> None:
        """Mount the endpoints, and hold the profiler until `run` ends.

        Raises StartupError naming a file of aliases, or the folder of the plugins.
        """
        profiler = self._held.enter_context(closing(Profiler(self._config.peers.data_dir / PROFILES_NAME)))
        self._route(P_CHAIN, PrimaryChain.P)
        for chain_id, names in read_aliases(self._config.node_api.chain_aliases_file).items():
            for name in names:
                try:
                    self.aliases.add_alias(chain_id, name)
                except InvalidAlias as error:
                    file = self._config.node_api.chain_aliases_file
                    raise StartupError(f"chain-aliases-file {file}: {error}") from None
                self.interfaces.router.alias(CHAINS + id_text(chain_id), CHAINS + name)
        for chain in self._config.node.evm_chains:
            self.aliases.add_chain(chain.blockchain_id)
        self.interfaces.add_health(self.health)
        admin = AdminMethods(self.interfaces.router, self.aliases, self._loggers, self._plugins().load, profiler)
        self.interfaces.add_admin(admin)

    def open(self, services: Services, upstream: Upstream, node_id: NodeID, index: IndexStatus) -> NodeMonitor:
        """Register the checks of the services, and add our node id to responses. Return the monitor of the nodes."""
        config, network = self._config, services.network
        now = asyncio.get_running_loop().time
        self._services = services
        probes = (upstream.platform.probe, upstream.info.probe)
        quorum = config.node.p_chain_quorum
        height, is_fresh = lambda: services.heights.last, lambda: services.heights.is_fresh
        monitor = self.node_monitor = NodeMonitor(*probes, height, is_fresh, config.health, now, quorum)
        self.interfaces.node_id = node_id_text(node_id)
        if not services.follower.is_off:
            self._followed_chains["P"] = FollowedChain("P", PRIMARY_NETWORK, services.follower.progress)
        self._loggers.add_chains(
            (*self._followed_chains, *(PRIMARY_NAMES[chain][0] for chain in config.indexer.chains))
        )

        chains = (*self._followed_chains.values(), *self._indexed(index))
        self.health.register(
            monitor.check(),
            *(chain_check(chain, self._readiness_of, config.health.max_lag_s, now) for chain in chains),
            database_check(services.store.status),
            signing_blocks_check(services.store.signing_blocks.blocking_error),
            *peer_checks(
                network, services.subnet_tracker, services.underfunded, services.upgrades.untested, config.peers, now
            ),
        )
        if config.indexer.chains or config.node.has_evm_index:
            report_age_s = partial(index.report_age_s, config.indexer.chains)
            self.health.register(
                indexer_check(self._heartbeat.silence_s, config.health, index.stalled_chains, report_age_s)
            )
        if config.node.has_evm_index:
            evm = index.evm
            self.health.register(evm_index_check(evm.refresh_if_old, evm.states, evm.stalled_chains))
        network.subscribe(lambda node_id, connected: self.health.trigger())
        services.heights.watch(self.health.trigger)
        services.subnet_tracker.watch(self.health.trigger)
        return monitor

    def usage_samples(self) -> Iterator[UsageSample]:
        """Yield the metered calls since the start."""
        for (path, method), usage in list(self.usage.since_start.items()) if self.usage is not None else ():
            calls = {str(outcome): count for outcome, count in usage.by_outcome().items()}
            yield UsageSample(path, method, calls, usage.credits, usage.credits_wasted, usage.time_ms / 1_000)

    def _readiness(self) -> Sequence[SubnetReadiness]:
        """Return the connected weight of each tracked subnet; empty while the daemon starts."""
        return () if self._services is None else self._services.subnet_tracker.readiness()

    def _readiness_of(self, subnet_id: SubnetID) -> SubnetReadiness | None:
        return None if self._services is None else self._services.subnet_tracker.readiness_of(subnet_id)

    async def run(self) -> None:
        """Run the health checks until cancelled."""
        with self._held:
            await self._background.keep_running("health checks", self.health.run)

    async def add_primary_chains(self, upstream: Upstream, network_id: int) -> None:
        """Name the X- and C-Chain by their aliases and the C-Chain's EVM chain id; ask nodes until one answers."""
        self._info = info = upstream.info
        logged = ""

        def on_failure(error: Exception, delay_s: float) -> None:
            nonlocal logged
            if str(error) != logged:
                logged = str(error)
                log.warning("primary chains are not known", extra={"reason": logged, "next_try_s": round(delay_s, 1)})

        failures: Mapping[type[Exception], str] = {NodeUnavailable: "nodes"}

        async def from_nodes() -> PrimaryChains:
            return PrimaryChains(await info.blockchain_id("X"), await info.blockchain_id("C"))

        chains, evm_id = PUBLIC_CHAINS.get(network_id), PUBLIC_C_CHAIN_EVM_IDS.get(network_id)
        if chains is None:
            chains = await Retrier(_BACKOFF, failures, on_failure).call(from_nodes)
        self.aliases.add_primary_chains(chains.x, chains.c)
        self._route(chains.x, PrimaryChain.X)
        self._route(chains.c, PrimaryChain.C)
        if not self._chains.done():
            self._chains.set_result(chains)
        self.interfaces.set_primary_alias(chains.c, PRIMARY_NAMES[PrimaryChain.C][0])
        if evm_id is None:
            # Of a private network a node may serve no C-Chain.
            evm_id = await Retrier(_BACKOFF, failures).call(upstream.c_blocks.evm_chain_id)
        self.add_evm_chain_id(chains.c, evm_id)

    async def primary_chains(self) -> PrimaryChains:
        """Return the ids of the X- and C-Chain once they are known, and have their paths."""
        # A caller that is cancelled leaves it to the others.
        return await asyncio.shield(self._chains)

    def add_gateway(self, gateway: Gateway, chains: PrimaryChains, admission: Admission) -> None:
        """Mount the routes of the gateway, under all names of their chains, and register the check of its nodes."""
        for route in ROUTES:
            chain_id = chains.id_of(route.chain)
            _add_path(partial(self.interfaces.add_gateway_route, route, gateway, chain_id, admission))
        for chain in PrimaryChain:
            endpoint = f"{INDEX}/{id_text(chains.id_of(chain))}"
            for name in (*PRIMARY_NAMES[chain], chain.value):
                _add_path(partial(self.interfaces.router.alias, endpoint, f"{INDEX}/{name}"))
        self.gateway_pools = {chain.name: forwarder.pool for chain, forwarder in gateway.forwarders.items()}
        self.health.register(gateway_check(self.gateway_pools))

    def add_evm_chain_id(self, chain_id: ChainID, evm_id: int) -> None:
        """Let an EVM chain id name its blockchain, also in paths; if two chains have the same id, the first one."""
        holder_id = self.aliases.find(str(evm_id))
        if holder_id is None:
            self.aliases.add_chain(chain_id, evm_id)
            _add_path(partial(self.interfaces.router.alias, CHAINS + id_text(chain_id), f"{CHAINS}{evm_id}"))
        elif holder_id != chain_id:
            fields = {"evm_chain_id": evm_id, "chain": id_text(chain_id), "other": id_text(holder_id)}
            log.warning("two chains have the same EVM chain id", extra=fields)

    def _indexed(self, index: IndexStatus) -> Iterator[FollowedChain]:
        """Yield the chains that only the index follows. Readiness does not wait for them: they may take days."""
        for chain in self._config.indexer.chains:
            name = PRIMARY_NAMES[chain][0]
            if name not in self._followed_chains:
                yield FollowedChain(name, PRIMARY_NETWORK, partial(index.progress, chain))

    def _route(self, chain_id: ChainID, chain: PrimaryChain) -> None:
        """Add the paths of a primary chain: /ext/bc/C and /ext/C, as nodes have them, and our own /ext/bc/c-chain."""
        names = PRIMARY_NAMES[chain]
        for path in (*(CHAINS + name for name in (*names, chain.value)), *names):
            _add_path(partial(self.interfaces.router.alias, CHAINS + id_text(chain_id), path))

    def _plugins(self) -> PluginRegistry:
        settings = self._config.plugins

        async def node_protocol() -> int | None:
            return await self._info.rpc_protocol_version() if self._info is not None else None

        data_dir = self._config.peers.data_dir
        folder = settings.folder(data_dir)
        if settings.plugin_dir is not None and not folder.is_dir():
            raise StartupError(f"plugin-dir {folder} is no folder: create it, or correct the setting")
        vm_aliases = read_vm_aliases(data_dir / VM_ALIASES_NAME)
        return PluginRegistry(settings, folder, vm_aliases, node_protocol=node_protocol)


def _add_path(act: Callable[[], None]) -> None:
    """Add a path; a path that an operator gave to another chain stays theirs."""
    try:
        act()
    except CallRefused as error:
        log.warning("path is taken", extra={"reason": str(error)})
