"""The node API of the daemon, under `/ext`: its endpoints, health checks, aliases and loggers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from warpseal.api.node.admin import CHAINS, AdminMethods
from warpseal.api.node.app import NodeInterfaces
from warpseal.daemon.registries import Registries
from warpseal.daemon.subsystems import plugin_probe
from warpseal.errors import CallRefused, StartupError
from warpseal.ops.health.chains import FollowedChain
from warpseal.ops.health.checks import (
    background_check,
    bootstrap_check,
    diskspace_check,
    quorum_check,
)
from warpseal.ops.health.registry import HealthCheck, run_nothing
from warpseal.ops.plugins.registry import VM_ALIASES_NAME, PluginRegistry
from warpseal.ops.plugins.registry import read_aliases as read_vm_aliases
from warpseal.ops.profiles.profiler import PROFILES_NAME, Profiler
from warpseal.ops.settings import PluginSettings
from warpseal.resources.aliases import (
    PRIMARY_NAMES,
    ChainAliases,
    InvalidAlias,
    read_aliases,
)
from warpseal.resources.chains import (
    PUBLIC_C_CHAIN_EVM_IDS,
    PUBLIC_CHAINS,
    PrimaryChain,
    PrimaryChains,
)
from warpseal.runtime.background import BackgroundWork
from warpseal.runtime.retry import Backoff, Retrier
from warpseal.upstream.errors import NodeUnavailable
from warpseal.warp.ids import (
    P_CHAIN,
    PRIMARY_NETWORK,
    ChainID,
    NodeID,
    SubnetID,
    id_text,
    node_id_text,
)

if TYPE_CHECKING:
    from warpseal.node.info import InfoClient
    from warpseal.node.upstream import Upstream
    from warpseal.ops.plugins.probe import PluginFailed
    from warpseal.validators.subnet_tracker import SubnetReadiness, SubnetTracker

log = logging.getLogger(__name__)

_BACKOFF: Final = Backoff(first_s=0.5, cap_s=30.0)


class NodeApi:
    """The node API of this daemon, which answers from the start.

    followed_chains: chains for whose tips the bootstrap check waits, by name.
    aliases: names of blockchains.
    interfaces: app of the node API.
    """

    def __init__(self, registries: Registries) -> None:
        self._config = config = registries.config
        self._loggers = registries.loggers
        self._info: InfoClient | None = None
        self._tracker: SubnetTracker | None = None
        self.followed_chains: dict[str, FollowedChain] = {}
        self.aliases = ChainAliases()
        self._chains: asyncio.Future[PrimaryChains] = asyncio.get_running_loop().create_future()
        self.health = registries.health
        self.interfaces = NodeInterfaces(config.api, config.node_api, registries.metrics)

    def checks(self, background: BackgroundWork) -> Iterator[HealthCheck]:
        """Yield the checks of a daemon that starts."""
        tracked, counted = (
            self._config.validators.tracked_subnet_ids,
            self._config.validators.ready_subnet_ids,
        )
        pinned = dict.fromkeys((PRIMARY_NETWORK, *tracked))
        yield bootstrap_check(tracked, self, lambda: self.followed_chains)
        yield diskspace_check(self._config.peers.data_dir, self._config.health)
        yield background_check(background.failing)
        for subnet_id in pinned:
            yield quorum_check(subnet_id, self)
        for subnet_id in dict.fromkeys(counted):
            # The daemon is not ready for a subnet that it does not track, which /ext/health does
            # not show.
            if subnet_id not in pinned:
                yield replace(quorum_check(subnet_id, self), run=run_nothing)

    def mount(self, profiler: Profiler) -> None:
        """Mount the endpoints.

        Raises StartupError naming a file of aliases, or the folder of the plugins.
        """
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
        admin = AdminMethods(
            self.interfaces.router, self.aliases, self._loggers, self._plugins().load, profiler
        )
        self.interfaces.add_admin(admin)

    def open(self, info: InfoClient, node_id: NodeID, subnet_tracker: SubnetTracker) -> None:
        """Add our node id to responses, and let the checks read the subnets."""
        self._info = info
        self._tracker = subnet_tracker
        self.interfaces.node_id = node_id_text(node_id)

    def readiness(self) -> Sequence[SubnetReadiness]:
        """Return the connected weight of each tracked subnet; empty while the daemon starts."""
        return () if self._tracker is None else self._tracker.readiness()

    def readiness_of(self, subnet_id: SubnetID) -> SubnetReadiness | None:
        """Return the connected weight of a subnet; None while it is not known."""
        return None if self._tracker is None else self._tracker.readiness_of(subnet_id)

    async def add_primary_chains(self, upstream: Upstream, network_id: int) -> None:
        """Name the X- and C-Chain by their aliases and the C-Chain's EVM chain id; ask nodes until
        one answers.
        """
        info = upstream.info
        logged = ""

        def on_failure(error: Exception, delay_s: float) -> None:
            nonlocal logged
            if str(error) != logged:
                logged = str(error)
                log.warning(
                    "primary chains are not known",
                    extra={"reason": logged, "next_try_s": round(delay_s, 1)},
                )

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
        if evm_id is None:
            # Of a private network a node may serve no C-Chain.
            evm_id = await Retrier(_BACKOFF, failures).call(upstream.c_blocks.evm_chain_id)
        self.add_evm_chain_id(chains.c, evm_id)

    async def primary_chains(self) -> PrimaryChains:
        """Return the ids of the X- and C-Chain once they are known, and have their paths."""
        # A caller that is cancelled leaves it to the others.
        return await asyncio.shield(self._chains)

    def add_evm_chain_id(self, chain_id: ChainID, evm_id: int) -> None:
        """Let an EVM chain id name its blockchain, also in paths; if two chains have the same id,
        the first one.
        """
        holder_id = self.aliases.find(str(evm_id))
        if holder_id is None:
            self.aliases.add_chain(chain_id, evm_id)
            add_path(
                partial(
                    self.interfaces.router.alias, CHAINS + id_text(chain_id), f"{CHAINS}{evm_id}"
                )
            )
        elif holder_id != chain_id:
            fields = {
                "evm_chain_id": evm_id,
                "chain": id_text(chain_id),
                "other": id_text(holder_id),
            }
            log.warning("two chains have the same EVM chain id", extra=fields)

    def _route(self, chain_id: ChainID, chain: PrimaryChain) -> None:
        """Add the paths of a primary chain: /ext/bc/C and /ext/C, as nodes have them, and our own
        /ext/bc/c-chain.
        """
        names = PRIMARY_NAMES[chain]
        for path in (*(CHAINS + name for name in (*names, chain.value)), *names):
            add_path(partial(self.interfaces.router.alias, CHAINS + id_text(chain_id), path))

    def _plugins(self) -> PluginRegistry:
        settings = self._config.plugins

        async def node_protocol() -> int | None:
            return await self._info.rpc_protocol_version() if self._info is not None else None

        data_dir = self._config.peers.data_dir
        folder = settings.folder(data_dir)
        if settings.plugin_dir is not None and not folder.is_dir():
            raise StartupError(
                f"plugin-dir {folder} is no folder: create it, or correct the setting"
            )
        vm_aliases = read_vm_aliases(data_dir / VM_ALIASES_NAME)
        return PluginRegistry(settings, folder, vm_aliases, node_protocol, _probe_plugin)


async def _probe_plugin(
    path: Path, settings: PluginSettings, protocol_version: int
) -> str | PluginFailed:
    return await plugin_probe.probe_plugin(path, settings, protocol_version)


@asynccontextmanager
async def open_node_api(registries: Registries) -> AsyncIterator[NodeApi]:
    """Mount `/ext`, and run the health checks. Raises StartupError."""
    node_api = NodeApi(registries)
    registries.health.register(*node_api.checks(registries.background))
    registries.run_in_background("health checks", registries.health.run)
    with closing(Profiler(registries.config.peers.data_dir / PROFILES_NAME)) as profiler:
        node_api.mount(profiler)
        yield node_api


def add_path(act: Callable[[], None]) -> None:
    """Add a path; a path that an operator gave to another chain stays theirs."""
    try:
        act()
    except CallRefused as error:
        log.warning("path is taken", extra={"reason": str(error)})
