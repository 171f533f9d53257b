"""The gateway of the primary network: calls that the daemon forwards to the nodes of
`gateway-nodes`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from warpseal.api.http.startup_gate import StartupGate
from warpseal.api.rpc.admission import Admission
from warpseal.daemon.evm_api import EvmApi
from warpseal.daemon.node_api import NodeApi
from warpseal.daemon.registries import Registries
from warpseal.forwarding.primary.gateway import Gateway, build_gateway, c_chain_at

if TYPE_CHECKING:
    from warpseal.daemon.core import Core


class GatewayApi:
    """Requests to the paths of the gateway wait at its gate while the daemon starts."""

    def __init__(
        self, registries: Registries, node_api: NodeApi, evm_api: EvmApi, admission: Admission
    ) -> None:
        config = registries.config
        self.gate: StartupGate[Gateway] = StartupGate(config.aggregation.default_timeout_s)
        self._config = config
        self._background = registries.background
        self._node_api = node_api
        self._evm_api = evm_api
        self._admission = admission
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
        self._node_api.add_gateway(gateway, chains, self._admission)
        self.gate.open(gateway)
        await self._background.keep_running("checks of the nodes of the gateway", gateway.run)


@asynccontextmanager
async def open_gateway_api(
    registries: Registries, node_api: NodeApi, evm_api: EvmApi, admission: Admission
) -> AsyncIterator[GatewayApi]:
    """Let requests to the gateway wait."""
    gateway_api = GatewayApi(registries, node_api, evm_api, admission)
    registries.starting_gates.append(gateway_api.gate)
    yield gateway_api


@asynccontextmanager
async def open_gateway(
    core: Core, tasks: asyncio.TaskGroup, gateway_api: GatewayApi
) -> AsyncIterator[None]:
    """Answer the requests as soon as the ids of the primary chains are known."""
    core.keep_running(tasks, "gateway", lambda: gateway_api.run(core.network_id))
    yield
