"""The endpoints of forwarded calls in the node API, each with the meter of its route."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from functools import partial

from starlette.types import ASGIApp

from warpseal.api.http.settings import ApiSettings
from warpseal.api.node.admin import CHAINS
from warpseal.api.node.app import RPC_ROUTE, WS_ROUTE, NodeInterfaces
from warpseal.api.node.router import PREFIX
from warpseal.api.node.settings import NodeApiSettings, RpcUnit
from warpseal.api.rpc.admission import Admission, CountUnits
from warpseal.api.rpc.evm import EvmEndpoint, sum_credits
from warpseal.api.rpc.evm_websocket import EvmWebSocketEndpoint
from warpseal.api.rpc.gateway import GatewayEndpoint
from warpseal.api.rpc.jsonrpc_geth import count_entries
from warpseal.api.rpc.metering import RouteMeter
from warpseal.forwarding.evm.forwarder import ForwardedChain
from warpseal.forwarding.evm.methods import KNOWN_METHODS
from warpseal.forwarding.primary.gateway import Gateway
from warpseal.forwarding.primary.methods import GatewayRoute
from warpseal.forwarding.settings import EvmRpcSettings
from warpseal.usage.credits import MethodCredits
from warpseal.usage.recorder import UsageRecorder
from warpseal.warp.ids import ChainID, id_text


class ForwardedRoutes:
    """Mounts EVM chains and routes of the gateway in the node API.

    admission: checks the keys and limits of callers.
    recorder: records the usage of the routes; None: it is not recorded.
    """

    def __init__(
        self,
        interfaces: NodeInterfaces,
        admission: Admission,
        settings: ApiSettings,
        node_settings: NodeApiSettings,
        recorder: UsageRecorder | None = None,
    ) -> None:
        self._interfaces = interfaces
        self._admission = admission
        self._settings = settings
        self._recorder = recorder
        self._credits = MethodCredits(node_settings.method_credits)
        self._limits_credits = node_settings.rate_limit_rpc is RpcUnit.CREDITS
        self._primary_aliases: dict[ChainID, str] = {}
        self._evm_meters: dict[ChainID, dict[str, RouteMeter]] = {}

    def add_evm(self, chain: ForwardedChain, settings: EvmRpcSettings) -> None:
        """Mount an EVM chain: its `/rpc`, and its `/ws` if its nodes have one."""
        forwarder, sockets, count_units = chain.forwarder, chain.sockets, self._count_units()
        routes: dict[str, ASGIApp] = {
            RPC_ROUTE: EvmEndpoint(
                forwarder,
                self._admission,
                self._settings,
                count_units,
                self._evm_meter(chain.chain_id, RPC_ROUTE),
            )
        }
        if sockets.is_configured:
            routes[WS_ROUTE] = EvmWebSocketEndpoint(
                forwarder,
                sockets,
                self._admission,
                settings,
                count_units,
                self._evm_meter(chain.chain_id, WS_ROUTE),
            )
        self._interfaces.add(CHAINS + id_text(chain.chain_id), routes, CHAINS + "{blockchainID}")

    def add_gateway(self, route: GatewayRoute, gateway: Gateway, chain_id: ChainID) -> None:
        """Mount a route of the gateway, below the id of its chain.

        Raises CallRefused if the path is in use.
        """
        app = GatewayEndpoint(
            route,
            gateway.forwarders[route.chain],
            gateway.methods,
            self._admission,
            self._settings,
            self._credits if self._limits_credits else None,
            self._meter(route.path, gateway.methods.metered),
        )
        self._interfaces.add(
            route.endpoint(id_text(chain_id)), {route.sub_route: app}, route.endpoint()
        )

    def set_primary_alias(self, chain_id: ChainID, alias: str) -> None:
        """Set the name of a chain in the labels of usage, in place of its id."""
        self._primary_aliases[chain_id] = alias
        for route, meter in self._evm_meters.get(chain_id, {}).items():
            meter.path = PREFIX + CHAINS + alias + route

    def _count_units(self) -> CountUnits:
        if self._limits_credits:
            return partial(sum_credits, self._credits)
        return count_entries

    def _evm_meter(self, chain_id: ChainID, route: str) -> RouteMeter | None:
        name = self._primary_aliases.get(chain_id, id_text(chain_id))
        meter = self._meter(PREFIX + CHAINS + name + route, KNOWN_METHODS)
        if meter is not None:
            self._evm_meters.setdefault(chain_id, {})[route] = meter
        return meter

    def _meter(self, path: str, method_labels: AbstractSet[str]) -> RouteMeter | None:
        """Return the meter of a forwarded route; None if usage is not recorded.

        path: the label of the route.
        """
        if self._recorder is None:
            return None
        return RouteMeter(path, method_labels, self._recorder, self._credits)
