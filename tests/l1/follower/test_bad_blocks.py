"""An invalid block stops the follower with a reason and a height, and no block is skipped."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tests.eventually import until
from tests.l1.follower.fixtures import (
    FAST,
    Chain,
    ChainNode,
    MemoryStore,
    SettableLeadership,
    cut_short,
    following,
    is_done,
    nodes_of,
    of_unknown_type,
    recorded_l1_txs,
)
from warpseal.chains.ids import BlockID
from warpseal.chains.p_blocks import PBlock
from warpseal.chains.p_txs import P_TX, RegisterL1ValidatorTx
from warpseal.l1.followed_block import FollowedBlock, parse_followed_block
from warpseal.store.errors import BlockRangesMismatch

Make = Callable[[BlockID, int], bytes]
BAD_BLOCKS = [(of_unknown_type, "unknown_type"), (cut_short, "undecodable_block")]
FROM_0 = replace(FAST, follow_from_height=0)


def with_block(make: Make, below: int, above: int) -> Chain:
    chain = Chain(below)
    chain.put(make)
    chain.grow(above)
    return chain


@pytest.mark.parametrize(("make", "reason"), BAD_BLOCKS)
async def test_an_undecodable_block_stops_the_backfill_below_it(make: Make, reason: str) -> None:
    chain, store = with_block(make, 40, 60), MemoryStore()
    node = ChainNode(chain=chain)
    async with nodes_of(node) as blocks:
        blocks.max_calls_per_s = 8
        async with following(blocks, store, FROM_0) as follower:
            await until(lambda: follower.progress().stopped is not None)
            status = follower.progress()
            assert (status.stopped, status.stopped_at) == (reason, 40)
            # The store has all blocks below it, and the newest ones.
            assert store.spans == [(99, 100), (0, 39)]
            # New blocks do not let the follower continue, however often it retries.
            chain.grow(30)
            tries = node.requested_heights.count(40)
            await until(lambda: node.requested_heights.count(40) >= tries + 3)
            assert follower.progress().stopped == reason
            assert store.spans == [(99, 100), (0, 39)]


@pytest.mark.parametrize(("make", "reason"), BAD_BLOCKS)
async def test_an_undecodable_new_block_stops_the_follower(make: Make, reason: str) -> None:
    chain, store = Chain(20), MemoryStore()
    node = ChainNode(chain=chain)
    async with nodes_of(node) as blocks:
        blocks.max_calls_per_s = 8
        async with following(blocks, store, FROM_0) as follower:
            await until(lambda: is_done(follower.progress()))
            chain.grow(2)
            chain.put(make)
            await until(lambda: follower.progress().stopped is not None)
            chain.grow(30)
            tries = node.requested_heights.count(22)
            await until(lambda: node.requested_heights.count(22) >= tries + 3)
            status = follower.progress()
    assert (status.stopped, status.stopped_at, status.height) == (reason, 22, 21)
    # It was read, and compared with the store once.
    assert node.requested_heights.count(21) == 2
    assert store.spans == [(0, 21)]


async def test_a_newer_parser_continues_at_the_block_that_stopped_the_follower() -> None:
    chain, store = with_block(of_unknown_type, 40, 60), MemoryStore()

    def newer(raw: bytes) -> FollowedBlock:
        if raw == chain.raw[40]:
            return FollowedBlock(40, chain.id_at(40), chain.id_at(39), 1)
        return parse_followed_block(raw)

    async with nodes_of(ChainNode(chain=chain)) as blocks:
        async with following(blocks, store, FROM_0) as follower:
            await until(lambda: follower.progress().stopped == "unknown_type")
        async with following(blocks, store, FROM_0, decode=newer) as upgraded:
            await until(lambda: is_done(upgraded.progress()))
            assert upgraded.progress().stopped is None
    assert store.spans == [(0, 100)]


async def test_a_block_with_a_wrong_parent_is_requested_from_the_next_node() -> None:
    chain, store = Chain(60), MemoryStore()
    lying = ChainNode(
        chain=chain, lies={30: Chain(31, salt=b"other").raw[30], 10: chain.raw[11], 5: b"no block"}
    )
    async with nodes_of(lying, ChainNode(chain=chain)) as blocks:
        blocks.max_calls_per_s = 8
        async with following(blocks, store, FROM_0) as follower:
            await until(lambda: is_done(follower.progress()))
            assert follower.progress().stopped is None
            # The same holds for new blocks.
            chain.grow(4)
            lying.lies[61] = Chain(62, salt=b"other").raw[61]
            await until(lambda: follower.progress().height == 63)
    assert store.spans == [(0, 63)]


async def test_a_time_that_no_database_holds_is_a_bad_block_of_its_node() -> None:
    chain, store, txs = Chain(60), MemoryStore(), tuple(recorded_l1_txs())

    def without_time(height: int) -> bytes:
        parent = BlockID(chain.id_at(height - 1))
        return PBlock.build("BanffStandardBlock", parent, height, 1 << 63, txs).raw

    lying = ChainNode(chain=chain, lies={30: without_time(30)})
    async with nodes_of(lying, ChainNode(chain=chain)) as blocks:
        blocks.max_calls_per_s = 8
        async with following(blocks, store, FROM_0) as follower:
            await until(lambda: is_done(follower.progress()))
            chain.grow(4)
            lying.lies[61] = without_time(61)
            await until(lambda: follower.progress().height == 63)
            assert follower.progress().stopped is None
    assert store.spans == [(0, 63)]
    assert not store.transactions


async def test_a_false_tip_is_detected_if_another_node_has_the_right_block() -> None:
    chain, store = Chain(60), MemoryStore()
    lying = ChainNode(chain=chain, lies={59: Chain(60, salt=b"other").raw[59]})
    async with (
        nodes_of(lying, ChainNode(chain=chain)) as blocks,
        following(blocks, store, FROM_0) as follower,
    ):
        await until(lambda: is_done(follower.progress()))
    assert store.spans == [(0, 59)]
    newest = store.read_ranges.newest
    assert newest is not None
    assert newest.high_block_id == chain.id_at(59)


@pytest.mark.parametrize("forged", [1, 4])
async def test_a_node_that_adds_blocks_of_its_own_to_the_chain_is_outvoted(forged: int) -> None:
    """The liar is asked first; its blocks link to each other and to the block below."""
    chain, store = Chain(64), MemoryStore()
    fork = chain.fork(63 - forged)
    lying = ChainNode(
        chain=chain, lies={height: fork.raw[height] for height in range(64 - forged, 64)}, tip=59
    )
    honest = ChainNode(chain=chain, tip=59), ChainNode(chain=chain, tip=59)
    async with (
        nodes_of(lying, *honest, quorum=2) as blocks,
        following(blocks, store, FROM_0) as follower,
    ):
        await until(lambda: is_done(follower.progress()))
        lying.tip = 1_000
        for node in honest:
            node.tip = 63
        await until(lambda: follower.progress().height == 63)
        assert follower.progress().stopped is None
    newest = store.read_ranges.newest
    assert newest is not None
    assert newest.high_block_id == chain.id_at(63)
    assert store.spans == [(0, 63)]


async def test_two_nodes_that_differ_hold_the_follower_before_their_first_different_block() -> None:
    chain, store = Chain(60), MemoryStore()
    lying = ChainNode(chain=chain, lies={59: Chain(60, salt=b"other").raw[59]})
    nodes = lying, ChainNode(chain=chain)
    async with nodes_of(*nodes, quorum=2) as blocks, following(blocks, store, FROM_0) as follower:
        await until(lambda: follower.progress().waiting_for == "nodes")
        assert store.spans == []
        lying.lies.clear()
        await until(lambda: is_done(follower.progress()))
    assert store.spans == [(0, 59)]


@pytest.mark.parametrize("height", [59, 58, 30, 0])
async def test_a_block_with_a_wrong_parent_on_every_node_stops_the_follower(height: int) -> None:
    chain, store = Chain(60), MemoryStore()
    node = ChainNode(chain=chain, lies={height: Chain(60, salt=b"other").raw[height]})
    async with nodes_of(node) as blocks:
        blocks.max_calls_per_s = 8
        async with following(blocks, store, FROM_0) as follower:
            await until(lambda: follower.progress().stopped is not None)
            status = follower.progress()
            expected = (58 if height == 59 else height, "wrong_parent")
            assert (status.stopped_at, status.stopped) == expected
            below = [(0, height - 1)] if height else []
            assert store.spans == ([] if height > 57 else [(58, 59), *below])
            # The node has the right chain again, and the follower continues without a restart.
            node.lies.clear()
            await until(lambda: is_done(follower.progress()))
            assert follower.progress().stopped is None
    assert store.spans == [(0, 59)]


async def test_a_new_block_with_another_parent_stops_the_follower() -> None:
    chain, store = Chain(20), MemoryStore()
    node = ChainNode(chain=chain)
    async with nodes_of(node) as blocks, following(blocks, store, FROM_0) as follower:
        await until(lambda: is_done(follower.progress()))
        node.lies[20] = Chain(21, salt=b"other").raw[20]
        chain.grow(1)
        await until(lambda: follower.progress().stopped is not None)
        assert (follower.progress().stopped, follower.progress().stopped_at) == ("wrong_parent", 20)
    assert store.spans == [(0, 19)]


@pytest.mark.parametrize("extra", [0, 2, 40])
async def test_another_chain_stops_a_restarted_follower(extra: int) -> None:
    store = MemoryStore()
    async with (
        nodes_of(ChainNode(chain=Chain(20))) as blocks,
        following(blocks, store, FROM_0) as follower,
    ):
        await until(lambda: is_done(follower.progress()))
    other = Chain(20 + extra, salt=b"restarted")
    async with (
        nodes_of(ChainNode(chain=other)) as blocks,
        following(blocks, store, FROM_0) as follower,
    ):
        await until(lambda: follower.progress().stopped is not None)
        assert (follower.progress().stopped, follower.progress().stopped_at) == (
            "another_chain",
            19,
        )
    assert store.spans == [(0, 19)]


async def test_another_chain_stops_a_follower_that_leads_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, leadership = MemoryStore(), SettableLeadership()
    node = ChainNode(chain=Chain(20))
    async with nodes_of(node) as blocks:
        async with following(blocks, store, FROM_0) as follower:
            await until(lambda: is_done(follower.progress()))
        # This one compares the node with the store when it begins to lead.
        async with following(blocks, store, FROM_0, leadership) as follower:
            await until(lambda: is_done(follower.progress()))
            leadership.set(False)
            await until(lambda: "lost leadership" in caplog.text)
            node.chain = Chain(20, salt=b"restarted")
            leadership.set(True)
            await until(lambda: follower.progress().stopped == "another_chain")
    assert store.spans == [(0, 19)]


async def test_another_chain_stops_a_running_follower() -> None:
    chain, store = Chain(20), MemoryStore()
    node = ChainNode(chain=chain)
    async with nodes_of(node) as blocks, following(blocks, store, FROM_0) as follower:
        await until(lambda: is_done(follower.progress()))
        node.chain = Chain(25, salt=b"restarted")
        await until(lambda: follower.progress().stopped is not None)
        assert (follower.progress().stopped, follower.progress().stopped_at) == (
            "another_chain",
            19,
        )
    assert store.spans == [(0, 19)]


async def test_a_fork_below_the_newest_block_stops_a_restarted_follower() -> None:
    chain, store = Chain(40), MemoryStore()
    async with (
        nodes_of(ChainNode(chain=chain)) as blocks,
        following(blocks, store, FROM_0) as follower,
    ):
        await until(lambda: is_done(follower.progress()))
    forked = chain.fork(35)
    forked.grow(30)
    node = ChainNode(chain=forked)
    # The node still has the former tip when the follower starts, but another chain above it.
    node.lies[39] = chain.raw[39]
    async with nodes_of(node) as blocks:
        blocks.max_calls_per_s = 8
        async with following(blocks, store, FROM_0) as follower:
            await until(lambda: follower.progress().stopped is not None)
            assert (follower.progress().stopped, follower.progress().stopped_at) == (
                "wrong_parent",
                40,
            )
            node.lies.clear()
            await until(lambda: follower.progress().stopped != "wrong_parent")
            assert (follower.progress().stopped, follower.progress().stopped_at) == (
                "another_chain",
                39,
            )
    assert store.spans == [(0, 39)]


async def test_a_backfill_that_does_not_meet_the_newest_blocks_stops_below_them() -> None:
    chain, store = Chain(60), MemoryStore()
    fork = chain.fork(35)
    node = ChainNode(chain=chain)
    async with nodes_of(node) as blocks:
        blocks.max_calls_per_s = 8
        store.up(down_after=3)
        async with following(blocks, store, FROM_0) as follower:
            await until(lambda: follower.progress().waiting_for == "store")
            # The node has another chain for the blocks that are missing.
            node.lies |= {height: fork.raw[height] for height in range(36, 58)}
            store.up()
            await until(lambda: follower.progress().stopped is not None)
            assert (follower.progress().stopped, follower.progress().stopped_at) == (
                "wrong_parent",
                57,
            )
            assert store.spans == [(58, 59), (0, 56)]


async def test_a_registration_with_an_invalid_message_is_undecodable() -> None:
    registering = next(
        tx.unsigned for tx in recorded_l1_txs() if isinstance(tx.unsigned, RegisterL1ValidatorTx)
    )
    broken = P_TX.build(replace(registering, message=bytes(10)))
    chain, store = Chain(20), MemoryStore()
    chain.put(
        lambda parent, height: PBlock.build("BanffStandardBlock", parent, height, 1, (broken,)).raw
    )
    async with (
        nodes_of(ChainNode(chain=chain)) as blocks,
        following(blocks, store, FROM_0) as follower,
    ):
        await until(lambda: follower.progress().stopped is not None)
        assert (follower.progress().stopped, follower.progress().stopped_at) == (
            "undecodable_block",
            20,
        )


async def reason_after(error: Exception) -> str | None:
    """Return the reason for which a follower stops if its store raises an error."""
    store = MemoryStore()

    async def fail(*_: object) -> None:
        raise error

    store.append = fail  # type: ignore[method-assign, assignment]
    async with (
        nodes_of(ChainNode(chain=Chain(20))) as blocks,
        following(blocks, store, FROM_0) as follower,
    ):
        await until(lambda: follower.progress().stopped is not None)
        return follower.progress().stopped


async def test_an_internal_error_stops_only_the_follower() -> None:
    assert await reason_after(RuntimeError("a bug")) == "internal_error"


async def test_store_ranges_that_contradict_the_blocks_stop_the_follower() -> None:
    mismatch = BlockRangesMismatch("block 20 was read with another id")
    assert await reason_after(mismatch) == "another_chain"
