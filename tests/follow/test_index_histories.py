"""Random histories of the index of the P-Chain: nothing is lost, doubled or skipped, and no lie is
stored.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any, cast
from unittest.mock import patch

import pytest

from tests.follow.rough_nodes import (
    MAX_LATENCY_S,
    RoughBlocks,
    RoughNode,
    RoughStore,
    play,
    run_seeds,
    split_seeds,
    until,
)
from tests.index.fixtures import open_writer
from tests.indexer.rows import query
from tests.ledger.histories import History as LedgerHistory
from tests.ledger.made_up_network import PARAMS
from warpseal.chains.ids import BlockID
from warpseal.chains.p_blocks import PBlock, PGenesis, parse_p_block
from warpseal.follow.chain_follower import ChainFollower
from warpseal.follow.sources import PChainSource
from warpseal.index.writer import IndexWriter
from warpseal.indexer.consumers import PChainConsumer
from warpseal.indexer.processors import PChainProcessor
from warpseal.indexer.settings import IndexerSettings
from warpseal.indexer.worker import Worker
from warpseal.resources.progress import ChainProgress
from warpseal.runtime.retry import Retrier
from warpseal.store.errors import StoreDown
from warpseal.upstream.errors import NodeUnavailable

SEEDS = range(60)
SETTINGS = IndexerSettings(retry_stopped_s=5.0, checkpoint_blocks=7)


@cache
def recorded(seed: int) -> tuple[PGenesis, list[bytes]]:
    """Return a genesis and the blocks of a made-up chain, the first one included."""
    ledger = LedgerHistory(seed)
    return ledger.genesis, [ledger.genesis.block.raw, *(ledger.next_block().raw for _ in range(90))]


class RoughWorker:
    """Runs the calls of a P-Chain's processor as a worker does; some fail, before or after what
    they write.
    """

    def __init__(self, writer: IndexWriter, genesis: PGenesis, rough: RoughStore) -> None:
        self._processor = PChainProcessor(writer, PARAMS, genesis, SETTINGS)
        self._rough = rough

    async def run(self, _: object, method: Callable[..., Any], *args: object) -> Any:
        return await self._rough.write(lambda: method(self._processor, *args), StoreDown("rough"))


class History:
    """A chain of which more and more is accepted, its nodes, and an index in a file."""

    def __init__(self, seed: int, writer: IndexWriter) -> None:
        self.rng = rng = Random(seed)
        self.genesis, self.future = recorded(seed % 3)
        self.chain = self.future[: rng.randint(2, 40)]
        quorum = rng.choice((1, 2))
        self.lies_freely = quorum > 1
        self.nodes = [RoughNode(self.chain, 1) for _ in range(3)]
        self.blocks = RoughBlocks(self.nodes, quorum, rng, {})
        self.rough = RoughStore(rng)
        self.followers: list[ChainFollower[Any]] = []
        self.heights: list[int] = []
        self._writer = writer

    def start(self) -> asyncio.Task[None]:
        """Start an indexer that knows nothing but what is stored."""
        worker = cast(Worker, RoughWorker(self._writer, self.genesis, self.rough))
        retrier = Retrier(SETTINGS.pace.retry, {NodeUnavailable: "nodes"})
        consumer = PChainConsumer(
            PChainSource(self.blocks.as_client(), None, retrier, max_span=8), worker, retrier
        )
        follower = ChainFollower(consumer, retrier, SETTINGS.pace, self.report)
        self.followers.append(follower)
        return asyncio.create_task(follower.run())

    async def report(self, progress: ChainProgress) -> None:
        """Note the heights that are reported."""
        await asyncio.sleep(self.rng.random() * 0.1)
        self.heights += [] if progress.height is None else [progress.height]

    def disturb(self) -> None:
        """Let something happen."""
        rng, node = self.rng, self.rng.choice(self.nodes)
        match rng.randrange(6):
            case 0 | 1:
                self.chain += self.future[
                    len(self.chain) : len(self.chain) + rng.choice((1, 2, 20))
                ]
            case 2:
                node.is_up = not node.is_up
            case 3:
                node.lag, node.latency_s = (
                    rng.choice((0, 1, 5, 30)),
                    rng.choice((0.0, 0.01, MAX_LATENCY_S)),
                )
            case 4:
                self.rough.is_down = not self.rough.is_down
            case 5:
                self.lie()

    def lie(self) -> None:
        """Let the first node lie about a block, or about all blocks from there on."""
        rng, lies = self.rng, self.nodes[0].lies
        # Block 0 is the genesis: what a node says of it is compared with the hash that is known.
        height = rng.randrange(2, len(self.chain)) if len(self.chain) > 2 else 2
        if rng.random() < 0.2:
            lies.clear()
        elif self.lies_freely and rng.random() < 0.5:
            parent = parse_p_block(self.future[height - 1])
            for at in range(height, len(self.future)):
                parent = PBlock.build("BanffStandardBlock", parent.id, at, parent.time or 1)
                lies[at] = parent.raw
        else:
            unlinked = PBlock.build("BanffStandardBlock", BlockID(bytes(32)), height, 1).raw
            lies[height] = rng.choice(
                (unlinked, b"no block", self.future[height - 1], self.future[height][:-1])
            )

    def calm(self) -> None:
        """Let everything work again, but for the lies."""
        self.rough.is_down, self.rough.failure_rate = False, 0.0
        for node in self.nodes:
            node.is_up, node.lag, node.latency_s = True, 0, 0.01


async def follow(seed: int) -> None:
    """Play one history, and check what is stored at its end."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (
            patch("warpseal.runtime.retry.SystemRandom", partial(Random, seed)),
            open_writer(f"sqlite:///{folder}/index.db", PARAMS) as writer,
        ):
            await _follow(History(seed, writer), folder)


async def _follow(history: History, folder: Path) -> None:
    task = await play(history.rng, history.start, history.disturb, history.rng.randint(5, 30))
    history.calm()
    follower, tip = history.followers[-1], len(history.chain) - 1
    try:
        await until(lambda: follower.height == tip and follower.progress().stop is None)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    stored = query(folder, "SELECT block_id FROM blocks WHERE chain = 0 ORDER BY key")
    assert [row[0] for row in stored] == [parse_p_block(raw).id for raw in history.chain]
    assert query(folder, "SELECT height FROM chains WHERE chain = 0") == [(tip,)]


@pytest.mark.parametrize("seeds", split_seeds(SEEDS, 15), ids=str)
def test_the_index_stores_every_block_once_whatever_happens(seeds: range) -> None:
    run_seeds(seeds, follow)
