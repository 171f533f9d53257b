"""Runs the indexer over replay nodes into a SQLite file, until everything is written."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from tests.chains.p_vectors import genesis_bytes
from tests.eventually import until
from tests.indexer.rows import query
from warpseal.chains.p_blocks import PGenesis, parse_p_genesis
from warpseal.index.database import index_url
from warpseal.index.rebuild import RowRebuilder
from warpseal.index.settings import IndexSettings
from warpseal.index.writer import IndexWriter
from warpseal.indexer.indexer import Indexer
from warpseal.indexer.network import IndexedNetwork, fetch_network, indexer_node_settings
from warpseal.indexer.settings import IndexerSettings
from warpseal.indexer.worker import IndexOpener, Processors, Worker
from warpseal.node.settings import NodeSettings
from warpseal.node.upstream import Upstream, connect_upstream
from warpseal.resources.chains import PrimaryChain
from warpseal.runtime.process import running
from warpseal.upstream.endpoint import NodeEndpoint
from warpseal.upstream.node import open_session
from warpseal_simnet.network import SimulatedNetwork

GENESIS = parse_p_genesis(genesis_bytes("localnet"))
FAST = IndexerSettings(
    chains=tuple(PrimaryChain),
    poll_s=0.02,
    retry_first_s=0.01,
    retry_cap_s=0.05,
    retry_stopped_s=0.05,
    checkpoint_blocks=7,
)


@dataclass(frozen=True)
class SimulatedNode:
    """A node of a simulated network.

    place: place of the node in the network, from 0.
    """

    network: SimulatedNetwork
    place: int = 0

    @property
    def url(self) -> str:
        return self.network.nodes[self.place].uri

    @property
    def network_id(self) -> int:
        return self.network.network_id


class IndexedNode(Protocol):
    """A node of either kind: one that replays a recording, or a simulated one."""

    @property
    def url(self) -> str:
        """The base URL."""
        ...

    @property
    def network_id(self) -> int:
        """The id of the network."""
        ...


@asynccontextmanager
async def upstream_of(
    *nodes: IndexedNode, settings: IndexerSettings = FAST, quorum: int = 1
) -> AsyncIterator[Upstream]:
    """Open clients of the nodes.

    quorum: number of nodes that must agree.
    """
    endpoints = tuple(NodeEndpoint(node.url) for node in nodes)
    base = NodeSettings(
        p_chain_api=endpoints,
        info_api=endpoints,
        calls_per_s=270_000,
        retry_failed_after_s=0.05,
        p_chain_quorum=quorum,
    )
    async with open_session() as session:
        yield connect_upstream(indexer_node_settings(base, settings), session)


@asynccontextmanager
async def indexing(
    folder: Path,
    *nodes: IndexedNode,
    settings: IndexerSettings = FAST,
    change: Callable[[IndexedNetwork], IndexedNetwork] = lambda network: network,
    genesis: PGenesis | None = GENESIS,
    quorum: int = 1,
) -> AsyncIterator[Indexer]:
    """Run the indexer over the nodes and the index of a folder, with its worker in a thread."""
    async with upstream_of(*nodes, settings=settings, quorum=quorum) as upstream:
        network = change(await fetch_network(upstream, nodes[0].network_id, genesis))
        index = IndexSettings()
        raw_genesis = None if network.genesis is None else network.genesis.raw
        opener = IndexOpener(index_url(index, folder), index, settings, network.params, raw_genesis)
        opened: list[IndexWriter] = []

        def open_index() -> tuple[IndexWriter, Processors, RowRebuilder]:
            writer, processors, rebuilder = opener()
            opened.append(writer)
            return writer, processors, rebuilder

        with ThreadPoolExecutor(1) as thread:
            worker = Worker(thread, lambda: None)
            await worker.start(open_index)
            indexer = Indexer(upstream, worker, settings)
            try:
                async with running(indexer.run()):
                    yield indexer
            finally:
                await worker.call(opened[0].close)


async def until_caught_up(indexer: Indexer) -> None:
    """Wait until all blocks of the nodes are written."""
    await until(lambda: all(chain.is_caught_up for chain in indexer.chains.values()))


async def index_all(folder: Path, *nodes: IndexedNode, settings: IndexerSettings = FAST) -> None:
    """Index all blocks of the nodes."""
    async with indexing(folder, *nodes, settings=settings) as indexer:
        await until_caught_up(indexer)
        # The status of the chains is written after the blocks.
        await until(
            lambda: query(folder, "SELECT count(*) FROM chain_status") == [(len(settings.chains),)]
        )


def only(*chains: PrimaryChain, settings: IndexerSettings = FAST) -> IndexerSettings:
    """Return settings with only these chains."""
    return replace(settings, chains=chains)
