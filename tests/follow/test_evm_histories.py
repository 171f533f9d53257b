"""Random histories of the index of an EVM chain: its rows are those of an index that was never
disturbed.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any, cast
from unittest.mock import patch

import msgspec
import pytest

from tests.aggregation.virtual_time import InlineExecutor, run
from tests.follow.rough_nodes import RoughStore, play, run_seeds, split_seeds, until
from tests.indexer.evm_chains import MadeUpChain, ServedChain, Tx, erc20_transfer, erc721_transfer
from warpseal.chains.evm.checks import BlockRules
from warpseal.chains.evm.facts import EvmBlockFacts
from warpseal.follow.chain_follower import ChainFollower
from warpseal.index.evm.database import writing_evm_index
from warpseal.index.evm.schema import STORED
from warpseal.index.evm.writer import EvmIndexWriter
from warpseal.index.settings import IndexSettings
from warpseal.indexer.evm.block_reader import BlocksMissing, EvmBlockSource
from warpseal.indexer.evm.chain import EvmChainContext
from warpseal.indexer.evm.consumer import EvmChainConsumer
from warpseal.indexer.evm.nodes import ChainNodes
from warpseal.indexer.evm.prover import BlockProver
from warpseal.indexer.settings import IndexerSettings
from warpseal.runtime.retry import Retrier
from warpseal.store.errors import StoreDown
from warpseal.store.url import StoreUrl
from warpseal.upstream.endpoint import EvmChain, EvmIndexing, NodeEndpoint
from warpseal.upstream.errors import CallFailure, NodeFailure, NodeUnavailable
from warpseal.upstream.evm_blocks import BLOCK, BLOCK_RECEIPTS
from warpseal.upstream.identity import ChainIdentity, EvmIdentity
from warpseal.upstream.jsonrpc import RpcCall, RpcResponse

SEEDS = range(45)
SETTINGS = IndexerSettings(retry_stopped_s=5.0)
BLOCKS = 50
NULL = b"null"


@cache
def made_up_chain() -> ServedChain:
    """Return a chain with transfers of both kinds of tokens."""
    builder, rng = MadeUpChain(), Random(1)
    people = [builder.address(number) for number in range(9)]
    for number in range(BLOCKS):
        coin = erc20_transfer(
            builder.address("coin"), rng.choice(people), rng.choice(people), rng.getrandbits(30)
        )
        item = erc721_transfer(builder.address("nft"), bytes(20), rng.choice(people), number)
        txs = [
            Tx(rng.choice(people), builder.address("coin"), logs, gas_used=90_000)
            for logs in ([coin], [item])
        ]
        builder.add(txs[: number % 3])
    return builder.chain


@cache
def receipts_by_tx() -> Mapping[str, bytes]:
    """Return each receipt by the hash of its transaction."""
    receipts = [
        msgspec.json.decode(raw, type=list[msgspec.Raw]) for raw in made_up_chain().receipts
    ]
    by_tx = {}
    for receipt in (bytes(receipt) for block in receipts for receipt in block):
        by_tx[msgspec.json.decode(receipt)["transactionHash"]] = receipt
    return by_tx


class RoughEvmNode:
    """A node with the first blocks of the chain. lies: other results, by method and height."""

    is_awaited, is_verified = False, True

    def __init__(self, position: int, rng: Random) -> None:
        self.position = position
        self.head = 0
        self.is_up = True
        self.lies: dict[tuple[str, int], bytes] = {}
        self.lacks_methods: dict[str, bool] = {}
        self.node = self
        self.endpoint = self
        self._rng = rng

    @property
    def failure(self) -> str | None:
        return None if self.is_up else "unreachable"

    def scrub(self, text: str) -> str:
        return text

    def batch_size(self, method: str) -> int:
        return 4

    def lacks(self, *_: object) -> bool:
        return False

    def note_missing(self, *_: object) -> None:
        """Forget it: what a node lacks, it has soon."""

    async def call_batch(self, calls: Sequence[RpcCall], **_: object) -> list[RpcResponse]:
        await asyncio.sleep(self._rng.random())
        if not self.is_up or self._rng.random() < 0.05:
            raise CallFailure(NodeFailure.UNREACHABLE)
        return [RpcResponse(msgspec.Raw(self._result(call))) for call in calls]

    def _result(self, call: RpcCall) -> bytes:
        first = msgspec.json.decode(call.params or b"[]")[0]
        if call.method not in (BLOCK, BLOCK_RECEIPTS):
            return receipts_by_tx()[first]
        height, chain = int(first, 16), made_up_chain()
        if height > self.head:
            return NULL
        results = chain.headers if call.method == BLOCK else chain.receipts
        return self.lies.get((call.method, height), results[height])


class RoughEvmNodes:
    """Stands for the nodes of the chain."""

    def __init__(self, nodes: Sequence[RoughEvmNode]) -> None:
        self.nodes = tuple(nodes)
        chain = made_up_chain()
        self.identity = EvmIdentity(ChainIdentity(chain.evm_chain_id, chain.hashes[0]))

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def highest(self) -> int:
        return max(node.head for node in self.nodes)

    def mismatches(self) -> dict[int, str]:
        return {}

    def describe_failures(self) -> list[str]:
        return ["unreachable"]

    async def heads(self) -> tuple[int, ...]:
        heads = [node.head for node in await self.require_candidates()]
        return tuple(sorted(heads, reverse=True))

    async def require_candidates(self, *_: object) -> list[RoughEvmNode]:
        await asyncio.sleep(0.01)
        if nodes := [node for node in self.nodes if node.is_up]:
            return nodes
        raise NodeUnavailable("eth_chainId")


class RoughContext(EvmChainContext):
    """Writes fail sometimes, before or after they are committed."""

    rough: RoughStore

    async def write(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return await self.rough.write(
            lambda: method(self._writer, *args, **kwargs), StoreDown("rough")
        )


class History:
    """The chain, its nodes, and an index in a file."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng = Random(seed)
        self.nodes = [RoughEvmNode(position, self.rng) for position in range(3)]
        self.rough = RoughStore(self.rng)
        self.followers: list[ChainFollower[EvmBlockFacts]] = []
        self._url = StoreUrl.for_file(folder / "chain.db")
        self._writers: list[EvmIndexWriter] = []
        self.chain = EvmChain(
            made_up_chain().blockchain_id, (NodeEndpoint("http://127.0.0.1"),), index=EvmIndexing()
        )

    def start(self) -> asyncio.Task[None]:
        """Start an indexer that knows nothing but what is stored."""
        self.close()
        engine = writing_evm_index(self._url, IndexSettings(), self.chain.blockchain_id)
        self._writers.append(EvmIndexWriter(engine, IndexSettings()))
        nodes = cast(ChainNodes, RoughEvmNodes(self.nodes))
        context = RoughContext(self.chain, nodes, self._writers[-1], InlineExecutor())
        context.rough = self.rough
        retrier = Retrier(SETTINGS.pace.retry, {BlocksMissing: "blocks", NodeUnavailable: "nodes"})

        async def load_rules() -> BlockRules:
            return BlockRules()

        async def ask_interfaces(*_: object) -> Mapping[bytes, bool]:
            return {}

        source = EvmBlockSource(nodes, retrier, InlineExecutor(), BlockProver())
        consumer = EvmChainConsumer(source, context, retrier, load_rules, ask_interfaces)
        self.followers.append(ChainFollower(consumer, retrier, SETTINGS.pace, context.report))
        return asyncio.create_task(self.followers[-1].run())

    def close(self) -> None:
        """Close the index."""
        while self._writers:
            self._writers.pop().close()

    def disturb(self) -> None:
        """Let something happen."""
        rng, node = self.rng, self.rng.choice(self.nodes)
        match rng.randrange(5):
            case 0 | 1:
                node.head = min(BLOCKS, node.head + rng.choice((1, 3, 20)))
            case 2:
                node.is_up = not node.is_up
            case 3:
                self.rough.is_down = not self.rough.is_down
            case 4:
                # A lie that contradicts itself: one that does not is believed if no other node has
                # the block.
                chain, height = made_up_chain(), rng.randint(2, BLOCKS)
                others = rng.choice(((BLOCK, chain.headers), (BLOCK_RECEIPTS, chain.receipts)))
                lie = rng.choice((others[1][height - 1], NULL, b"{}"))
                if lie != others[1][height]:
                    self.nodes[0].lies[others[0], height] = lie

    def calm(self) -> None:
        """Let everything work again, but for the lies."""
        self.rough.is_down, self.rough.failure_rate = False, 0.0
        for node in self.nodes:
            node.is_up, node.head = True, BLOCKS


async def follow(seed: int, expected: Mapping[str, list[Any]]) -> None:
    """Play one history, and compare its index with one that was never disturbed."""
    with patch("warpseal.runtime.retry.SystemRandom", partial(Random, seed)), _folder() as folder:
        history = History(seed, folder)
        try:
            task = await play(
                history.rng, history.start, history.disturb, history.rng.randint(5, 30)
            )
            history.calm()
            await _complete(history, task)
        finally:
            history.close()
        assert rows_of(folder) == expected


async def _complete(history: History, task: asyncio.Task[None]) -> None:
    follower = history.followers[-1]
    try:
        await until(lambda: follower.height == BLOCKS and follower.progress().stop is None)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@cache
def undisturbed_rows() -> Mapping[str, list[Any]]:
    """Return the rows of an index that was filled in one go."""

    async def fill(history: History) -> None:
        history.calm()
        try:
            await _complete(history, history.start())
        finally:
            history.close()

    with _folder() as folder:
        run(fill(History(0, folder)))
        return rows_of(folder)


def rows_of(folder: Path) -> Mapping[str, list[Any]]:
    """Return blocks and transfers, and the number of rows of each table that nodes fill."""
    with closing(sqlite3.connect(folder / "chain.db")) as connection:
        rows = {
            name: connection.execute(f"SELECT * FROM {name} ORDER BY 1").fetchall()
            for name in STORED
        }
    # The keys of addresses depend on which blocks were written together.
    addresses = {row[0]: row[-1] for row in rows["ids"]}
    transfers = [
        (*row[:3], *(addresses.get(address) for address in row[3:6]), row[6])
        for row in rows["transfers"]
    ]
    counts = [(name, len(rows[name])) for name in sorted(rows)]
    return {"blocks": rows["blocks"], "transfers": transfers, "counts": counts}


@pytest.mark.parametrize("seeds", split_seeds(SEEDS, 15), ids=str)
def test_the_index_of_an_evm_chain_is_as_if_nothing_had_happened(seeds: range) -> None:
    run_seeds(seeds, lambda seed: follow(seed, undisturbed_rows()))
