"""Where the follower on its way down and the index on its way up meet, the former waits for a moment and no longer."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tests.eventually import until
from tests.l1.follower.world import FAST, Chain, ChainNode, MemoryIndex, TestLead, nodes_of
from warpseal.indexer.meeting import MOVING_WITHIN_S, NEAR_BLOCKS, WAITED_S, Meeting
from warpseal.l1.follower.follower import PChainFollower


def moving(height: int, now: float) -> Meeting:
    """Return one whose index has just come to a height."""
    meeting = Meeting()
    meeting.note(height - 1, now - 1)
    meeting.note(height, now)
    return meeting


def test_blocks_above_an_index_that_moves_are_coming_when_it_is_near() -> None:
    meeting = moving(1_000, 50.0)
    assert meeting.is_near(1_001, 1_020, 50.0)
    assert meeting.is_near(1_000 + NEAR_BLOCKS, 2_000 + NEAR_BLOCKS, 50.0)
    assert not meeting.is_near(1_001 + NEAR_BLOCKS, 2_000 + NEAR_BLOCKS, 50.0)
    # A part of them is there already.
    assert meeting.is_near(900, 1_020, 50.0)
    assert not meeting.is_near(900, 1_000, 50.0)


def test_an_index_that_is_not_there_or_stands_still_is_not_awaited() -> None:
    meeting = Meeting()
    assert not meeting.is_near(1, 20, 0.0)
    meeting.note(None, 1.0)
    meeting.note(10, 2.0)
    assert not meeting.is_near(11, 20, 2.0)
    meeting.note(12, 3.0)
    assert meeting.is_near(13, 20, 3.0 + MOVING_WITHIN_S)
    assert not meeting.is_near(13, 20, 3.1 + MOVING_WITHIN_S)
    # Made anew.
    meeting.note(5, 30.0)
    assert not meeting.is_near(13, 20, 30.0)


def test_a_slow_index_is_awaited_for_a_while_only() -> None:
    meeting, now, waited = moving(1_000, 0.0), 0.0, 0
    while meeting.is_near(5_000, 5_019, now):
        now, waited = now + 1.0, waited + 1
        meeting.note(1_000 + waited, now)
    assert waited == WAITED_S
    meeting.note(2_000, now + 1)
    assert not meeting.is_near(4_980, 4_999, now + 1)


async def test_new_blocks_are_never_put_off() -> None:
    async def everything_is_coming(low: int, high: int) -> bool:
        return True

    chain, index = Chain(100), MemoryIndex()
    async with nodes_of(ChainNode(chain=chain)) as blocks:
        blocks.per_s = 8
        settings = replace(FAST, follow_from_height=0)
        follower = PChainFollower(blocks, index, TestLead(), settings, are_coming=everything_is_coming)
        running = asyncio.create_task(follower.run())
        await until(lambda: follower.status().height == 99)
        for _ in range(3):
            chain.grow(30)
            await until(lambda: follower.status().height == chain.tip)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    # Of each time as many as are read at once; what lies between is left to the index.
    assert index.spans == [(chain.tip - 30 * n - 7, chain.tip - 30 * n) for n in range(4)]
