"""The nodes of one EVM chain, as its indexer calls them, on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from warpseal.evm_rpc.node import open_sessions
from warpseal.evm_rpc.settings import EvmRpcSettings
from warpseal.indexer.evm.nodes import ChainNodes
from warpseal.node.endpoint import EvmChain, EvmIndexing, NodeEndpoint
from warpseal.runtime.process import running
from warpseal.warp.ids import ChainID

CHAIN = ChainID(bytes([7]) * 32)


@asynccontextmanager
async def open_chain_nodes(*urls: str) -> AsyncIterator[ChainNodes]:
    """Call a chain at these nodes, in the order of preference, if their heads are equal."""
    settings = EvmRpcSettings(connect_timeout_s=2.0)
    async with open_sessions(settings) as sessions:
        chain = EvmChain(CHAIN, tuple(map(NodeEndpoint, urls)), index=EvmIndexing())
        yield ChainNodes(chain, sessions, settings)


@asynccontextmanager
async def rate_taken(nodes: ChainNodes) -> AsyncIterator[None]:
    """Take all that the rate of the first node allows, as the blocks of a backfill do."""

    async def read_blocks() -> None:
        while True:
            await nodes.nodes[0].acquire(5)

    async with running(read_blocks()), running(read_blocks()):
        # The first ones wait now.
        await asyncio.sleep(0)
        yield
