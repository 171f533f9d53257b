"""Runs the indexing of a replay node into a SQLite file, as the process does, until all of it is written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from tests.chains.p_vectors import genesis_bytes
from tests.indexer.replay import ReplayNode
from tests.indexer.rows import query
from warpseal.chains.p_blocks import parse_p_genesis
from warpseal.history.chains import PrimaryChain
from warpseal.index.database import index_url, reading_index, writing_index
from warpseal.index.rebuild import RowRebuilder
from warpseal.index.settings import IndexSettings
from warpseal.index.writer import IndexWriter
from warpseal.indexer.indexer import IndexedNetwork, Indexer, build_processors, fetch_network, indexer_node_settings
from warpseal.indexer.settings import IndexerSettings
from warpseal.indexer.worker import ThreadDesk
from warpseal.node.endpoint import NodeEndpoint
from warpseal.node.rpc import open_session
from warpseal.node.settings import NodeSettings
from warpseal.node.upstream import Upstream, connect_upstream

GENESIS = parse_p_genesis(genesis_bytes("localnet"))
FAST = IndexerSettings(
    chains=tuple(PrimaryChain),
    calls_per_s=100_000,
    poll_s=0.02,
    retry_first_s=0.01,
    retry_cap_s=0.05,
    retry_stopped_s=0.05,
    checkpoint_blocks=7,
)


@asynccontextmanager
async def upstream_of(*nodes: ReplayNode, settings: IndexerSettings = FAST) -> AsyncIterator[Upstream]:
    """Hold the clients of some nodes."""
    endpoints = tuple(NodeEndpoint(node.url) for node in nodes)
    base = NodeSettings(p_chain_api=endpoints, info_api=endpoints, retry_failed_after_s=0.05)
    async with open_session() as session:
        yield connect_upstream(indexer_node_settings(base, settings), session)


@asynccontextmanager
async def indexing_of(
    folder: Path,
    *nodes: ReplayNode,
    settings: IndexerSettings = FAST,
    change: Callable[[IndexedNetwork], IndexedNetwork] = lambda subject: subject,
    with_genesis: bool = True,
) -> AsyncIterator[Indexer]:
    """Run indexing from some nodes into the index of a folder."""
    async with upstream_of(*nodes, settings=settings) as upstream:
        subject = change(await fetch_network(upstream, nodes[0].network_id, GENESIS if with_genesis else None))
        with ThreadPoolExecutor(1) as thread:
            loop = asyncio.get_running_loop()
            own = IndexSettings()
            engine = await loop.run_in_executor(thread, partial(writing_index, index_url(own, folder), own))
            index = IndexWriter(engine, subject.params, own)
            deriving = RowRebuilder(index, reading_index(index_url(own, folder), own), subject.params)
            desk = ThreadDesk(thread, index, build_processors(index, subject, settings), deriving)
            indexing = Indexer(upstream, desk, settings)
            running = asyncio.create_task(indexing.run())
            try:
                yield indexing
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                await loop.run_in_executor(thread, index.close)


async def caught_up(indexing: Indexer, within_s: float = 20.0) -> None:
    """Wait until everything that the nodes have is written."""
    async with asyncio.timeout(within_s):
        while not all(chain.is_caught_up for chain in indexing.chains.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def index_all(folder: Path, *nodes: ReplayNode, settings: IndexerSettings = FAST) -> None:
    """Index everything that some nodes have."""
    async with indexing_of(folder, *nodes, settings=settings) as indexing:
        await caught_up(indexing)
        async with asyncio.timeout(20.0):
            # How the chains stand is written a moment later.
            while query(folder, "SELECT count(*) FROM notes") != [(len(settings.chains),)]:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


def only(*chains: PrimaryChain, settings: IndexerSettings = FAST) -> IndexerSettings:
    """Return settings for some chains."""
    return replace(settings, chains=chains)
