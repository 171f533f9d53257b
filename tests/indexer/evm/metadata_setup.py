"""An indexed chain with NFTs, whose metadata comes from contracts on a replay node and from a real
HTTP server.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from eth_abi.abi import encode
from msgspec.structs import replace

from tests.eventually import until
from tests.indexer.evm.indexing import INDEX, Indexing, entry, indexing
from tests.indexer.evm.metadata_servers import PUBLIC, http_response, twin_servers
from tests.indexer.evm_chains import ZERO, MadeUpChain, Tx, erc721_transfer, erc1155_transfer
from tests.indexer.evm_node import EvmReplayNode, serving_evm
from warpseal.chains.evm.contract_calls import owner_of_call, token_uri_call, uri_call
from warpseal.chains.evm.token_uri import Gateways
from warpseal.index.evm.database import evm_index_url
from warpseal.index.evm.reader import EvmIndex
from warpseal.index.evm.records import MissingResults
from warpseal.indexer.evm.chain import EvmChainContext
from warpseal.indexer.evm.fetcher import open_fetcher
from warpseal.indexer.evm.metadata import MetadataFetcher
from warpseal.indexer.evm.nodes import CallResult, ChainNodes, ContractCall, EvmCaller
from warpseal.indexer.settings import MetadataSettings
from warpseal.resources.evm import MetadataStatus, NftToken
from warpseal.upstream.address_policy import AddressPolicy
from warpseal.upstream.endpoint import EvmIndexing, MetadataMode, TraceMode

FAST: Final = MetadataSettings(gateways=Gateways(), idle_s=0.05, crowded_s=0.01, full_queue_s=0.05)
ServerResponse = bytes | Callable[[asyncio.StreamWriter], Any]


class NftContracts:
    """Contracts that the node calls.

    uris: URI by contract and id; None: the call reverts.
    ownerless: tokens for which `ownerOf` reverts.
    """

    def __init__(self) -> None:
        self.uris: dict[tuple[bytes, int], str | bytes | None] = {}
        self.ownerless: set[tuple[bytes, int]] = set()
        self.calls: Counter[tuple[bytes, int]] = Counter()

    def call(self, to: bytes, data: bytes, block: Any) -> bytes | None:
        """Return the result of a call; None: it reverts."""
        token_id = int.from_bytes(data[4:36])
        if data in (token_uri_call(token_id), uri_call(token_id)):
            self.calls[to, token_id] += 1
            uri = self.uris.get((to, token_id))
            return encode(["string"], [uri]) if isinstance(uri, str) else uri
        if data == owner_of_call(token_id) and (to, token_id) not in self.ownerless:
            return bytes(12) + b"\x01" * 20
        return None


@dataclass
class MetadataSetup:
    """A chain with the contracts `cat` (ERC-721) and `gem` (ERC-1155), and a server of documents.

    replies: replies of the server by path.
    nodes: nodes of the chain, as the indexer calls them.
    index: the index as a daemon reads it, whose clock is ahead.
    """

    builder: MadeUpChain
    node: EvmReplayNode
    contracts: NftContracts
    folder: Path
    settings: MetadataSettings = FAST
    mode: MetadataMode = MetadataMode.ASKED
    replies: dict[str, ServerResponse] = field(default_factory=dict)
    paths: Counter[str] = field(default_factory=Counter)
    port: int = 0
    ahead_s: int = 0
    broken_calls: int = 0
    calls_per_s: int | None = None
    nodes: ChainNodes = field(init=False)
    indexer: Indexing = field(init=False)
    index: EvmIndex = field(init=False)

    @property
    def cat(self) -> bytes:
        return self.builder.address("cat")

    @property
    def gem(self) -> bytes:
        return self.builder.address("gem")

    def url(self, path: str, address: str = PUBLIC) -> str:
        return f"http://{address}:{self.port}{path}"

    def mint(self, *token_ids: int, contract: bytes | None = None, seconds: int = 2) -> None:
        """Add a block in which someone gets ERC-721 tokens."""
        contract, owner = contract or self.cat, self.builder.address("owner")
        logs = [erc721_transfer(contract, ZERO, owner, token_id) for token_id in token_ids]
        self.builder.add([Tx(owner, contract, logs, gas_used=90_000)], seconds=seconds)

    def mint_gem(self, token_id: int) -> None:
        """Add a block in which someone gets an ERC-1155 token."""
        owner = self.builder.address("owner")
        self.builder.add(
            [
                Tx(
                    owner,
                    self.gem,
                    [erc1155_transfer(self.gem, ZERO, owner, token_id, 5)],
                    gas_used=90_000,
                )
            ]
        )

    def add_document(self, path: str, document: Any) -> None:
        """Have the server answer a path with a JSON document."""
        self.replies[path] = http_response(json.dumps(document).encode())

    async def serve(self, head: str, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        path = head.split(" ", 2)[1]
        self.paths[path] += 1
        reply = self.replies.get(path, http_response(b"", "404 Not Found"))
        if isinstance(reply, bytes):
            writer.write(reply)
        else:
            await reply(writer)

    async def token(self, token_id: int, contract: bytes | None = None) -> NftToken:
        """Return a token as pages show it."""
        (token,) = (await self.index.token(contract or self.cat, token_id)).items
        return token

    async def show(self, *token_ids: int, contract: bytes | None = None) -> None:
        """Show tokens on a page, which requests what it lacks."""
        for token_id in token_ids:
            missing: MissingResults = (
                await self.index.token(contract or self.cat, token_id)
            ).missing
            await self.index.request(replace(missing, contracts=frozenset()))

    async def until_fetched(self, token_id: int, contract: bytes | None = None) -> NftToken:
        """Wait until a token has an outcome; return it."""

        async def is_fetched() -> bool:
            return (
                await self.token(token_id, contract)
            ).metadata.index_status != MetadataStatus.UNINDEXED

        await until(is_fetched)
        return await self.token(token_id, contract)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[MetadataSetup]:
        """Index the chain, and fetch the metadata."""
        exempt = self.settings.exempt_servers
        policy = AddressPolicy(
            exempt, frozenset((self.port,)), lambda address: address == ip_address(PUBLIC)
        )
        async with open_fetcher(self.settings, policy) as fetcher:

            def build_tasks(chain: EvmChainContext) -> Sequence[MetadataFetcher]:
                self.nodes = chain.nodes
                return [MetadataFetcher(chain, BreakingCaller(chain, self), fetcher, self.settings)]

            index = EvmIndexing(
                traces=TraceMode.OFF, metadata=self.mode, calls_per_s=self.calls_per_s
            )
            chain = entry(self.builder.chain, self.node, index=index)
            async with indexing(self.folder, [chain], build_tasks=build_tasks) as self.indexer:
                await self.indexer.until_at(self.builder.chain, self.builder.height)
                url = evm_index_url(INDEX, self.folder, self.builder.chain.blockchain_id)
                async with EvmIndex(url, INDEX, lambda: time.time() + self.ahead_s) as self.index:
                    yield self


class BreakingCaller(EvmCaller):
    """Has an internal error as often as `broken_calls` says."""

    def __init__(self, chain: EvmChainContext, setup: MetadataSetup) -> None:
        super().__init__(chain.nodes)
        self._setup = setup

    async def call_all(self, calls: Sequence[ContractCall], height: int | None) -> list[CallResult]:
        if self._setup.broken_calls:
            self._setup.broken_calls -= 1
            raise RuntimeError("broken")
        return await super().call_all(calls, height)


@asynccontextmanager
async def metadata_setup(folder: Path) -> AsyncIterator[MetadataSetup]:
    """Serve the node and the server of documents; nothing is indexed before `running`."""
    chain, contracts = MadeUpChain(), NftContracts()
    node = EvmReplayNode(chain.chain, call=contracts.call)
    setup = MetadataSetup(chain, node, contracts, folder)
    async with serving_evm(node), twin_servers(setup.serve, setup.serve) as (server, _):
        setup.port = server.port
        yield setup
