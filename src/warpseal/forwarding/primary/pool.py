"""The nodes of the primary network, as one of its chains sees them: of which network they are, and which lag."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from warpseal.forwarding.evm.node import RpcNode
from warpseal.forwarding.evm.pool import HEAD_CALL, ForwardingPool
from warpseal.forwarding.evm.settings import EvmRpcSettings
from warpseal.forwarding.primary.routes import C_CHAIN_RPC
from warpseal.resources.chains import PrimaryChain
from warpseal.upstream.json_values import quantity_or_none
from warpseal.upstream.jsonrpc import RpcCall

_NETWORK_PATH: Final = "/ext/info"
_HEIGHT_PATHS: Final = {
    PrimaryChain.P: "/ext/bc/P",
    PrimaryChain.X: "/ext/bc/X",
    PrimaryChain.C: C_CHAIN_RPC,
}


def _call(method: str) -> RpcCall:
    return RpcCall(method, msgspec.Raw(b"{}"), msgspec.Raw(b"1"))


_NETWORK_ID: Final = _call("info.getNetworkID")
_HEIGHTS: Final = {
    PrimaryChain.P: _call("platform.getHeight"),
    PrimaryChain.X: _call("avm.getHeight"),
    PrimaryChain.C: HEAD_CALL,
}
_MAX_DIGITS: Final = 20


class PrimaryPool(ForwardingPool[int]):
    """The nodes that serve one chain. Their identity is the network id, which is that of the daemon."""

    def __init__(
        self, nodes: Sequence[RpcNode], settings: EvmRpcSettings, chain: PrimaryChain, network_id: int
    ) -> None:
        super().__init__(nodes, settings)
        self.identity = network_id
        self._chain = chain

    async def read_identity(self, node: RpcNode) -> int | None:
        """Return the network id."""
        return number_in(await self.call(node, _NETWORK_ID, _NETWORK_PATH), "networkID")

    def find_fault(self, identity: int | None) -> str | None:
        """Return why a node is not of the daemon's network."""
        if identity is None:
            return "returns no network id"
        return None if identity == self.identity else f"is of another network: {identity}"

    async def read_height(self, node: RpcNode) -> int | None:
        """Return the height of the last block of the chain."""
        result = await self.call(node, _HEIGHTS[self._chain], _HEIGHT_PATHS[self._chain])
        return quantity_or_none(result) if self._chain is PrimaryChain.C else number_in(result, "height")


def number_in(result: Any, name: str) -> int | None:
    """Return a field of a result that is a number or its decimal text; None if it is neither."""
    value = result.get(name) if isinstance(result, dict) else None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= _MAX_DIGITS:
        return int(value)
    return value if type(value) is int and value >= 0 else None
