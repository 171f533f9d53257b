"""The composition root of what the daemon shows of itself as a node: `/ext`, its health checks, aliases, loggers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from math import isfinite
from random import SystemRandom
from typing import TYPE_CHECKING, Final, TypeVar

from warpseal.api.node.admin import CHAINS, AdminServices
from warpseal.api.node.app import NodeInterfaces
from warpseal.api.request_log import HttpObserver
from warpseal.config.keys import Config
from warpseal.errors import CallRefused, NodeUnavailable, StartupError
from warpseal.history.aliases import (
    C_NAMES,
    P_NAMES,
    PRIMARY_ALIASES,
    X_NAMES,
    ChainAliases,
    InvalidAlias,
    read_aliases,
)
from warpseal.history.chains import PUBLIC_C_CHAIN_EVM_IDS, PUBLIC_CHAINS, PrimaryChain, PrimaryChains
from warpseal.indexer.status import IndexStatus
from warpseal.ops.health.chains import ChainProgress, FollowedChain, chain_check
from warpseal.ops.health.host import database_check, diskspace_check, indexer_check
from warpseal.ops.health.nodes import NodeMonitor
from warpseal.ops.health.peer_checks import PeerTraffic, clock_check, network_check, router_check
from warpseal.ops.health.registry import HealthRegistry
from warpseal.ops.health.subnets import BootstrapCheck, quorum_check
from warpseal.ops.ipc.server import ControlServer
from warpseal.ops.logs.ipc import ClusterLoggers
from warpseal.ops.logs.loggers import DaemonLoggers
from warpseal.ops.plugins.aliases import read_aliases as read_vm_aliases
from warpseal.ops.plugins.registry import PluginRegistry
from warpseal.ops.profiles.ipc import ClusterProfiler
from warpseal.ops.profiles.profiler import open_profiler
from warpseal.runtime.backoff import Backoff
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, ChainID, NodeID, id_text, node_id_text

if TYPE_CHECKING:
    from warpseal.daemon.services import Services
    from warpseal.l1.follower.follower import PChainFollower
    from warpseal.node.info import InfoClient
    from warpseal.node.upstream import Upstream
    from warpseal.peers.network import PeerNetwork
    from warpseal.validators.subnet_tracker import SubnetReadiness

log = logging.getLogger(__name__)

T = TypeVar("T")

_RETRY: Final = Backoff(first_s=0.5, cap_s=30.0)


class NodeApi:
    """Answers from the start; what needs the network comes with `open`.

    readiness: how much of each pinned subnet is connected, none while nobody knows.
    """

    def __init__(
        self,
        config: Config,
        readiness: Callable[[], Sequence[SubnetReadiness]],
        loggers: DaemonLoggers,
        observer: HttpObserver,
    ) -> None:
        self._config = config
        self._readiness = readiness
        self._info: InfoClient | None = None
        self._loggers = loggers
        self._followings: dict[str, FollowedChain] = {}
        self._control_server = ControlServer(config.peers.data_dir, time.monotonic)
        self._held = ExitStack()
        self.aliases = ChainAliases()
        self.health = HealthRegistry(config.health)
        self.interfaces = NodeInterfaces(config.api, config.data_api, config.node_api, observer)
        pinned = tuple(dict.fromkeys((PRIMARY_NETWORK, *config.validators.tracked_subnet_ids)))
        self.bootstrapped = BootstrapCheck(pinned, readiness, lambda: self._followings)
        self.health.register(
            self.bootstrapped.check(),
            diskspace_check(config.peers.data_dir, config.health),
            *(quorum_check(subnet_id, readiness) for subnet_id in pinned),
        )

    def mount(self) -> None:
        """Put up the endpoints, hold the profiler until `run` ends. Raises StartupError naming a file of aliases."""
        profiles, folder = self._config.profiles, self._config.profiles.folder(self._config.peers.data_dir)
        own = self._held.enter_context(open_profiler(folder, memory_frames=profiles.memory_frames))
        self._route(P_CHAIN, P_NAMES, PrimaryChain.P)
        for chain_id, names in read_aliases(self._config.node_api.chain_aliases_file).items():
            try:
                self.aliases.configure({chain_id: names})
            except InvalidAlias as error:
                raise StartupError(f"chain-aliases-file: {error}") from None
            for name in names:
                self.interfaces.router.alias(CHAINS + id_text(chain_id), CHAINS + name)
        for chain in self._config.node.evm_chains:
            self.aliases.add_chain(chain.blockchain_id)
        self.interfaces.add_health(self.health)
        loggers, profilers = (
            ClusterLoggers(self._loggers, self._control_server),
            ClusterProfiler(own, self._control_server),
        )
        rooms = AdminServices(self.interfaces.router, self.aliases, loggers, self._plugins(), profilers)
        self.interfaces.add_admin(rooms)

    def open(self, core: Services, node_id: NodeID, index: IndexStatus) -> None:
        """Begin to look at what is there now, and sign answers with our node id."""
        config, network = self._config, core.network
        now = asyncio.get_running_loop().time
        self.interfaces.node_id = node_id_text(node_id)
        if not core.follower.status().is_off:
            self._followings["P"] = FollowedChain("P", PRIMARY_NETWORK, lambda: _standing(core.follower))
        self._loggers.know_chains((*self._followings, *(PRIMARY_ALIASES[one] for one in config.indexer.chains)))

        def traffic() -> PeerTraffic:
            return _traffic(network, config.peers.max_outstanding)

        def store_fault() -> str | None:
            status = core.store.status()
            return None if status.is_up else f"the store is down: {status.reason}"

        chains = (*self._followings.values(), *self._indexed(index))
        self.health.register(
            *(chain_check(one, self._readiness, config.health.max_lag_s, now) for one in chains),
            database_check(store_fault),
            network_check(traffic, now),
            router_check(traffic, now),
            clock_check(lambda: network.clock_offset_s, config.peers.clock_tolerance_s),
        )
        if config.indexer.chains:
            self.health.register(indexer_check(self._control_server.silence_s, config.health, index.stopped_chains))
        network.subscribe(lambda node_id, connected: self.health.trigger())
        core.heights.watch(self.health.trigger)
        core.followed.watch(self.health.trigger)

    async def watch_nodes(self, core: Services, upstream: Upstream) -> None:
        """Look how the nodes do, until cancelled."""
        now = asyncio.get_running_loop().time
        probes = (upstream.platform.probe, upstream.info.probe)
        watch = NodeMonitor(*probes, core.heights, self._config.health, now)
        self.health.register(watch.check())
        await watch.run(self.health.trigger)

    async def run(self) -> None:
        """Check health, and tell the indexer what it is told, until cancelled; a profile being taken ends with it."""
        with self._held:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.health.run())
                if self._config.indexer.chains:
                    tasks.create_task(self._control_server.run())

    async def add_primary_chains(self, upstream: Upstream, network_id: int) -> None:
        """Learn which blockchains the aliases X and C are, and the C-Chain's EVM chain id.

        A node that does not tell is asked again.
        """
        self._info = info = upstream.info

        async def from_nodes() -> PrimaryChains:
            return PrimaryChains(await info.blockchain_id("X"), await info.blockchain_id("C"))

        chains, evm_id = PUBLIC_CHAINS.get(network_id), PUBLIC_C_CHAIN_EVM_IDS.get(network_id)
        if chains is None:
            chains = await _patiently(from_nodes)
        self.aliases.add_primary_chains(chains.x, chains.c)
        self._route(chains.x, X_NAMES, PrimaryChain.X)
        self._route(chains.c, C_NAMES, PrimaryChain.C)
        self.add_evm_chain_id(chains.c, await _patiently(upstream.c_blocks.evm_chain_id) if evm_id is None else evm_id)

    def add_evm_chain_id(self, chain_id: ChainID, evm_id: int) -> None:
        """Let an EVM chain id name its blockchain, in paths too; where two chains have the same, the first."""
        named = self.aliases.find(str(evm_id))
        if named is None:
            self.aliases.add_chain(chain_id, evm_id)
            _or_warn(partial(self.interfaces.router.alias, CHAINS + id_text(chain_id), f"{CHAINS}{evm_id}"))
        elif named != chain_id:
            told = {"evm_chain_id": evm_id, "chain": id_text(chain_id), "other": id_text(named)}
            log.warning("another chain has the same EVM chain id, and is named by it", extra=told)

    def _indexed(self, index: IndexStatus) -> Iterator[FollowedChain]:
        """Yield the chains of the index that nothing else follows. Nobody waits for them: they may take days."""
        for chain in self._config.indexer.chains:
            name = PRIMARY_ALIASES[chain]
            if name not in self._followings:
                yield FollowedChain(name, PRIMARY_NETWORK, partial(_indexed_standing, index, chain))

    def _route(self, chain_id: ChainID, names: Sequence[str], specified: str) -> None:
        """Let paths name a primary chain as nodes do, /ext/bc/C and /ext/C, and as we do: /ext/bc/c-chain."""
        for path in (*(CHAINS + name for name in (*names, specified)), *names):
            _or_warn(partial(self.interfaces.router.alias, CHAINS + id_text(chain_id), path))

    def _plugins(self) -> PluginRegistry:
        settings = self._config.plugins

        async def node_protocol() -> int | None:
            return await self._info.rpc_protocol_version() if self._info is not None else None

        folder = settings.folder(self._config.peers.data_dir)
        return PluginRegistry(settings, folder, read_vm_aliases(settings.aliases_file), node_protocol=node_protocol)


async def _patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Return what `ask` returns once a node answers."""
    delay_s, random = 0.0, SystemRandom()
    while True:
        try:
            return await ask()
        except NodeUnavailable:
            delay_s = _RETRY.next_delay(delay_s, random)
            await asyncio.sleep(delay_s)


def _or_warn(act: Callable[[], None]) -> None:
    """Take a path of the node interfaces; one that an operator has given away already is theirs."""
    try:
        act()
    except CallRefused as error:
        log.warning("a path of the node interfaces is taken", extra={"reason": str(error)})


def _standing(follower: PChainFollower) -> ChainProgress:
    now = follower.status()
    return ChainProgress(now.height, now.node_height, now.block_id, now.stopped, bool(now.remaining_blocks))


def _indexed_standing(status: IndexStatus, chain: PrimaryChain) -> ChainProgress:
    index = status.index
    fresh = next((one for one in index.freshness() if one.chain is chain), None) if index is not None else None
    note = index.chain_statuses().get(chain) if index is not None else None
    stopped = note.stopped if note is not None and note.stopped else None
    if fresh is None:
        return ChainProgress(None, note.node_height if note is not None else None, None, stopped, is_backfilling=True)
    is_catching_up = note is not None and note.rate_blocks_s is not None
    return ChainProgress(fresh.height, fresh.node_height, fresh.block_id, stopped, is_catching_up)


def _traffic(network: PeerNetwork, max_outstanding: int) -> PeerTraffic:
    connections = list(network.connected.values())
    oldest = [moment for one in connections if (moment := one.oldest_request_at) is not None]
    return PeerTraffic(
        peers=len(connections),
        received_at=_latest(one.received_at for one in connections),
        sent_at=_latest(one.sent_at for one in connections),
        sent=sum(one.requests for one in network.statistics.values()),
        unsent=sum(one.refused for one in network.statistics.values()),
        outstanding=sum(one.outstanding for one in connections),
        capacity=max_outstanding * len(connections),
        oldest_request_at=min(oldest, default=None),
    )


def _latest(moments: Iterable[float]) -> float | None:
    """Return the latest moment; None where there was none yet."""
    return max((moment for moment in moments if isfinite(moment)), default=None)
