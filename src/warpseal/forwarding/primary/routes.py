"""The forwarded routes of a node's API, and the chain whose nodes serve each of them.

Source of truth: avalanchego `api/server`, `vms/*/vm.go` (CreateHandlers) and `indexer/indexer.go`. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from warpseal.resources.chains import PrimaryChain

INFO: Final = "info"
CHAIN: Final = "bc"
INDEX: Final = "index"


@dataclass(frozen=True, slots=True)
class GatewayRoute:
    """A route of one service. chain: whose height the nodes are compared by.

    parent: `bc` or `index`, below which the chain has its routes; `info` is no chain's. sub_route: behind the chain.
    """

    service: str
    chain: PrimaryChain
    parent: str
    sub_route: str = ""

    def endpoint(self, chain_name: str | None = None) -> str:
        """Return the path after `/ext/` without the sub-route. chain_name: None: the primary alias."""
        return INFO if self.parent == INFO else f"{self.parent}/{chain_name or self.chain.name}"

    @property
    def path(self) -> str:
        """The path at a node, and the label of the route."""
        return f"/ext/{self.endpoint()}{self.sub_route}"


ROUTES: Final = (
    GatewayRoute("info", PrimaryChain.P, INFO),
    GatewayRoute("platform", PrimaryChain.P, CHAIN),
    GatewayRoute("avm", PrimaryChain.X, CHAIN),
    GatewayRoute("avax", PrimaryChain.C, CHAIN, "/avax"),
    *(GatewayRoute("proposervm", chain, CHAIN, "/proposervm") for chain in PrimaryChain),
    *(GatewayRoute("index", chain, INDEX, "/block") for chain in PrimaryChain),
    GatewayRoute("index", PrimaryChain.X, INDEX, "/tx"),
    GatewayRoute("index", PrimaryChain.X, INDEX, "/vtx"),
)
C_CHAIN_RPC: Final = "/ext/bc/C/rpc"
C_CHAIN_WS: Final = "/ext/bc/C/ws"
