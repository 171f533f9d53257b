"""Calls of EVM chains that the daemon forwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Executor
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from warpseal.api.node.app import NodeInterfaces
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
from warpseal.ops.health.registry import HealthRegistry
from warpseal.runtime.process import os_error_text
from warpseal.store.signing_blocks import SigningBlocks
from warpseal.upstream.endpoint import EvmChain
from warpseal.upstream.errors import NodeUnavailable
from warpseal.upstream.node import Sessions, open_sessions
from warpseal.warp.ids import ChainID, id_text

if TYPE_CHECKING:
    from warpseal.daemon.core import Core, Upstreams

_TIMEOUT_S: Final = 10.0


class EvmApi:
    """Forwards from the start; replies that need the network's upgrade times or a genesis come
    after `open`, calls of the Warp API after `open_signing`.

    chains: the configured ones, then the added ones.
    sessions: to their nodes.
    """

    def __init__(
        self,
        registries: Registries,
        interfaces: NodeInterfaces,
        admission: Admission,
        sessions: Sessions,
    ) -> None:
        self.chains: tuple[ForwardedChain, ...] = ()
        self.sessions = sessions
        self._added: asyncio.Queue[ForwardedChain] = asyncio.Queue()
        self._config = registries.config
        self._background = registries.background
        self._observer = registries.metrics
        self._interfaces = interfaces
        self._admission = admission
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
        self._rules = SigningRules(network_id, blocks)

    def add(self, chain: EvmChain) -> ForwardedChain:
        """Mount one more chain, whose calls are forwarded from now on."""
        settings = self._config.evm_rpc
        genesis = partial(self._genesis, chain.blockchain_id)
        loader = ChainConfigLoader(chain.upgrade_file, genesis, self.upgrade_times)
        guard = WarpApiGuard(chain.blockchain_id, lambda: self._rules)
        forwarded = forward_chain(chain, self.sessions, settings, loader, self._observer, guard)
        self._interfaces.add_evm(forwarded, self._admission, settings)
        self.chains = (*self.chains, forwarded)
        self._added.put_nowait(forwarded)
        return forwarded

    async def run(
        self, health: HealthRegistry, on_chain_id: Callable[[ChainID, int], None]
    ) -> None:
        """Check the nodes of the chains until cancelled.

        on_chain_id: called with each EVM chain id.
        """
        async with asyncio.TaskGroup() as tasks:
            while True:
                chain = await self._added.get()
                health.register(evm_check(chain))
                checking = partial(run_chain, chain)
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

    def log_clients(self, executor: Executor) -> dict[ChainID, EvmLogClient]:
        """Return the readers of the logs of the chains.

        executor: decodes large replies.
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
    registries: Registries, node_api: NodeApi, admission: Admission
) -> AsyncIterator[EvmApi]:
    """Hold the sessions to the nodes of the configured chains; no node is called yet.

    Raises StartupError if an upgrade file cannot be read.
    """
    check_files(registries.config)
    async with open_sessions(registries.config.evm_rpc.connections_per_node) as sessions:
        evm_api = EvmApi(registries, node_api.interfaces, admission, sessions)
        for chain in registries.config.node.evm_chains:
            evm_api.add(chain)

        async def status(request: StatusRequest) -> Mapping[str, Any]:
            return {"chains": [_describe(chain) for chain in evm_api.chains]}

        registries.status.register(status)
        registries.run_in_background(
            "forwarding of EVM chains",
            partial(evm_api.run, registries.health, node_api.add_evm_chain_id),
        )
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


async def _report_chain_id(
    chain: ForwardedChain, on_chain_id: Callable[[ChainID, int], None]
) -> None:
    """Report the EVM chain id of a chain as soon as a node reports it."""
    while chain.pool.identity.expected is None:  # noqa: ASYNC110 - a background task asks the node
        await asyncio.sleep(1.0)
    on_chain_id(chain.chain_id, chain.pool.identity.expected.chain_id)
