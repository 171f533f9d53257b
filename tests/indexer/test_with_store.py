"""The follower with a real store: what it found is there after a restart, and a daemon killed half-way lost nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.indexer.world import Chain, ChainNode, following, is_done, nodes_of, recorded_blocks, recorded_l1_txs, until
from warpseal.store.settings import StoreSettings
from warpseal.store.store import Store, open_store
from warpseal.warp.ids import P_CHAIN


@asynccontextmanager
async def store_in(folder: Path) -> AsyncIterator[Store]:
    async with open_store(StoreSettings(), folder) as store:
        task = asyncio.create_task(store.run())
        try:
            yield store
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_the_recorded_l1_transactions_and_origins_can_be_asked_for(tmp_path: Path) -> None:
    chain = Chain(0)
    chain.raw = recorded_blocks()
    async with nodes_of(ChainNode(chain=chain, etna_s=0)) as blocks, store_in(tmp_path) as store:
        async with following(blocks, store.l1) as follower:
            await until(lambda: is_done(follower.status()))
        for tx in recorded_l1_txs():
            kept = await store.l1.transaction(tx.id)
            assert kept is not None
            assert (kept.kind, kept.raw) == (tx.kind, tx.raw)
        removal = next(tx for tx in recorded_l1_txs() if tx.kind == "SetL1ValidatorWeightTx")
        kept = await store.l1.transaction(removal.id)
        assert kept is not None
        assert kept.validation_id is not None
        origin = await store.l1.origin(kept.validation_id)
        assert origin is not None
        assert origin.validation_id == kept.validation_id
        assert [one.tx_id for one in await store.l1.changes(kept.validation_id)] == [removal.id]


async def test_restarts_go_on_where_the_store_is_however_often_it_is_killed(tmp_path: Path) -> None:
    txs = recorded_l1_txs()
    chain = Chain(30)
    for tx in txs:
        chain.grow(1, tx)
        chain.grow(20)
    node = ChainNode(chain=chain)
    spans: list[list[tuple[int, int]]] = []
    async with nodes_of(node) as blocks:
        blocks.per_s = 8
        while not spans or spans[-1] != [(1, chain.tip)]:
            async with store_in(tmp_path) as store:
                asked = len(node.asked)
                async with following(blocks, store.l1) as follower:
                    await until(lambda: len(node.asked) > asked + 30 or is_done(follower.status()))  # noqa: B023
                spans.append([(one.low, one.high) for one in await store.l1.ranges(P_CHAIN)])
            if len(spans) < 4:
                chain.grow(12)
        async with store_in(tmp_path) as store:
            assert all([await store.l1.transaction(tx.id) for tx in txs])
    assert len(spans) > 3
