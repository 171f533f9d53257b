"""The endpoints whose calls the daemon forwards: EVM chains, and the gateway of the primary network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from warpseal.api.http.startup_gate import StartupGate
from warpseal.api.node.app import NodeInterfaces
from warpseal.config.keys import Config
from warpseal.daemon.node_api import NodeApi
from warpseal.errors import StartupError
from warpseal.ops.health.chains import evm_check
from warpseal.ops.health.registry import HealthRegistry
from warpseal.runtime.background import BackgroundWork
from warpseal.runtime.lazy import LazyModule
from warpseal.runtime.process import os_error_text
from warpseal.upstream.endpoint import EvmChain
from warpseal.upstream.errors import NodeUnavailable
from warpseal.upstream.node import Sessions, open_sessions
from warpseal.warp.ids import ChainID, id_text

if TYPE_CHECKING:
    from warpseal.api.rpc.admission import Admission
    from warpseal.forwarding.evm import chain_config, forwarder
    from warpseal.forwarding.evm.forwarder import ForwardedChain, ForwardingObserver
    from warpseal.forwarding.primary import gateway as primary_gateway
    from warpseal.forwarding.primary.gateway import Gateway
    from warpseal.messages import warp_api
    from warpseal.messages.warp_api import SigningRules
    from warpseal.node.info import InfoClient
    from warpseal.node.node_view import NodeViewClient
    from warpseal.store.signing_blocks import SigningBlocks
else:
    chain_config = LazyModule("warpseal.forwarding.evm.chain_config")
    forwarder = LazyModule("warpseal.forwarding.evm.forwarder")
    primary_gateway = LazyModule("warpseal.forwarding.primary.gateway")
    warp_api = LazyModule("warpseal.messages.warp_api")

_TIMEOUT_S: Final = 10.0


class EvmApi:
    """Forwards from the start; replies that need the network's upgrade times or a genesis come after `open`,
    calls of the Warp API after `open_signing`.

    chains: the configured ones, then the added ones, while `opened` holds them. sessions: to their nodes.
    """

    def __init__(
        self,
        config: Config,
        interfaces: NodeInterfaces,
        admission: Admission,
        background: BackgroundWork,
        observer: ForwardingObserver | None = None,
    ) -> None:
        self.chains: tuple[ForwardedChain, ...] = ()
        self._sessions: Sessions | None = None
        self._added: asyncio.Queue[ForwardedChain] = asyncio.Queue()
        self._config = config
        self._interfaces = interfaces
        self._admission = admission
        self._background = background
        self._observer = observer
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
        """Let calls of the Warp API pass that no signing block names; until then all are refused."""
        self._rules = warp_api.SigningRules(network_id, blocks)

    def check_files(self) -> None:
        """Raise StartupError if an upgrade file cannot be read."""
        for chain in self._config.node.evm_chains:
            if chain.upgrade_file is not None:
                try:
                    chain.upgrade_file.open("rb").close()
                except OSError as error:
                    reason = f"upgrade-file {chain.upgrade_file} cannot be read: {os_error_text(error)}"
                    raise StartupError(f"evm-chains: {reason}") from error

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Hold the sessions to the nodes of the configured chains; no node is called yet."""
        async with open_sessions(self._config.evm_rpc.connections_per_node) as self._sessions:
            for chain in self._config.node.evm_chains:
                self.add(chain)
            yield

    @property
    def sessions(self) -> Sessions:
        """The HTTP sessions to nodes, while `opened` holds them."""
        assert self._sessions is not None
        return self._sessions

    def add(self, chain: EvmChain) -> ForwardedChain:
        """Mount one more chain, whose calls are forwarded from now on."""
        settings = self._config.evm_rpc
        genesis = partial(self._genesis, chain.blockchain_id)
        loader = chain_config.ChainConfigLoader(chain.upgrade_file, genesis, self.upgrade_times)
        guard = warp_api.WarpApiGuard(chain.blockchain_id, lambda: self._rules)
        forwarded = forwarder.forward_chain(chain, self.sessions, settings, loader, self._observer, guard)
        self._interfaces.add_evm(forwarded, self._admission, settings)
        self.chains = (*self.chains, forwarded)
        self._added.put_nowait(forwarded)
        return forwarded

    async def run(self, health: HealthRegistry, on_chain_id: Callable[[ChainID, int], None]) -> None:
        """Check the nodes of the chains until cancelled. on_chain_id: called with each EVM chain id."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                chain = await self._added.get()
                health.register(evm_check(chain))
                checking = partial(forwarder.run_chain, chain)
                part = f"checks of the nodes of {id_text(chain.chain_id)}"
                tasks.create_task(self._background.keep_running(part, checking))
                tasks.create_task(_report_chain_id(chain, on_chain_id))

    async def _genesis(self, chain_id: ChainID) -> bytes | None:
        blockchain = None
        with suppress(NodeUnavailable, TimeoutError):
            async with asyncio.timeout(_TIMEOUT_S):
                await self._opened.wait()  # Early calls wait, as everywhere.
            blockchain = await self._view.blockchain(chain_id) if self._view is not None else None
        return blockchain.genesis if blockchain is not None else None

    async def upgrade_times(self) -> Mapping[str, int] | None:
        """Return when each network upgrade begins, Unix seconds; None while no node says it."""
        if self._times is None and self._info is not None:
            with suppress(NodeUnavailable):
                self._times = await self._info.upgrades()
        return self._times


class GatewayApi:
    """Does nothing without gateway-nodes. gate: requests to its paths wait there while the daemon starts."""

    def __init__(
        self, config: Config, node_api: NodeApi, evm_api: EvmApi, admission: Admission, background: BackgroundWork
    ) -> None:
        self.gate: StartupGate[Gateway] = StartupGate(config.aggregation.default_timeout_s)
        self._config = config
        self._node_api = node_api
        self._evm_api = evm_api
        self._admission = admission
        self._background = background
        if config.gateway.nodes:
            node_api.interfaces.expect_gateway(self.gate)

    async def run(self, network_id: int) -> None:
        """Mount the routes, and the C-Chain's EVM unless evm-chains has it; check the nodes until cancelled."""
        settings = self._config.gateway
        if not settings.nodes:
            return
        chains = await self._node_api.primary_chains()
        gateway = primary_gateway.build_gateway(settings, self._evm_api.sessions, self._config.evm_rpc, network_id)
        if all(chain.chain_id != chains.c for chain in self._evm_api.chains):
            self._evm_api.add(primary_gateway.c_chain_at(settings.nodes, chains.c))
        self._node_api.add_gateway(gateway, chains, self._admission)
        self.gate.open(gateway)
        await self._background.keep_running("checks of the nodes of the gateway", gateway.run)


async def _report_chain_id(chain: ForwardedChain, on_chain_id: Callable[[ChainID, int], None]) -> None:
    """Report the EVM chain id of a chain as soon as a node reports it."""
    while chain.pool.identity.expected is None:  # noqa: ASYNC110 - a background task asks the node
        await asyncio.sleep(1.0)
    on_chain_id(chain.chain_id, chain.pool.identity.expected.chain_id)
