"""The follower over loopback nodes: it reads each block once, from the tip down, and continues after restarts."""

from __future__ import annotations

import logging

import pytest
from aiohttp import web
from msgspec.structs import replace

from tests.eventually import until
from tests.l1.follower.fixtures import (
    BANFF_S,
    FAST,
    Chain,
    ChainNode,
    MemoryStore,
    SettableLeadership,
    following,
    is_done,
    nodes_of,
    recorded_blocks,
    recorded_l1_txs,
)
from warpseal.l1.errors import FollowerProgress
from warpseal.l1.follower.follower import PChainFollower
from warpseal.resources.chains import FollowerState
from warpseal.store.values import BootstrapOrigin, L1Transaction, RegistrationOrigin
from warpseal.warp.ids import id_text

L1 = "2XvG1bxvmQNASMVQXBFCsuXScDv3VDCMee6MaLNfDkkmvrjvy5"
BOOTSTRAP_IDS = [
    "2DvzCogYMgLm2YxVv92TVd5558ZsFUJevyWxgrM1e7yUu4kt7Y",
    "yk2A5PJDFJ3YAiPUq6e2m7KbFJWhL4wUHRuXZUHF3rG484M7A",
    "2jiPkAsGW1o4XmmKJ17TDHVqVpcvmzWVmSGeuxLbz7qNBKwyQF",
    "CzaAJxtzTe89WRKDDGU6yz6GsbTYcEYs7ZFFHjcDVUUwemhSW",
]
REGISTERED_ID = "2JRupqWf57oyuM9ARJ218CTRSKvfzcQaKYh6x4fHMjonVzY2Fd"
INCREASE = "928phTem5W2m5izctvj7LcrMgGGPpHp1daX3Y1xFgoTo1JA15"
DISABLE = "2uAacHuRZ4eoGiux6VRAd7bRrXGpqfaHQdNurCVeX3jDb4vpYv"
SLOW = replace(FAST, follow_poll_s=0.2)


def recorded_chain() -> Chain:
    chain = Chain(0)
    chain.raw = recorded_blocks()
    return chain


async def test_the_follower_stores_exactly_the_l1_transactions_and_origins_of_the_recorded_network() -> None:
    chain, store = recorded_chain(), MemoryStore()
    async with nodes_of(ChainNode(chain=chain, etna_s=1_607_144_400)) as blocks, following(blocks, store) as follower:
        await until(lambda: is_done(follower.status()))
    transactions = sorted(store.transactions.values(), key=lambda tx: tx.height)
    assert [(tx.height, tx.position, tx.kind) for tx in transactions] == [
        (7, 0, "ConvertSubnetToL1Tx"),
        (16, 0, "IncreaseL1ValidatorBalanceTx"),
        (17, 0, "SetL1ValidatorWeightTx"),
        (18, 0, "RegisterL1ValidatorTx"),
        (19, 0, "DisableL1ValidatorTx"),
    ]
    assert (id_text(transactions[1].tx_id), id_text(transactions[4].tx_id)) == (INCREASE, DISABLE)
    assert [tx.time for tx in transactions] == [
        1_795_226_586,
        1_795_226_692,
        1_795_226_700,
        1_795_226_756,
        1_795_226_807,
    ]
    assert [tx.block_id for tx in transactions] == [chain.id_at(tx.height) for tx in transactions]
    assert [tx.raw for tx in transactions] == [tx.raw for tx in recorded_l1_txs()]
    subnets = [None if tx.subnet_id is None else id_text(tx.subnet_id) for tx in transactions]
    assert subnets == [L1, None, None, L1, None]
    removed = transactions[2].validation_id
    assert removed is not None
    assert id_text(removed) in BOOTSTRAP_IDS
    assert transactions[3].validation_id is not None
    assert id_text(transactions[3].validation_id) == REGISTERED_ID
    origins = {id_text(origin.validation_id): origin for origin in store.origins}
    assert list(map(type, origins.values())).count(BootstrapOrigin) == 4
    assert isinstance(origins[REGISTERED_ID], RegistrationOrigin)
    assert set(origins) == {*BOOTSTRAP_IDS, REGISTERED_ID}
    # Block 0 has no time: it is before Etna.
    assert store.spans == [(1, 19)]


async def test_blocks_are_read_from_the_tip_down_to_the_first_of_etna() -> None:
    chain, store = Chain(120, apricot=30), MemoryStore()
    node = ChainNode(chain=chain, etna_s=BANFF_S + 50)
    async with nodes_of(node, per_s=1_000) as blocks:
        blocks.max_calls_per_s = 20
        async with following(blocks, store, SLOW) as follower:
            await until(lambda: is_done(follower.status()))
            status = follower.status()
    assert [(read.low, read.high) for read in store.appended] == [(100, 119), (80, 99), (60, 79), (50, 59)]
    assert (status.height, status.first_height, status.target_height) == (119, 50, 50)
    assert (status.backfilled, status.remaining_blocks, status.eta_s, status.blocks_read) == (1.0, 0, None, 70)
    assert status.stopped is None
    assert status.is_leader


@pytest.mark.parametrize(("etna_s", "first"), [(None, 0), (BANFF_S, 30)])
async def test_all_blocks_are_read_if_the_time_of_etna_is_unknown(etna_s: int | None, first: int) -> None:
    chain, store = Chain(60, apricot=30), MemoryStore()
    node = ChainNode(chain=chain, etna_s=etna_s)
    async with nodes_of(node) as blocks, following(blocks, store) as follower:
        await until(lambda: is_done(follower.status()))
    assert store.spans == [(first, 59)]


async def test_follow_from_height_sets_the_lowest_block() -> None:
    node, store = ChainNode(chain=Chain(60)), MemoryStore()
    settings = replace(FAST, follow_from_height=42)
    async with nodes_of(node) as blocks, following(blocks, store, settings) as follower:
        await until(lambda: is_done(follower.status()))
    assert store.spans == [(42, 59)]
    assert min(node.requested_heights) == 42
    assert node.calls["info.upgrades"] == 0


async def test_no_block_is_read_before_etna_is_active() -> None:
    chain, store = Chain(20, apricot=20), MemoryStore()
    node = ChainNode(chain=chain)
    async with nodes_of(node) as blocks, following(blocks, store) as follower:
        await until(lambda: follower.status().target_height == 20)
        chain.grow(3)
        await until(lambda: follower.status().height == 22)
    assert store.spans == [(20, 22)]


async def test_new_blocks_are_followed_while_the_backfill_goes_on() -> None:
    chain, store = Chain(100), MemoryStore()

    def grow() -> None:
        if len(store.appended) == 3:
            chain.grow(2)

    store.on_commit = grow
    async with nodes_of(ChainNode(chain=chain)) as blocks:
        blocks.max_calls_per_s = 8
        async with following(blocks, store, replace(FAST, follow_poll_s=0.0)) as follower:
            await until(lambda: is_done(follower.status()) and len(chain.raw) == 102)
    reads = [(read.low, read.high) for read in store.appended]
    assert reads[2:5] == [(76, 83), (100, 101), (68, 75)]
    assert store.spans == [(1, 101)]


async def test_listeners_are_notified_of_new_transactions_after_the_commit() -> None:
    txs = recorded_l1_txs()
    chain, store = Chain(5), MemoryStore()
    chain.grow(1, txs[0])
    results: list[tuple[L1Transaction, bool]] = []
    node = ChainNode(chain=chain)
    async with nodes_of(node) as blocks, following(blocks, store) as follower:

        def fail(_: L1Transaction) -> None:
            raise RuntimeError("a listener's own trouble")

        follower.subscribe(fail)
        end = follower.subscribe(lambda tx: results.append((tx, tx.tx_id in store.transactions)))
        await until(lambda: is_done(follower.status()))
        chain.grow(1, txs[1], txs[2])
        await until(lambda: len(results) == 2)
        end()
        chain.grow(1, txs[3])
        await until(lambda: follower.status().height == 7)
    assert [(tx.raw, tx.position, committed) for tx, committed in results] == [
        (txs[1].raw, 0, True),
        (txs[2].raw, 1, True),
    ]


async def test_a_restart_during_the_backfill_reads_no_block_twice() -> None:
    chain, store, starts = Chain(200), MemoryStore(), 0
    async with nodes_of(ChainNode(chain=chain)) as blocks:
        blocks.max_calls_per_s = 8
        while store.spans != [(1, 199)]:
            starts += 1
            store.up(down_after=4)
            async with following(blocks, store) as follower:
                await until(lambda: follower.status().waiting_for == "store" or is_done(follower.status()))
    assert starts == 7
    heights = [height for read in store.appended for height in range(read.low, read.high + 1)]
    assert sorted(heights) == list(range(1, 200))


async def test_blocks_accepted_during_a_downtime_are_read_from_the_tip_and_reported() -> None:
    txs = recorded_l1_txs()
    chain, store = Chain(40), MemoryStore()
    chain.grow(1, txs[0])
    results: list[bytes] = []
    async with nodes_of(ChainNode(chain=chain)) as blocks:
        blocks.max_calls_per_s = 8
        async with following(blocks, store) as follower:
            await until(lambda: is_done(follower.status()))
        store.appended.clear()
        chain.grow(30)
        chain.grow(1, txs[1])
        chain.grow(20)
        store.up(down_after=2)
        async with following(blocks, store) as follower:
            follower.subscribe(lambda tx: results.append(tx.raw))
            await until(lambda: follower.status().waiting_for == "store")
        # Killed with the gap half read: the next follower reports its transactions.
        assert store.spans == [(76, 91), (1, 40)]
        assert results == []
        store.up()
        async with following(blocks, store) as follower:
            follower.subscribe(lambda tx: results.append(tx.raw))
            await until(lambda: is_done(follower.status()))
    assert results == [txs[1].raw]
    assert store.spans == [(1, 91)]
    assert [read.high for read in store.appended] == [91, 83, 75, 67, 59, 51, 43]


async def test_the_follower_waits_for_an_unavailable_node_and_continues() -> None:
    chain, store = Chain(10), MemoryStore()
    node = ChainNode(chain=chain)
    height = node.replies["platform.getHeight"]
    async with nodes_of(node) as blocks, following(blocks, store) as follower:
        await until(lambda: is_done(follower.status()))
        node.replies["platform.getHeight"] = lambda _: web.Response(status=502)
        await until(lambda: follower.status().waiting_for == "nodes")
        chain.grow(2)
        node.replies["platform.getHeight"] = height
        await until(lambda: follower.status().height == 11)
        assert follower.status().waiting_for is None


async def test_a_rate_limited_backfill_reads_every_block() -> None:
    chain, store = Chain(60), MemoryStore()
    node = ChainNode(chain=chain)
    block = node.replies["platform.getBlockByHeight"]
    count = 0

    def limited(params: object) -> object:
        nonlocal count
        count += 1
        if count % 7 == 0:
            return web.Response(status=429, headers={"Retry-After": "0"})
        return block(params)

    node.replies["platform.getBlockByHeight"] = limited
    async with nodes_of(node) as blocks, following(blocks, store) as follower:
        await until(lambda: is_done(follower.status()))
    assert store.spans[0][1] == 59
    assert len(store.spans) == 1


async def test_the_follower_waits_for_an_unavailable_store_and_loses_no_block() -> None:
    txs = recorded_l1_txs()
    chain, store = Chain(10), MemoryStore()
    results: list[bytes] = []
    async with nodes_of(ChainNode(chain=chain)) as blocks, following(blocks, store) as follower:
        follower.subscribe(lambda tx: results.append(tx.raw))
        await until(lambda: is_done(follower.status()))
        store.is_down = True
        chain.grow(1, txs[0])
        await until(lambda: follower.status().waiting_for == "store")
        assert results == []
        store.is_down = False
        await until(lambda: results == [txs[0].raw])
        assert follower.status().waiting_for is None


async def test_a_follower_without_leadership_reports_the_progress_of_the_leader() -> None:
    chain, store = Chain(20), MemoryStore()
    nodes = ChainNode(chain=chain), ChainNode(chain=chain)
    async with nodes_of(nodes[0]) as first_blocks, following(first_blocks, store) as first:
        await until(lambda: is_done(first.status()))
        async with (
            nodes_of(nodes[1]) as blocks,
            following(blocks, store, leadership=SettableLeadership(held=False)) as second,
        ):
            await until(lambda: second.status().backfilled == 1)
            result = second.status()
    assert (result.height, result.lag_blocks, result.remaining_blocks, result.is_leader) == (19, 0, 0, False)
    assert len(nodes[1].requested_heights) < 8


async def test_only_the_leader_follows_and_the_next_leader_takes_over() -> None:
    chain, store = Chain(20), MemoryStore()
    nodes = ChainNode(chain=chain), ChainNode(chain=chain)
    leads = SettableLeadership(), SettableLeadership(held=False)
    async with (
        nodes_of(nodes[0]) as first_blocks,
        nodes_of(nodes[1]) as second_blocks,
        following(first_blocks, store, leadership=leads[0]) as first,
        following(second_blocks, store, leadership=leads[1]) as second,
    ):
        await until(lambda: is_done(first.status()))
        assert not second.status().is_leader
        # The follower searches for the first block of Etna and reads no range.
        assert len(nodes[1].requested_heights) < 8
        leads[0].set(False)
        chain.grow(3)
        leads[1].set(True)
        await until(lambda: second.status().height == 22 and second.status().is_leader)
        # The former leader reads no new block. A call that it sent before may still arrive.
        assert max(nodes[0].requested_heights) < 20
        assert not first.status().is_leader
    assert len(store.spans) == 1
    heights = [height for read in store.appended for height in range(read.low, read.high + 1)]
    assert len(heights) == len(set(heights))


async def test_a_follower_without_leadership_reports_the_ranges_of_the_store() -> None:
    chain, store = Chain(20), MemoryStore()
    async with nodes_of(ChainNode(chain=chain)) as blocks:
        async with following(blocks, store) as follower:
            await until(lambda: is_done(follower.status()))
        async with following(blocks, store, leadership=SettableLeadership(held=False)) as other:
            await until(lambda: other.status().height == 19 and other.status().node_height == 19)
            assert not other.status().is_leader


async def test_progress_is_logged_while_the_backfill_runs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    chain, store = Chain(81), MemoryStore()
    store.up(down_after=3)
    async with nodes_of(ChainNode(chain=chain)) as blocks:
        blocks.max_calls_per_s = 8
        async with following(blocks, store, replace(FAST, log_every_s=0.01)) as follower:
            await until(lambda: follower.status().waiting_for == "store")
            status, progress = follower.status(), follower.status().progress()
            await until(lambda: any(line.__dict__.get("remaining_blocks") == 56 for line in caplog.records))
            store.up()
            await until(lambda: is_done(follower.status()))
            assert follower.status().progress() == FollowerProgress(from_="1", to="1", percent=100.0)
    assert (status.remaining_blocks, status.backfilled) == (56, 0.3)
    assert status.rate_blocks_s is not None
    assert status.eta_s is not None
    assert status.eta_s == pytest.approx(56 / status.rate_blocks_s)
    assert progress == FollowerProgress(from_="57", to="1", percent=30.0, eta=round(status.eta_s))
    line = next(line for line in caplog.records if line.__dict__.get("remaining_blocks") == 56)
    assert (line.message, line.__dict__["to"]) == ("reading P-Chain blocks", 1)


async def test_following_can_be_switched_off() -> None:
    node = ChainNode(chain=Chain(20))
    async with nodes_of(node) as blocks:
        follower = PChainFollower(blocks, MemoryStore(), SettableLeadership(), replace(FAST, follow_p_chain=False))
        await follower.run()
    assert node.calls.total() == 0
    assert (follower.status().progress(), follower.status().state()) == (
        FollowerProgress(off=True),
        FollowerState(off=True),
    )
