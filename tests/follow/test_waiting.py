"""A follower that waits below its nodes says so: in the log, in its progress, in the health check
of the chain.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from tests.aggregation.virtual_time import run
from tests.follow.rough_nodes import RoughBlocks, RoughNode
from tests.l1.follower.fixtures import Chain, MemoryStore, SettableLeadership
from tests.ops.health.subnets import FakeSubnets
from warpseal.l1.follower import PChainFollower
from warpseal.l1.settings import FollowerSettings
from warpseal.ops.health.chains import FollowedChain, chain_check
from warpseal.ops.health.registry import CheckOutcome
from warpseal.resources.progress import ChainProgress
from warpseal.warp.ids import PRIMARY_NETWORK


class NodeWithoutNewBlocks(RoughNode):
    """A node that reports blocks that it does not return."""

    def block_at(self, height: int) -> bytes | None:
        return None if height > 6 else super().block_at(height)


async def wait(minutes: list[float]) -> list[ChainProgress]:
    """Follow a chain whose node returns no block above 6; return the progress after each of these
    minutes.
    """
    chain, store = Chain(7), MemoryStore()
    blocks = RoughBlocks([NodeWithoutNewBlocks(chain.raw)], 1, Random(1), {})
    follower = PChainFollower(blocks.as_client(), store, SettableLeadership(), FollowerSettings())
    task = asyncio.create_task(follower.run())
    await asyncio.sleep(60.0)
    assert (follower.progress().height, follower.progress().is_stalled) == (6, False)
    chain.grow(3)
    progress, passed = [], 0.0
    for minute in minutes:
        await asyncio.sleep(60.0 * (minute - passed))
        passed = minute
        progress.append(follower.progress())
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return progress


def test_a_follower_that_waits_below_its_nodes_says_so(caplog: pytest.LogCaptureFixture) -> None:
    early, late, _ = run(wait([1.0, 3.0, 13.0]))
    reason = "no node answers: not found"
    assert (early.waiting_for, early.waiting_since, early.lag_blocks) == ("nodes", None, 3)
    assert (late.waiting_for, late.waiting, late.height, late.node_height) == (
        "nodes",
        reason,
        6,
        9,
    )
    assert late.waiting_since is not None
    assert late.is_stalled
    waits = [
        vars(record) for record in caplog.records if record.msg == "following the P-Chain waits"
    ]
    fields = [
        (wait["levelname"], wait["height"], wait["node_height"], wait["reason"]) for wait in waits
    ]
    # Once, and again after ten minutes.
    assert fields == [("WARNING", 6, 9, reason)] * 2
    followed = FollowedChain("P", PRIMARY_NETWORK, lambda: late)
    outcome = chain_check(followed, FakeSubnets(), 120.0, lambda: 0.0).run()
    assert isinstance(outcome, CheckOutcome)
    assert f": {reason}" in (outcome.error or "")
