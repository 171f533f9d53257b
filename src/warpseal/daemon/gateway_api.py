"""The gateway of the primary network: calls that the daemon forwards to the nodes of
`gateway-nodes`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from warpseal.api.http.startup_gate import StartupGate
from warpseal.daemon.chain_rows import describe_pool
from warpseal.daemon.evm_api import EvmApi
from warpseal.daemon.node_api import NodeApi, add_path
from warpseal.daemon.registries import Registries, StatusRequest
from warpseal.forwarding.primary.gateway import Gateway, build_gateway, c_chain_at
from warpseal.forwarding.primary.methods import INDEX, ROUTES
from warpseal.ops.health.chains import gateway_check
from warpseal.resources.aliases import PRIMARY_NAMES
from warpseal.resources.chains import PrimaryChain, PrimaryChains
from warpseal.upstream.pool import NodePool
from warpseal.warp.ids import id_text

if TYPE_CHECKING:
    from warpseal.daemon.core import Core


class GatewayApi:
    """Requests to the paths of the gateway wait at its gate while the daemon starts."""

    def __init__(self, registries: Registries, node_api: NodeApi, evm_api: EvmApi) -> None:
        config = registries.config
        self.gate: StartupGate[Gateway] = StartupGate(config.aggregation.default_timeout_s)
        self.pools: Mapping[str, NodePool[int]] = {}
        self._config = config
        self._health = registries.health
        self._background = registries.background
        self._node_api = node_api
        self._evm_api = evm_api
        node_api.interfaces.expect_gateway(self.gate)

    async def run(self, network_id: int) -> None:
        """Mount the routes, and the C-Chain's EVM unless evm-chains has it; check the nodes until
        cancelled.
        """
        settings = self._config.gateway
        chains = await self._node_api.primary_chains()
        gateway = build_gateway(settings, self._evm_api.sessions, self._config.evm_rpc, network_id)
        if all(chain.chain_id != chains.c for chain in self._evm_api.chains):
            self._evm_api.add(c_chain_at(settings.nodes, chains.c))
        self._mount(gateway, chains)
        self.gate.open(gateway)
        await self._background.keep_running("checks of the nodes of the gateway", gateway.run)

    def _mount(self, gateway: Gateway, chains: PrimaryChains) -> None:
        """Mount the routes under all names of their chains, and register the check of the nodes."""
        for route in ROUTES:
            chain_id = chains.id_of(route.chain)
            add_path(partial(self._evm_api.routes.add_gateway, route, gateway, chain_id))
        router = self._node_api.interfaces.router
        for chain in PrimaryChain:
            endpoint = f"{INDEX}/{id_text(chains.id_of(chain))}"
            for name in (*PRIMARY_NAMES[chain], chain.value):
                add_path(partial(router.alias, endpoint, f"{INDEX}/{name}"))
        self.pools = {chain.name: forwarder.pool for chain, forwarder in gateway.forwarders.items()}
        self._health.register(gateway_check(self.pools))


@asynccontextmanager
async def open_gateway_api(
    registries: Registries, node_api: NodeApi, evm_api: EvmApi
) -> AsyncIterator[GatewayApi]:
    """Let requests to the gateway wait."""
    gateway_api = GatewayApi(registries, node_api, evm_api)
    registries.starting_gates.append(gateway_api.gate)

    async def status(request: StatusRequest) -> Mapping[str, Any]:
        pools = gateway_api.pools
        return {"chains": [describe_pool("gateway", name, pool) for name, pool in pools.items()]}

    registries.status.register(status)
    yield gateway_api


@asynccontextmanager
async def open_gateway(
    core: Core, tasks: asyncio.TaskGroup, gateway_api: GatewayApi
) -> AsyncIterator[None]:
    """Answer the requests as soon as the ids of the primary chains are known."""
    core.keep_running(tasks, "gateway", lambda: gateway_api.run(core.network_id))
    yield
