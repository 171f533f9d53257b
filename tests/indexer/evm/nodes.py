"""The nodes of one EVM chain, as its indexer calls them, on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from warpseal.forwarding.settings import EvmRpcSettings
from warpseal.indexer.evm.nodes import ChainNodes
from warpseal.upstream.endpoint import EvmChain, EvmIndexing, NodeEndpoint
from warpseal.upstream.node import open_sessions
from warpseal.warp.ids import ChainID

CHAIN = ChainID(bytes([7]) * 32)


@asynccontextmanager
async def open_chain_nodes(*urls: str) -> AsyncIterator[ChainNodes]:
    """Call a chain at these nodes, in the order of preference, if their heads are equal."""
    settings = EvmRpcSettings(connect_timeout_s=20.0)
    async with open_sessions() as sessions:
        chain = EvmChain(CHAIN, tuple(map(NodeEndpoint, urls)), index=EvmIndexing())
        yield ChainNodes(chain, sessions, settings)


@contextmanager
def rate_taken(nodes: ChainNodes) -> Iterator[None]:
    """Have a call wait for the rate of the first node all the time, as during a backfill."""
    rate = nodes.nodes[0].node.rate
    rate._waiting += 1
    try:
        yield
    finally:
        rate._waiting -= 1
