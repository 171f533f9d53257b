"""Random histories of the follower of L1 transactions: nothing is lost, doubled or skipped, and no
lie is stored.
"""

from __future__ import annotations

import asyncio
from functools import partial
from hashlib import sha256
from random import Random
from unittest.mock import patch

import pytest

from tests.aggregation.virtual_time import run
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
from tests.l1.follower.fixtures import (
    BANFF_S,
    Chain,
    MemoryStore,
    SettableLeadership,
    is_done,
    of_unknown_type,
    recorded_l1_txs,
)
from warpseal.chains.ids import BlockID
from warpseal.l1.follower import PChainFollower
from warpseal.l1.settings import FollowerSettings
from warpseal.store.errors import StoreDown
from warpseal.store.values import BlockRange, L1Transaction, Origin
from warpseal.warp.ids import ChainID

SEEDS = range(200)
TXS = recorded_l1_txs()


class RoughL1Store(MemoryStore):
    """A store whose writes fail sometimes, also after they are committed."""

    def __init__(self, rough: RoughStore) -> None:
        super().__init__()
        self._rough = rough
        self.commits: dict[int, set[bytes]] = {}

    async def append(
        self, chain_id: ChainID, read: BlockRange, transactions: object, origins: object
    ) -> None:
        def commit() -> None:
            assert isinstance(transactions, tuple)
            assert isinstance(origins, tuple)
            self.commit(read, transactions, origins)

        await self._rough.write(commit, StoreDown("rough"))

    def commit(
        self, read: BlockRange, transactions: tuple[L1Transaction, ...], origins: tuple[Origin, ...]
    ) -> None:
        ranges = [
            item for item in self.read_ranges if item.low <= read.low and read.high <= item.high
        ]
        if ranges:
            # A write that was committed, and failed after that, is repeated.
            assert read == self.appended[-1]
            return
        for item in self.read_ranges:
            assert read.high < item.low or read.low > item.high, "a block is written twice"
            assert item.high + 1 != read.low or read.low_parent_id == item.high_block_id
            assert read.high + 1 != item.low or item.low_parent_id == read.high_block_id
        self.read_ranges.add(read)
        self.appended.append(read)
        self.transactions.update({tx.tx_id: tx for tx in transactions})
        self.origins += origins


class History:
    """A chain that grows, its nodes, and the follower.

    With a quorum of 2, one of three nodes lies as it likes.
    """

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        apricot, etna = rng.randint(0, 5), rng.randint(0, 30)
        # Etna is active.
        self.chain = Chain(max(apricot, etna) + rng.randint(1, 60), apricot=apricot)
        quorum = rng.choice((1, 2))
        self.nodes = [RoughNode(self.chain.raw, max(apricot, etna)) for _ in range(3)]
        self.lies_freely = quorum > 1
        etna_s = rng.choice((None, BANFF_S + etna))
        upgrades = {} if etna_s is None else {"etna": etna_s}
        self.blocks = RoughBlocks(self.nodes, quorum, rng, upgrades)
        self.first = 0 if etna_s is None else max(apricot, etna)
        self.rough = RoughStore(rng)
        self.store = RoughL1Store(self.rough)
        self.followers: list[PChainFollower] = []
        self.reported: list[int] = []
        self.leadership = SettableLeadership()
        # Transactions by height; each is accepted once.
        self.txs: dict[int, bytes] = {}
        self.next_tx = 0

    def start(self) -> asyncio.Task[None]:
        """Start a follower that knows nothing but what is stored."""
        settings = FollowerSettings(retry_stopped_s=5.0)
        follower = PChainFollower(self.blocks.as_client(), self.store, self.leadership, settings)
        reported: list[int] = []

        def report(tx: L1Transaction) -> None:
            assert tx.tx_id in self.store.transactions
            assert reported == [] or tx.height > reported[-1]
            reported.append(tx.height)

        follower.subscribe(report)
        self.followers.append(follower)
        return asyncio.create_task(follower.run())

    def disturb(self) -> None:
        """Let something happen."""
        rng, node = self.rng, self.rng.choice(self.nodes)
        match rng.randrange(8):
            case 0 | 1:
                self.grow(rng.choice((1, 1, 3, 40)))
            case 2:
                node.is_up = not node.is_up
            case 3:
                node.lag = rng.choice((0, 1, 5, 30))
            case 4:
                node.latency_s = rng.choice((0.0, 0.01, MAX_LATENCY_S))
            case 5:
                self.rough.is_down = not self.rough.is_down
            case 6:
                self.leadership.set(rng.random() < 0.7)
            case 7:
                self.lie()

    def grow(self, count: int) -> None:
        """Accept blocks, some of which have a transaction."""
        for _ in range(count):
            txs = []
            if self.next_tx < len(TXS) and self.rng.random() < 0.1:
                txs = [TXS[self.next_tx]]
                self.txs[len(self.chain.raw)] = TXS[self.next_tx].id
                self.next_tx += 1
            self.chain.grow(1, *txs)

    def lie(self) -> None:
        """Let the first node lie about a few blocks."""
        rng, chain = self.rng, self.chain
        newest = len(chain.raw) - 1
        height = rng.choice((rng.randrange(newest + 1), self.first, newest, max(0, newest - 1)))
        lies = self.nodes[0].lies
        if rng.random() < 0.2:
            lies.clear()
        elif self.lies_freely and height > 1 and rng.random() < 0.5:
            # Blocks that link to the chain and to each other.
            fork = chain.fork(height - 1)
            lies |= {at: fork.raw[at] for at in range(height, len(fork.raw))}
        else:
            # Of a chain of its own: two lies that link to each other contradict nothing at a first
            # start, and a follower with one node believes them.
            unlinked = Chain(height + 1, salt=b"other %d" % height).raw[height]
            unknown = of_unknown_type(BlockID(bytes(32)), height)
            lies[height] = rng.choice((unlinked, unknown, b"no block", chain.raw[height - 1]))

    def calm(self) -> None:
        """Let everything work again, but for the lies."""
        self.rough.is_down, self.rough.failure_rate = False, 0.0
        for node in self.nodes:
            node.is_up, node.lag, node.latency_s = True, 0, 0.01
        self.leadership.set(True)

    def has_all(self) -> bool:
        """Return whether every block is stored."""
        newest = self.store.read_ranges.newest
        # A node that lies about the times of old blocks may have the follower begin too early.
        return (
            newest is not None
            and newest.low <= self.first
            and newest.high == len(self.chain.raw) - 1
        )


async def follow(seed: int) -> None:
    """Play one history, and check what is stored at its end."""
    with patch("warpseal.runtime.retry.SystemRandom", partial(Random, seed)):
        await _follow(History(seed))


async def _follow(history: History) -> None:
    task = await play(history.rng, history.start, history.disturb, history.rng.randint(5, 60))
    history.calm()
    follower = history.followers[-1]
    try:
        await until(history.has_all)
        if history.store.spans:
            await until(lambda: is_done(follower.progress()) and follower.progress().stop is None)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    store, chain = history.store, history.chain
    if store.spans:
        newest = store.read_ranges.newest
        assert newest is not None
        assert newest.high_block_id == sha256(chain.raw[-1]).digest()
        heights = [height for read in store.appended for height in range(read.low, read.high + 1)]
        assert len(heights) == len(set(heights))
        assert {height for height in heights if height >= history.first} == set(
            range(history.first, len(chain.raw))
        )
    expected = {tx_id: height for height, tx_id in history.txs.items() if height >= history.first}
    assert {tx.tx_id: tx.height for tx in store.transactions.values()} == expected
    assert all(tx.block_id == chain.id_at(tx.height) for tx in store.transactions.values())


def test_a_first_block_is_stored_when_the_next_one_names_it() -> None:
    async def main() -> None:
        chain, store = Chain(8), MemoryStore()
        lies = {7: Chain(8, salt=b"other").raw[7]}
        nodes = [RoughNode(chain.raw, lies=lies), RoughNode(chain.raw)]
        # The first block of Etna is the last one of the chain.
        blocks = RoughBlocks(nodes, 1, Random(1), {"etna": BANFF_S + 7})
        leadership = SettableLeadership()
        follower = PChainFollower(blocks.as_client(), store, leadership, FollowerSettings())
        task = asyncio.create_task(follower.run())
        await asyncio.sleep(60.0)
        assert follower.progress().height is None
        chain.grow(1)
        await asyncio.sleep(60.0)
        assert (follower.progress().height, follower.progress().stop) == (8, None)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(main())


@pytest.mark.parametrize("seeds", split_seeds(SEEDS, 25), ids=str)
def test_the_follower_stores_every_block_once_whatever_happens(seeds: range) -> None:
    run_seeds(seeds, follow)
