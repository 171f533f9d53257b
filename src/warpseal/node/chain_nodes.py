"""The nodes of a chain: those of `p-chain-api` and `info-api` that run it, and those of its entry of `evm-chains`.

The entry has the complete URLs of the chain's RPC API; the chain's other APIs are next to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final

from warpseal.node.pool import NodePool
from warpseal.upstream.endpoint import NodeEndpoint
from warpseal.warp.ids import P_CHAIN, ChainID, id_text

_RPC: Final = "/rpc"
_WHOLE_URL: Final = ("",)


class ChainApi(StrEnum):
    """An API of a chain: the last part of its path."""

    RPC = "rpc"
    PROPOSERVM = "proposervm"
    VALIDATORS = "validators"


class ChainApiNodes:
    """The nodes of one API of all chains. shared: nodes of all chains; own: those of single chains, by chain."""

    def __init__(self, api: ChainApi, shared: NodePool, own: Mapping[ChainID, NodePool]) -> None:
        self._api = api
        self._shared = shared
        self._own = own
        self._asked_first: set[ChainID] = set()

    def of(self, chain_id: ChainID) -> Sequence[tuple[NodePool, tuple[str, ...]]]:
        """Return the lists of nodes in the order in which to ask them, each with the paths of the API."""
        names = ("P", id_text(chain_id)) if chain_id == P_CHAIN else (id_text(chain_id),)
        shared = (self._shared, tuple(f"/ext/bc/{name}/{self._api.value}" for name in names))
        own = self._own.get(chain_id)
        if own is None:
            return (shared,)
        return ((own, _WHOLE_URL), shared) if chain_id in self._asked_first else (shared, (own, _WHOLE_URL))

    def prefer(self, chain_id: ChainID, pool: NodePool) -> None:
        """Ask the list of nodes first from now on that has just answered."""
        if pool is self._shared:
            self._asked_first.discard(chain_id)
        else:
            self._asked_first.add(chain_id)


def api_endpoint(rpc: NodeEndpoint, api: ChainApi) -> NodeEndpoint | None:
    """Return the endpoint of an API next to a chain's RPC endpoint; None if the URL has no /rpc."""
    base, found, rest = rpc.base_url.rpartition(_RPC)
    return replace(rpc, base_url=f"{base}/{api.value}{rest}") if found else None
