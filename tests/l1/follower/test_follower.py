"""The follower over loopback nodes: it reads each block once, from the tip down, and continues
after restarts.
"""

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
    fraction,
    is_done,
    nodes_of,
    recorded_blocks,
    recorded_l1_txs,
    remaining_blocks,
    target_height,
)
from warpseal.l1 import consumer
from warpseal.l1 import follower as follower_module
from warpseal.l1.errors import FollowerProgress
from warpseal.l1.follower import (
    FollowerSample,
    PChainFollower,
    follower_detail,
    follower_sample,
    follower_state,
)
from warpseal.resources.progress import FollowerState
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


async def test_exactly_the_l1_transactions_and_origins_of_the_recorded_network_are_stored() -> None:
    chain, store = recorded_chain(), MemoryStore()
    async with (
        nodes_of(ChainNode(chain=chain, etna_s=1_607_144_400)) as blocks,
        following(blocks, store) as follower,
    ):
        await until(lambda: is_done(follower.progress()))
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


async def test_the_newest_blocks_are_read_first_and_then_those_from_the_first_of_etna_on() -> None:
    chain, store = Chain(120, apricot=30), MemoryStore()
    node = ChainNode(chain=chain, etna_s=BANFF_S + 50)
    async with nodes_of(node, per_s=1_000) as blocks:
        blocks.max_calls_per_s = 20
        async with following(blocks, store, SLOW) as follower:
            await until(lambda: is_done(follower.progress()))
            status = follower.progress()
    assert [(read.low, read.high) for read in store.appended] == [
        (118, 118),
        (119, 119),
        (50, 69),
        (70, 89),
        (90, 109),
        (110, 117),
    ]
    assert (status.height, status.first_height, target_height(status)) == (119, 50, 50)
    assert (fraction(status), remaining_blocks(status), status.eta_s, follower.blocks_read) == (
        1.0,
        0,
        None,
        70,
    )
    assert status.stopped is None
    assert status.is_leader


@pytest.mark.parametrize(("etna_s", "first"), [(None, 0), (BANFF_S, 30)])
async def test_all_blocks_are_read_if_the_time_of_etna_is_unknown(
    etna_s: int | None, first: int
) -> None:
    chain, store = Chain(60, apricot=30), MemoryStore()
    node = ChainNode(chain=chain, etna_s=etna_s)
    async with nodes_of(node) as blocks, following(blocks, store) as follower:
        await until(lambda: is_done(follower.progress()))
    assert store.spans == [(first, 59)]


async def test_the_first_block_of_etna_is_found_although_a_node_returns_other_bytes() -> None:
    chain, store = Chain(60, apricot=30), MemoryStore()
    lies = dict.fromkeys(range(20, 58), b"no block")
    nodes = [ChainNode(chain=chain, etna_s=BANFF_S + 40, lies=lies), ChainNode(chain=chain)]
    async with nodes_of(*nodes) as blocks, following(blocks, store) as follower:
        await until(lambda: is_done(follower.progress()))
    assert store.spans == [(40, 59)]


async def test_the_node_in_use_is_behind_the_others_which_are_asked_once_in_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumer, "_COMPARE_INTERVAL_S", 3_600.0)
    chain = Chain(20)
    first, second = ChainNode(chain=chain, tip=10), ChainNode(chain=chain)
    async with nodes_of(first, second) as blocks, following(blocks, MemoryStore()) as follower:
        await until(lambda: follower.progress().node_height == 19)
        assert follower.progress().is_node_behind
        polls = first.calls["platform.getHeight"]
        await until(lambda: first.calls["platform.getHeight"] >= polls + 5)
    assert second.calls["platform.getHeight"] == 1


async def test_follow_from_height_sets_the_lowest_block() -> None:
    node, store = ChainNode(chain=Chain(60)), MemoryStore()
    settings = replace(FAST, follow_from_height=42)
    async with nodes_of(node) as blocks, following(blocks, store, settings) as follower:
        await until(lambda: is_done(follower.progress()))
    assert store.spans == [(42, 59)]
    assert min(node.requested_heights) == 42
    assert node.calls["info.upgrades"] == 0


async def test_no_block_is_read_before_etna_is_active() -> None:
    chain, store = Chain(20, apricot=20), MemoryStore()
    node = ChainNode(chain=chain)
    async with nodes_of(node) as blocks, following(blocks, store) as follower:
        await until(lambda: target_height(follower.progress()) == 20)
        chain.grow(3)
        await until(lambda: follower.progress().height == 22 and is_done(follower.progress()))
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
            await until(lambda: is_done(follower.progress()) and len(chain.raw) == 102)
            # One range, although the new blocks came during the backfill.
            assert follower.progress().first_height == 1
    reads = [(read.low, read.high) for read in store.appended]
    assert reads[2:5] == [(1, 8), (100, 101), (9, 16)]
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
        await until(lambda: is_done(follower.progress()))
        chain.grow(1, txs[1], txs[2])
        await until(lambda: len(results) == 2)
        end()
        chain.grow(1, txs[3])
        await until(lambda: follower.progress().height == 7)
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
                await until(
                    lambda: (
                        follower.progress().waiting_for == "store" or is_done(follower.progress())
                    )
                )
    assert starts == 7
    heights = [height for read in store.appended for height in range(read.low, read.high + 1)]
    assert sorted(heights) == list(range(1, 200))


async def test_blocks_accepted_during_a_downtime_are_read_upwards_and_reported() -> None:
    txs = recorded_l1_txs()
    chain, store = Chain(40), MemoryStore()
    chain.grow(1, txs[0])
    results: list[bytes] = []
    async with nodes_of(ChainNode(chain=chain)) as blocks:
        blocks.max_calls_per_s = 8
        async with following(blocks, store) as follower:
            await until(lambda: is_done(follower.progress()))
        store.appended.clear()
        chain.grow(30)
        chain.grow(1, txs[1])
        chain.grow(20)
        store.up(down_after=2)
        async with following(blocks, store) as follower:
            follower.subscribe(lambda tx: results.append(tx.raw))
            await until(lambda: follower.progress().waiting_for == "store")
        # Killed on the way: the next follower reports the transactions above.
        assert store.spans in ([(1, 56)], [(1, 64)])
        assert results == []
        store.up()
        async with following(blocks, store) as follower:
            follower.subscribe(lambda tx: results.append(tx.raw))
            await until(lambda: is_done(follower.progress()))
    assert results == [txs[1].raw]
    assert store.spans == [(1, 91)]
    heights = [height for read in store.appended for height in range(read.low, read.high + 1)]
    assert heights == list(range(41, 92))


async def test_the_follower_waits_for_an_unavailable_node_and_continues() -> None:
    chain, store = Chain(10), MemoryStore()
    node = ChainNode(chain=chain)
    height = node.replies["platform.getHeight"]
    async with nodes_of(node) as blocks, following(blocks, store) as follower:
        await until(lambda: is_done(follower.progress()))
        node.replies["platform.getHeight"] = lambda _: web.Response(status=502)
        await until(lambda: follower.progress().waiting_for == "nodes")
        chain.grow(2)
        node.replies["platform.getHeight"] = height
        await until(lambda: follower.progress().height == 11)
        assert follower.progress().waiting_for is None


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
        await until(lambda: is_done(follower.progress()))
    assert store.spans[0][1] == 59
    assert len(store.spans) == 1


async def test_the_follower_waits_for_an_unavailable_store_and_loses_no_block() -> None:
    txs = recorded_l1_txs()
    chain, store = Chain(10), MemoryStore()
    results: list[bytes] = []
    async with nodes_of(ChainNode(chain=chain)) as blocks, following(blocks, store) as follower:
        follower.subscribe(lambda tx: results.append(tx.raw))
        await until(lambda: is_done(follower.progress()))
        store.is_down = True
        chain.grow(1, txs[0])
        await until(lambda: follower.progress().waiting_for == "store")
        assert results == []
        store.is_down = False
        await until(lambda: results == [txs[0].raw])
        assert follower.progress().waiting_for is None


async def test_a_follower_without_leadership_reports_the_progress_of_the_leader() -> None:
    chain, store = Chain(20), MemoryStore()
    nodes = ChainNode(chain=chain), ChainNode(chain=chain)
    async with nodes_of(nodes[0]) as first_blocks, following(first_blocks, store) as first:
        await until(lambda: is_done(first.progress()))
        async with (
            nodes_of(nodes[1]) as blocks,
            following(blocks, store, leadership=SettableLeadership(held=False)) as second,
        ):
            await until(lambda: fraction(second.progress()) == 1)
            result = second.progress()
    assert (result.height, result.lag_blocks, remaining_blocks(result), result.is_leader) == (
        19,
        0,
        0,
        False,
    )
    assert len(nodes[1].requested_heights) < 8


async def test_a_follower_without_leadership_reads_the_store_once_in_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follower_module, "_STATUS_INTERVAL_S", 3_600.0)
    chain, store = Chain(20), MemoryStore()
    leading, waiting = ChainNode(chain=chain), ChainNode(chain=chain)
    async with (
        nodes_of(leading) as blocks,
        nodes_of(waiting) as other_blocks,
        following(blocks, store),
        following(other_blocks, store, leadership=SettableLeadership(held=False)) as other,
    ):
        await until(lambda: other.progress().node_height == 19)
        polls = leading.calls["platform.getHeight"]
        await until(lambda: leading.calls["platform.getHeight"] >= polls + 5)
    assert waiting.calls["platform.getHeight"] == 1


async def test_the_metrics_of_the_follower_say_how_far_it_is() -> None:
    chain, store = Chain(20), MemoryStore()
    async with nodes_of(ChainNode(chain=chain)) as blocks, following(blocks, store) as follower:
        assert follower_sample(follower).remaining_blocks is None
        await until(lambda: is_done(follower.progress()))
        assert follower_sample(follower) == FollowerSample(
            chain="p",
            height=19,
            node_height=19,
            lag_blocks=0,
            remaining_blocks=0,
            blocks_read=19,
            is_leader=True,
        )


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
        await until(lambda: is_done(first.progress()))
        assert not second.progress().is_leader
        # The follower searches for the first block of Etna and reads no range.
        assert len(nodes[1].requested_heights) < 8
        leads[0].set(False)
        chain.grow(3)
        leads[1].set(True)
        await until(lambda: second.progress().height == 22 and second.progress().is_leader)
        # The former leader reads no new block. A call that it sent before may still arrive.
        assert max(nodes[0].requested_heights) < 20
        assert not first.progress().is_leader
    assert len(store.spans) == 1
    heights = [height for read in store.appended for height in range(read.low, read.high + 1)]
    assert len(heights) == len(set(heights))


async def test_a_follower_without_leadership_reports_the_ranges_of_the_store() -> None:
    chain, store = Chain(20), MemoryStore()
    async with nodes_of(ChainNode(chain=chain)) as blocks:
        async with following(blocks, store) as follower:
            await until(lambda: is_done(follower.progress()))
        async with following(blocks, store, leadership=SettableLeadership(held=False)) as other:
            await until(
                lambda: other.progress().height == 19 and other.progress().node_height == 19
            )
            assert not other.progress().is_leader


async def test_progress_is_logged_while_the_backfill_runs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    chain, store = Chain(76), MemoryStore()
    # The two newest blocks, and three batches of the backfill.
    store.up(down_after=5)
    async with nodes_of(ChainNode(chain=chain)) as blocks:
        blocks.max_calls_per_s = 8
        async with following(blocks, store, replace(FAST, log_every_s=0.01)) as follower:
            await until(lambda: follower.progress().waiting_for == "store")
            status, progress = follower.progress(), follower_detail(follower)
            await until(
                lambda: any(line.__dict__.get("remaining_blocks") == 49 for line in caplog.records)
            )
            store.up()
            await until(lambda: is_done(follower.progress()))
            assert follower_detail(follower) == FollowerProgress(from_="1", to="1", percent=100.0)
    assert (remaining_blocks(status), fraction(status)) == (49, 26 / 75)
    assert status.blocks_per_s is not None
    assert status.eta_s is not None
    assert status.eta_s == pytest.approx(49 / status.blocks_per_s)
    assert progress == FollowerProgress(from_="74", to="1", percent=34.7, eta=round(status.eta_s))
    line = next(line for line in caplog.records if line.__dict__.get("remaining_blocks") == 49)
    assert (line.message, line.__dict__["to"]) == ("reading P-Chain blocks", 1)


async def test_following_can_be_switched_off() -> None:
    node = ChainNode(chain=Chain(20))
    async with nodes_of(node) as blocks:
        follower = PChainFollower(
            blocks, MemoryStore(), SettableLeadership(), replace(FAST, follow_p_chain=False)
        )
        await follower.run()
    assert node.calls.total() == 0
    assert (follower_detail(follower), follower_state(follower)) == (
        FollowerProgress(off=True),
        FollowerState(off=True),
    )
