"""Calls of EVM chains that the daemon forwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Executor
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from warpseal.api.node.forwarded_routes import ForwardedRoutes
from warpseal.api.rpc.admission import Admission
from warpseal.api.status.document import ChainSummary
from warpseal.config.keys import Config
from warpseal.daemon.chain_rows import describe_pool
from warpseal.daemon.node_api import NodeApi
from warpseal.daemon.registries import Registries, StatusRequest
from warpseal.errors import StartupError
from warpseal.forwarding.evm.chain_config import ChainConfigLoader
from warpseal.forwarding.evm.forwarder import ForwardedChain, forward_chain, run_chain
from warpseal.forwarding.evm.logs import EvmLogClient
from warpseal.messages.warp_api import SigningRules, WarpApiGuard
from warpseal.node.info import InfoClient
from warpseal.node.node_view import NodeViewClient
from warpseal.ops.health.chains import evm_check
from warpseal.resources.aliases import PRIMARY_NAMES
from warpseal.resources.chains import PrimaryChain
from warpseal.runtime.process import os_error_text
from warpseal.store.signing_blocks import SigningBlocks
from warpseal.upstream.endpoint import EvmChain
from warpseal.upstream.errors import NodeUnavailable
from warpseal.upstream.node import Sessions, open_sessions
from warpseal.warp.ids import ChainID, id_text

if TYPE_CHECKING:
    from warpseal.daemon.core import Core, Upstreams
    from warpseal.usage.recorder import UsageRecorder

_TIMEOUT_S: Final = 10.0


class EvmApi:
    """Forwards from the start; replies that need the network's upgrade times or a genesis come
    after `open`, calls of the Warp API after `open_signing`.

    chains: configured chains, then those that were added.
    sessions: connections to the nodes of the chains.
    """

    def __init__(
        self,
        registries: Registries,
        node_api: NodeApi,
        routes: ForwardedRoutes,
        sessions: Sessions,
    ) -> None:
        self.chains: tuple[ForwardedChain, ...] = ()
        self.routes = routes
        self.sessions = sessions
        self._added: asyncio.Queue[ForwardedChain] = asyncio.Queue()
        self._config = registries.config
        self._background = registries.background
        self._observer = registries.metrics
        self._health = registries.health
        self._node_api = node_api
        self._view: NodeViewClient | None = None
        self._info: InfoClient | None = None
        self._times: Mapping[str, int] | None = None
        self._rules: SigningRules | None = None
        self._opened = asyncio.Event()

    def open(self, view: NodeViewClient, info: InfoClient) -> None:
        """Set the clients that know a chain's genesis and the network's upgrade times."""
        self._view, self._info = view, info
        self._opened.set()

    def open_signing(self, network_id: int, blocks: SigningBlocks) -> None:
        """Let calls of the Warp API pass unless a signing block names them.

        Until then all are refused.
        """
        self._rules = SigningRules(network_id, blocks)

    def add(self, chain: EvmChain) -> ForwardedChain:
        """Mount one more chain, whose calls are forwarded from now on."""
        settings = self._config.evm_rpc
        genesis = partial(self._genesis, chain.blockchain_id)
        loader = ChainConfigLoader(chain.upgrade_file, genesis, self.upgrade_times)
        guard = WarpApiGuard(chain.blockchain_id, lambda: self._rules)
        forwarded = forward_chain(chain, self.sessions, settings, loader, self._observer, guard)
        self.routes.add_evm(forwarded, settings)
        self.chains = (*self.chains, forwarded)
        self._added.put_nowait(forwarded)
        return forwarded

    async def run(self) -> None:
        """Check the nodes of the chains, and name the chains, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._name_c_chain())
            while True:
                chain = await self._added.get()
                self._health.register(evm_check(chain))
                checking = partial(run_chain, chain)
                part = f"checks of the nodes of {id_text(chain.chain_id)}"
                tasks.create_task(self._background.keep_running(part, checking))
                tasks.create_task(self._name_by_evm_id(chain))

    async def _name_c_chain(self) -> None:
        """Name the C-Chain by its alias in the labels of usage."""
        chains = await self._node_api.primary_chains()
        self.routes.set_primary_alias(chains.c, PRIMARY_NAMES[PrimaryChain.C][0])

    async def _name_by_evm_id(self, chain: ForwardedChain) -> None:
        """Name a chain by its EVM chain id as soon as a node reports it."""
        identity = chain.pool.identity
        while identity.expected is None:  # noqa: ASYNC110 - a background task asks the node
            await asyncio.sleep(1.0)
        self._node_api.add_evm_chain_id(chain.chain_id, identity.expected.chain_id)

    async def _genesis(self, chain_id: ChainID) -> bytes | None:
        blockchain = None
        with suppress(NodeUnavailable, TimeoutError):
            async with asyncio.timeout(_TIMEOUT_S):
                await self._opened.wait()  # Early calls wait, as everywhere.
            if self._view is not None:
                blockchain = await self._view.blockchain(chain_id)
        return None if blockchain is None else blockchain.genesis

    def log_clients(self, executor: Executor) -> dict[ChainID, EvmLogClient]:
        """Return the readers of the logs of the chains.

        executor: thread that decodes large replies.
        """
        timeout_s = self._config.node.call_timeout_s
        return {
            chain.chain_id: EvmLogClient(chain.forwarder, timeout_s, executor)
            for chain in self.chains
        }

    async def upgrade_times(self) -> Mapping[str, int] | None:
        """Return when each network upgrade begins, Unix seconds; None while no node says it."""
        if self._times is None and self._info is not None:
            with suppress(NodeUnavailable):
                self._times = await self._info.upgrades()
        return self._times


@asynccontextmanager
async def open_evm_api(
    registries: Registries,
    metering: UsageRecorder | None,
    node_api: NodeApi,
    admission: Admission,
) -> AsyncIterator[EvmApi]:
    """Hold the sessions to the nodes of the configured chains; no node is called yet.

    Raises StartupError if an upgrade file cannot be read.
    """
    config = registries.config
    check_files(config)
    routes = ForwardedRoutes(node_api.interfaces, admission, config.api, config.node_api, metering)
    async with open_sessions(config.evm_rpc.connections_per_node) as sessions:
        evm_api = EvmApi(registries, node_api, routes, sessions)
        for chain in config.node.evm_chains:
            evm_api.add(chain)

        async def status(request: StatusRequest) -> Mapping[str, Any]:
            return {"chains": [_describe(chain) for chain in evm_api.chains]}

        registries.status.register(status)
        registries.run_in_background("forwarding of EVM chains", evm_api.run)
        yield evm_api


@asynccontextmanager
async def open_evm_facts(
    registries: Registries, upstreams: Upstreams, evm_api: EvmApi
) -> AsyncIterator[None]:
    """Answer calls that need the network's upgrade times or a genesis."""
    evm_api.open(upstreams.upstream.view, upstreams.upstream.info)
    yield


@asynccontextmanager
async def open_forwarding(
    core: Core, tasks: asyncio.TaskGroup, evm_api: EvmApi
) -> AsyncIterator[EvmApi]:
    """Let calls of the Warp API pass that no signing block names; until then all are refused."""
    evm_api.open_signing(core.network_id, core.store.signing_blocks)
    yield evm_api


def check_files(config: Config) -> None:
    """Raise StartupError if an upgrade file cannot be read."""
    for chain in config.node.evm_chains:
        if chain.upgrade_file is not None:
            try:
                chain.upgrade_file.open("rb").close()
            except OSError as error:
                reason = f"upgrade-file {chain.upgrade_file} cannot be read: {os_error_text(error)}"
                raise StartupError(f"evm-chains: {reason}") from error


def _describe(chain: ForwardedChain) -> ChainSummary:
    expected = chain.pool.identity.expected
    evm_id = None if expected is None else expected.chain_id
    return describe_pool("evm", id_text(chain.chain_id), chain.pool, evm_id)
