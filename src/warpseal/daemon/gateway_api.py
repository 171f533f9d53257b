"""The gateway of the primary network: its start once the ids of the primary chains are known."""

from __future__ import annotations

from warpseal.api.http.startup_gate import StartupGate
from warpseal.api.rpc.evm import Admission
from warpseal.config.keys import Config
from warpseal.daemon.evm_api import EvmApi
from warpseal.daemon.node_api import NodeApi
from warpseal.forwarding.primary.gateway import Gateway, build_gateway, c_chain_at


class GatewayApi:
    """Does nothing without gateway-nodes. gate: requests to its paths wait there while the daemon starts."""

    def __init__(self, config: Config, node_api: NodeApi, evm_api: EvmApi, admission: Admission) -> None:
        self.gate = StartupGate[Gateway](config.aggregation.default_timeout_s)
        self._config = config
        self._node_api = node_api
        self._evm_api = evm_api
        self._admission = admission
        if config.gateway.nodes:
            node_api.interfaces.expect_gateway(self.gate)

    async def run(self, network_id: int) -> None:
        """Mount the routes, and the C-Chain's EVM unless evm-chains has it; check the nodes until cancelled."""
        settings = self._config.gateway
        if not settings.nodes:
            return
        chains = await self._node_api.primary_chains()
        gateway = build_gateway(settings, self._evm_api.sessions, self._config.evm_rpc, network_id)
        if all(chain.chain_id != chains.c for chain in self._evm_api.chains):
            self._evm_api.add(c_chain_at(settings.nodes, chains.c))
        self._node_api.add_gateway(gateway, chains, self._admission)
        self.gate.open(gateway)
        await gateway.run()
