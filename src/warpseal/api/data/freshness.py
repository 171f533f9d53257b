"""How fresh an answer is, told with every one: `x-warpseal-index: p-chain;height=H;node=N;lag=S`, one item a chain."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from warpseal.errors import IndexStale
from warpseal.history.chains import PrimaryChain
from warpseal.history.index import ChainFreshness

HEADER: Final = "x-warpseal-index"


def lag_s(chain: ChainFreshness, now: float) -> int:
    """Return the age of the newest indexed block in seconds; 0 where it is the node's newest, and that is believed."""
    return chain.lag_s(now)


def header_of(chains: Iterable[ChainFreshness], now: float) -> str:
    """Return the header's value; `first` is told where the beginning is missing, `stale` where the node is behind."""
    return ", ".join(_item(chain, now) for chain in chains)


def _item(chain: ChainFreshness, now: float) -> str:
    item = f"{chain.chain};height={chain.height};node={chain.node_height};lag={lag_s(chain, now)}"
    if chain.first_height:
        item += f";first={chain.first_height}"
    return item + ";stale" if chain.is_node_behind else item


def refuse_stale(chains: Iterable[ChainFreshness], needed: Iterable[PrimaryChain], limit_s: float, now: float) -> None:
    """Raise IndexStale where a chain that is needed lags further than `limit_s`; 0 allows any lag."""
    wanted = frozenset(needed)
    for chain in chains if limit_s else ():
        if chain.chain in wanted and lag_s(chain, now) > limit_s:
            raise IndexStale(chain.chain, lag_s(chain, now), limit_s)
