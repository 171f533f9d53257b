"""An indexer of EVM chains in the test's own event loop, over real HTTP nodes, with SQLite files in
a folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.eventually import until
from tests.indexer.evm_chains import ServedChain
from tests.indexer.evm_node import EvmReplayNode
from warpseal.chains.evm.checks import BlockRules
from warpseal.forwarding.settings import EvmRpcSettings
from warpseal.index.checkpoint import ProgressRow, decode_status
from warpseal.index.database import reading_index
from warpseal.index.evm.database import evm_index_url
from warpseal.index.evm.records import IcmOptions
from warpseal.index.settings import IndexSettings
from warpseal.indexer.evm.indexer import BuildTasks, EvmIndexer
from warpseal.indexer.settings import IndexerSettings
from warpseal.store.connection import DriverError
from warpseal.upstream.endpoint import EvmChain, EvmIndexing, NodeEndpoint, TraceMode
from warpseal.upstream.node import open_sessions
from warpseal.warp.ids import ChainID

SETTINGS: Final = IndexerSettings(
    poll_s=0.02, retry_first_s=0.01, retry_cap_s=0.05, retry_stopped_s=0.1
)
RPC: Final = EvmRpcSettings(connect_timeout_s=20.0, retry_after_s=0.2)
INDEX: Final = IndexSettings()


def entry(
    chain: ServedChain, *nodes: EvmReplayNode, index: EvmIndexing | None = None, ws: bool = False
) -> EvmChain:
    """Return the entry of a chain that these nodes serve."""
    rpc = tuple(NodeEndpoint(node.url) for node in nodes)
    sockets = tuple(NodeEndpoint(node.ws_url) for node in nodes) if ws else ()
    return EvmChain(
        chain.blockchain_id, rpc, sockets, index=index or EvmIndexing(traces=TraceMode.OFF)
    )


@dataclass(frozen=True)
class Indexing:
    """A running indexer."""

    indexer: EvmIndexer
    folder: Path

    def height(self, chain: ServedChain) -> int | None:
        """Return the last written block of a chain."""
        chain_indexer = self.indexer.chains[chain.blockchain_id].indexer
        return None if chain_indexer is None else chain_indexer.height

    async def until_at(self, chain: ServedChain, height: int) -> None:
        """Wait until a block is written."""
        await until(lambda: (self.height(chain) or 0) >= height)

    async def until_stopped(self, chain: ServedChain) -> ProgressRow:
        """Wait until a chain stops; return its status as readers find it."""
        return await self.until_status(chain, lambda status: bool(status.stopped))

    async def until_status(
        self, chain: ServedChain, is_wanted: Callable[[ProgressRow], bool]
    ) -> ProgressRow:
        """Wait until the status of a chain is as wanted; return it as readers find it."""
        statuses: list[ProgressRow] = []

        def is_found() -> bool:
            with suppress(DriverError):
                statuses[:] = [
                    decode_status(row[0])
                    for row in rows(self.folder, chain, "SELECT body FROM chain_status")
                ]
            return bool(statuses) and is_wanted(statuses[0])

        await until(is_found)
        return statuses[0]


@asynccontextmanager
async def indexing(
    folder: Path,
    chains: Iterable[EvmChain],
    *,
    settings: IndexerSettings = SETTINGS,
    helicon: int | None = None,
    build_tasks: BuildTasks = lambda chain: (),
    store: IndexSettings = INDEX,
    icm: IcmOptions | None = None,
    elsewhere: frozenset[ChainID] = frozenset(),
) -> AsyncIterator[Indexing]:
    """Index chains.

    helicon: time from which blocks are executed behind their acceptance.
    """

    async def load_rules(chain_id: ChainID) -> BlockRules:
        return BlockRules(helicon)

    async with open_sessions() as sessions:
        indexer = EvmIndexer(
            chains,
            sessions,
            folder,
            rpc=RPC,
            index=store,
            settings=settings,
            load_rules=load_rules,
            build_tasks=build_tasks,
            icm=icm,
            elsewhere=elsewhere,
        )
        running = asyncio.create_task(indexer.run())
        try:
            yield Indexing(indexer, folder)
        finally:
            running.cancel()
            await asyncio.wait((running,))


def rows(
    folder: Path, chain: ServedChain, query: str, store: IndexSettings = INDEX
) -> list[tuple[Any, ...]]:
    """Return what a query finds in the index of a chain."""
    engine = reading_index(evm_index_url(store, folder, chain.blockchain_id), store)
    try:
        with engine.connect() as connection:
            return [tuple(row) for row in connection.fetch(query)]
    finally:
        engine.dispose()


def written_hashes(
    folder: Path, chain: ServedChain, store: IndexSettings = INDEX
) -> dict[int, str]:
    """Return the hash of each written block by its height."""
    return {
        number: "0x" + bytes(raw).hex()
        for number, raw in rows(
            folder, chain, "SELECT number, hash FROM blocks ORDER BY number", store
        )
    }
