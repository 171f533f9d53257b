"""The follower with a real store: its transactions survive a restart, and a killed follower loses
none.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.eventually import until
from tests.l1.follower.fixtures import (
    Chain,
    ChainNode,
    following,
    is_done,
    nodes_of,
    recorded_blocks,
    recorded_l1_txs,
)
from warpseal.l1.followed_block import parse_followed_block
from warpseal.runtime.process import running
from warpseal.store.locks import Leadership
from warpseal.store.migrate import MIGRATIONS, Migrations
from warpseal.store.settings import StoreSettings
from warpseal.store.store import Store, open_store
from warpseal.store.values import BlockRange
from warpseal.warp.ids import P_CHAIN


@asynccontextmanager
async def store_in(folder: Path, url: str = "") -> AsyncIterator[Store]:
    async with open_store(StoreSettings(url), folder) as store:
        yield store


async def test_the_recorded_l1_transactions_and_origins_can_be_read_from_the_store(
    tmp_path: Path,
) -> None:
    chain = Chain(0)
    chain.raw = recorded_blocks()
    async with nodes_of(ChainNode(chain=chain, etna_s=0)) as blocks, store_in(tmp_path) as store:
        async with following(blocks, store.l1) as follower:
            await until(lambda: is_done(follower.progress()))
        for tx in recorded_l1_txs():
            transaction = await store.l1.transaction(tx.id)
            assert transaction is not None
            assert (transaction.kind, transaction.raw) == (tx.kind, tx.raw)
        removal = next(tx for tx in recorded_l1_txs() if tx.kind == "SetL1ValidatorWeightTx")
        transaction = await store.l1.transaction(removal.id)
        assert transaction is not None
        assert transaction.validation_id is not None
        origin = await store.l1.origin(transaction.validation_id)
        assert origin is not None
        assert origin.validation_id == transaction.validation_id
        assert [change.tx_id for change in await store.l1.changes(transaction.validation_id)] == [
            removal.id
        ]


async def test_a_killed_follower_continues_where_the_store_ends(tmp_path: Path) -> None:
    txs = recorded_l1_txs()
    chain = Chain(30)
    for tx in txs:
        chain.grow(1, tx)
        chain.grow(20)
    node = ChainNode(chain=chain)
    spans: list[list[tuple[int, int]]] = []
    async with nodes_of(node) as blocks:
        blocks.max_calls_per_s = 8
        while not spans or spans[-1] != [(1, chain.tip)]:
            async with store_in(tmp_path) as store:
                read_count = len(node.requested_heights)
                async with following(blocks, store.l1) as follower:

                    def has_read_more(start: int = read_count) -> bool:
                        has_read_30 = len(node.requested_heights) > start + 30
                        return has_read_30 or is_done(follower.progress())

                    await until(has_read_more)
                spans.append([(item.low, item.high) for item in await store.l1.ranges(P_CHAIN)])
            if len(spans) < 4:
                chain.grow(12)
        async with store_in(tmp_path) as store:
            assert all([await store.l1.transaction(tx.id) for tx in txs])
    assert len(spans) > 3


@asynccontextmanager
async def contending(store: Store) -> AsyncIterator[Leadership]:
    leadership = store.leadership("p-chain")
    async with running(leadership.run()):
        yield leadership


async def test_one_of_two_followers_on_one_postgresql_server_follows_and_the_other_takes_over(
    tmp_path: Path, postgres_url: str
) -> None:
    txs = recorded_l1_txs()
    chain = Chain(40)
    nodes = ChainNode(chain=chain), ChainNode(chain=chain)
    async with (
        nodes_of(nodes[0]) as first_blocks,
        nodes_of(nodes[1]) as second_blocks,
        store_in(tmp_path / "1", postgres_url) as first_store,
        store_in(tmp_path / "2", postgres_url) as second_store,
        AsyncExitStack() as others,
    ):
        async with (
            contending(first_store) as first_lead,
            following(first_blocks, first_store.l1, leadership=first_lead) as first,
        ):
            await until(lambda: is_done(first.progress()))
            second_lead = await others.enter_async_context(contending(second_store))
            second = await others.enter_async_context(
                following(second_blocks, second_store.l1, leadership=second_lead)
            )
            chain.grow(1, txs[0])
            await until(lambda: first.progress().height == 40)
            assert first.progress().is_leader
            assert not second.progress().is_leader
            # The follower searches for the first block of Etna and reads no range.
            assert len(nodes[1].requested_heights) < 10
        read_count = len(nodes[0].requested_heights)
        chain.grow(1, txs[1])
        await until(lambda: second.progress().is_leader and second.progress().height == 41)
        assert len(nodes[0].requested_heights) == read_count
        assert [(item.low, item.high) for item in await first_store.l1.ranges(P_CHAIN)] == [(1, 41)]
        assert await first_store.l1.transaction(txs[1].id) is not None


async def test_a_store_with_gaps_of_an_earlier_version_is_upgraded_and_completed(
    tmp_path: Path,
) -> None:
    """Earlier versions read the newest blocks first, and left gaps when they were killed."""
    txs = recorded_l1_txs()
    chain = Chain(10)
    heights = []
    for tx in txs:
        chain.grow(10)
        chain.grow(1, tx)
        heights.append(chain.tip)
    earlier = Migrations(MIGRATIONS.versions[:9])
    # Of the four ranges, the lowest is that of the unfinished backfill.
    spans = [(20, 30), (35, 36), (41, 42), (50, chain.tip)]
    async with open_store(StoreSettings(), tmp_path, migrations=earlier) as store:
        for low, high in spans:
            blocks = [parse_followed_block(raw) for raw in chain.raw[low : high + 1]]
            rows = [row for block in blocks for row in block.transactions]
            origins = [origin for block in blocks for origin in block.origins]
            read = BlockRange(low, high, chain.id_at(low - 1), chain.id_at(high))
            await store.l1.append(P_CHAIN, read, rows, origins)
    chain.grow(5)
    reported: list[int] = []
    async with nodes_of(ChainNode(chain=chain)) as blocks_client, store_in(tmp_path) as store:
        assert [(item.low, item.high) for item in await store.l1.ranges(P_CHAIN)] == [(20, 30)]
        async with following(blocks_client, store.l1) as follower:
            follower.subscribe(lambda tx: reported.append(tx.height))
            await until(lambda: is_done(follower.progress()))
        assert [(item.low, item.high) for item in await store.l1.ranges(P_CHAIN)] == [
            (1, chain.tip)
        ]
        stored = await store.l1.newest(100)
    # Each transaction is there once, and those above the lowest range were reported: some were in
    # the gaps.
    assert sorted(tx.height for tx in stored) == heights
    assert reported == [height for height in heights if height > 30]
