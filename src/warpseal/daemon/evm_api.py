"""Calls of EVM chains that the daemon forwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from warpseal.api.node.forwarded_routes import ForwardedRoutes
from warpseal.api.rpc.admission import Admission
from warpseal.api.status.document import ChainSummary
from warpseal.daemon.chain_rows import describe_pool
from warpseal.daemon.node_api import NodeApi
from warpseal.daemon.registries import Registries, StatusRequest
from warpseal.forwarding.evm.chain_config import ChainConfigLoader, check_upgrade_file
from warpseal.forwarding.evm.chain_facts import EvmChainFacts
from warpseal.forwarding.evm.forwarder import ForwardedChain, forward_chain, run_chain
from warpseal.forwarding.evm.logs import EvmLogClient
from warpseal.messages.warp_api import SigningRules, WarpApiGuard
from warpseal.ops.health.chains import evm_check
from warpseal.resources.aliases import PRIMARY_NAMES
from warpseal.resources.chains import PrimaryChain
from warpseal.upstream.endpoint import EvmChain
from warpseal.upstream.node import Sessions, open_sessions
from warpseal.warp.ids import ChainID, id_text

if TYPE_CHECKING:
    from warpseal.daemon.core import Core, Upstreams
    from warpseal.usage.recorder import UsageRecorder


class EvmApi:
    """Forwards from the start; replies that need the network's upgrade times or a genesis come
    once `facts` are open, calls of the Warp API once `signing_rules` are.

    chains: configured chains, then those that were added.
    sessions: connections to the nodes of the chains.
    facts: upgrade times and genesis files.
    signing_rules: signing blocks, which may name calls of the Warp API.
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
        self.facts = EvmChainFacts()
        self.signing_rules = SigningRules()
        self._added: asyncio.Queue[ForwardedChain] = asyncio.Queue()
        self._config = registries.config
        self._background = registries.background
        self._observer = registries.metrics
        self._health = registries.health
        self._node_api = node_api

    def add(self, chain: EvmChain) -> ForwardedChain:
        """Mount one more chain, whose calls are forwarded from now on."""
        settings = self._config.evm_rpc
        loader = ChainConfigLoader(chain.blockchain_id, chain.upgrade_file, self.facts)
        guard = WarpApiGuard(chain.blockchain_id, self.signing_rules)
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

    def log_clients(self, executor: Executor) -> dict[ChainID, EvmLogClient]:
        """Return the readers of the logs of the chains.

        executor: thread that decodes large replies.
        """
        timeout_s = self._config.node.call_timeout_s
        return {
            chain.chain_id: EvmLogClient(chain.forwarder, timeout_s, executor)
            for chain in self.chains
        }


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
    for chain in config.node.evm_chains:
        if chain.upgrade_file is not None:
            check_upgrade_file(chain.upgrade_file)
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
    evm_api.facts.open(upstreams.upstream.view, upstreams.upstream.info)
    yield


@asynccontextmanager
async def open_forwarding(
    core: Core, tasks: asyncio.TaskGroup, evm_api: EvmApi
) -> AsyncIterator[EvmApi]:
    """Let calls of the Warp API pass that no signing block names; until then all are refused."""
    evm_api.signing_rules.open(core.network_id, core.store.signing_blocks)
    yield evm_api


def _describe(chain: ForwardedChain) -> ChainSummary:
    expected = chain.pool.identity.expected
    evm_id = None if expected is None else expected.chain_id
    return describe_pool("evm", id_text(chain.chain_id), chain.pool, evm_id)
