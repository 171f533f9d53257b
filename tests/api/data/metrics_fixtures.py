"""The Metrics API in front of EVM chains with real indexes, and a real metrics database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp

from tests.api.data import samples as s
from tests.api.data.evm_fixtures import HttpResponse
from tests.api.data.fixtures import Clock, DataApiSetup
from tests.forwarding.evm.evm import SETTINGS
from tests.index.evm.histories import made_block
from warpseal.api.data.contract_info import ContractInfoFolder
from warpseal.api.data.evm_chains import EvmChainDirectory, EvmChainService
from warpseal.chains.evm.checks import BlockRules
from warpseal.chains.evm.facts import EvmBlockFacts
from warpseal.forwarding.evm.forwarder import forward_chain
from warpseal.forwarding.evm.reads import EvmChainReader
from warpseal.index.checkpoint import ProgressRow
from warpseal.index.evm.database import evm_index_url, writing_evm_index
from warpseal.index.evm.reader import EvmIndex
from warpseal.index.evm.records import EvmChainIdentity
from warpseal.index.evm.writer import EvmIndexWriter
from warpseal.index.settings import IndexSettings
from warpseal.resources.aliases import ChainAliases
from warpseal.store.url import StoreUrl, in_schema
from warpseal.upstream.endpoint import EvmChain, EvmIndexing, NodeEndpoint
from warpseal.upstream.node import open_sessions
from warpseal.usage.database import SCHEMA, MetricsDatabase
from warpseal.usage.settings import UsageSettings
from warpseal.warp.ids import ChainID, id_text

DAY = 86_400
NO_NODE = NodeEndpoint("http://127.0.0.1:1")


@dataclass(frozen=True)
class MadeChain:
    """A chain without a node.

    blocks: blocks of its index.
    is_current: the indexer says that no node has more blocks.
    chain_id: its blockchain id; None: an id that is made of its number.
    """

    number: int
    blocks: Sequence[EvmBlockFacts] = ()
    indexing: EvmIndexing | None = field(default_factory=EvmIndexing)
    is_current: bool = True
    chain_id: ChainID | None = None

    @property
    def blockchain_id(self) -> ChainID:
        """The blockchain id."""
        return self.chain_id or ChainID(bytes([self.number]) * 32)

    @property
    def evm_chain_id(self) -> int:
        """The EVM chain id."""
        return 7_000 + self.number


def block_at(number: int, time: int, tx_count: int) -> EvmBlockFacts:
    """Return a block without events."""
    return made_block(number, tx_count=tx_count, time=time)


def write_chain(url: str, chain: MadeChain, now: float) -> None:
    """Write the index of a chain.

    url: value of `index-url`.
    """
    settings = IndexSettings(url)
    engine = writing_evm_index(
        evm_index_url(settings, None, chain.blockchain_id), settings, chain.blockchain_id
    )
    writer = EvmIndexWriter(engine, settings, lambda: now)
    first = chain.blocks[0].number if chain.blocks else 0
    writer.start(EvmChainIdentity(chain.blockchain_id, chain.evm_chain_id, b"g" * 32, first))
    if chain.blocks:
        writer.begin(first, chain.blocks[0].parent_hash)
        writer.write(chain.blocks)
        height = chain.blocks[-1].number + (0 if chain.is_current else 5)
        status = ProgressRow(
            id_text(chain.blockchain_id), height, False, reported_at=int(now), written_at=int(now)
        )
        writer.write_status(status)
    writer.close()


def metrics_database(url: str) -> MetricsDatabase:
    """Return the metrics database of a URL, to be opened by `async with`."""
    return MetricsDatabase(
        in_schema(StoreUrl.parse(url), SCHEMA), UsageSettings(call_timeout_s=2.0)
    )


@asynccontextmanager
async def metrics_setup(
    index_url: str,
    metrics_url: str | None,
    *chains: MadeChain,
    network_id: int = s.NETWORK_ID,
    clock: Clock | None = None,
    contract_infos: ContractInfoFolder | None = None,
    aliases: ChainAliases | None = None,
) -> AsyncIterator[DataApiSetup]:
    """Yield an API in front of the indexes of chains.

    metrics_url: URL of the metrics database; None for no database.
    """
    clock = clock or Clock()
    settings = IndexSettings(index_url)

    async def load_rules() -> BlockRules:
        return BlockRules()

    async def nothing() -> None:
        return None

    async with AsyncExitStack() as stack:
        services = EvmChainDirectory(aliases, contract_infos)
        sessions = await stack.enter_async_context(open_sessions())
        for chain in chains:
            entry = EvmChain(chain.blockchain_id, (NO_NODE,), index=chain.indexing)
            index = None
            if chain.indexing is not None:
                url = evm_index_url(settings, None, chain.blockchain_id)
                index = await stack.enter_async_context(EvmIndex(url, settings, clock))
            forwarded = forward_chain(entry, sessions, SETTINGS, nothing)
            services.add(
                EvmChainService(entry, EvmChainReader(forwarded.forwarder, load_rules, 0.1), index)
            )
        database = None
        if metrics_url is not None:
            database = await stack.enter_async_context(metrics_database(metrics_url))
        setup = DataApiSetup(index=None, network_id=network_id, clock=clock)
        yield replace(setup, evm=services, metrics=database)


async def request(client: aiohttp.ClientSession, path: str, **params: Any) -> HttpResponse:
    """Send one request. Names in `params` that begin with `header_` are headers."""
    headers = {
        name.removeprefix("header_"): params.pop(name)
        for name in list(params)
        if name.startswith("header_")
    }
    async with client.get(path, params=params, headers=headers) as response:
        return HttpResponse(response.status, response.headers, await response.json())


async def walk(
    client: aiohttp.ClientSession, path: str, key: str, params: Mapping[str, Any], *, alone: bool
) -> Any:
    """Return the items of each page.

    alone: the page token comes without the parameters.
    """
    pages: list[Any] = []
    token = None
    while token is not None or not pages:
        query = {} if alone and token is not None else dict(params)
        body = (
            await request(client, path, **query, **({} if token is None else {"pageToken": token}))
        ).body
        pages.append(body[key])
        token = body.get("nextPageToken")
    return pages


def file_urls(folder: Path) -> tuple[str, str]:
    """Return the URLs of the index and of the metrics database in a folder."""
    return f"sqlite:///{folder}/index.db", f"sqlite:///{folder}/metrics.db"
