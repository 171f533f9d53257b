"""Connections last: hundreds of pings, stalls of our loop that queue two of them, pongs that never come.

A node hangs up at a pong that it does not wait for, and when nothing is read for 30 s; time runs 560 times faster here.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import uvloop

from tests.integration.beside import Beside, beside
from tests.integration.daemon import Daemon, config_of, running
from tests.integration.judge import judge
from warpseal.simnet.plan import Plan, parse_rule
from warpseal.simnet.settings import PeerSettings
from warpseal.warp.ids import PRIMARY_NETWORK

INTERVAL_S = 0.04
CYCLES = 300
# The loop of the standard library works in another order, for which a part of the time suffices.
CYCLES_ON_ASYNCIO = 80
VALIDATORS = 6
# Long against the interval: this is about pings and pongs, not about how busy the machine is.
SILENCE_S = 2.0
OURS = {"ping_interval_s": INTERVAL_S, "silence_timeout_s": SILENCE_S}
PLAN = Plan(
    validators=VALIDATORS,
    l1s=(),
    messages=1,
    settings=PeerSettings(ping_interval_s=INTERVAL_S, read_timeout_s=SILENCE_S, unanswered_pings=30),
    rules=(parse_rule("0-1:lost-pongs=0.5"), parse_rule("2:lost-pongs")),
)
TRIES = 3


async def test_hundreds_of_pings_with_stalls_that_queue_two_and_dropped_pongs_end_no_connection(tmp_path: Path) -> None:
    is_uvloop = isinstance(asyncio.get_running_loop(), uvloop.Loop)
    for attempt in range(TRIES):
        async with (
            beside(PLAN) as other,
            running(config_of(other.network, tmp_path / str(attempt), peers=OURS)) as daemon,
        ):
            await daemon.until_connected(VALIDATORS)
            await stall_again_and_again((CYCLES if is_uvloop else CYCLES_ON_ASYNCIO) * INTERVAL_S)
            faults = other.network.violations.by_kind()
            # Where the machine held up the nodes as well, their pings may cross pongs that were in time: no proof.
            if not faults or other.worst_lag_s < INTERVAL_S / 3:
                assert faults == {}
                await assert_nobody_hung_up(other, daemon)
                return
    raise AssertionError(f"the machine is too busy: timers are {other.worst_lag_s:.3f} s late")


async def stall_again_and_again(seconds: float) -> None:
    """Let our loop stand still for two or three pings of every validator, then run for as long."""
    until = time.monotonic() + seconds
    stalls = 0
    while time.monotonic() < until:
        time.sleep(INTERVAL_S * (2.2 + stalls % 5 / 5))  # noqa: ASYNC251
        stalls += 1
        await asyncio.sleep(INTERVAL_S * 3)
    assert stalls >= seconds / INTERVAL_S / 12


async def assert_nobody_hung_up(other: Beside, daemon: Daemon) -> None:
    """Assert that each validator saw one connection in all, and that everybody still signs."""
    page = await daemon.metrics()
    assert not [name for name in page if name.startswith("warpseal_peer_disconnects_total")]
    assert page["warpseal_peer_connections"] == VALIDATORS
    assert [validator.counts.connections for validator in other.network.validators] == [1] * VALIDATORS
    message = other.network.messages_of(PRIMARY_NETWORK)[0]
    reply = await daemon.kebab(message, quorum_percentage=100)
    judge(other.network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, 100)
