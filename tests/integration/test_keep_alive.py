"""Connections last: hundreds of pings, stalls of our loop that queue two of them, pongs that never
come.

A node hangs up at a pong that it does not wait for, and when nothing is read for 30 s; time runs
560 times faster here.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import uvloop

from tests.integration.daemon import Daemon, build_config, run_daemon
from tests.integration.message_verifier import verify_signed_message
from tests.integration.threaded_network import ThreadedNetwork, run_threaded_network
from warpseal.warp.ids import PRIMARY_NETWORK
from warpseal_simnet.plan import Plan, parse_rule
from warpseal_simnet.settings import NodeSettings

INTERVAL_S = 0.04
CYCLES = 300
# The loop of the standard library works in another order, for which a part of the time suffices.
CYCLES_ON_ASYNCIO = 80
VALIDATORS = 6
# Long against the interval: this is about pings and pongs, not about how busy the machine is.
SILENCES = 50
# If the machine stalled, time runs half as fast in the next try.
TRIES = 3
_TICK_S = 0.005


def plan_of(interval_s: float) -> Plan:
    """Return a network whose nodes ping at an interval, and lose pongs."""
    return Plan(
        validators=VALIDATORS,
        l1s=(),
        messages=1,
        settings=NodeSettings(
            ping_interval_s=interval_s,
            read_timeout_s=SILENCES * interval_s,
            unanswered_pings=SILENCES * 3 // 5,
        ),
        rules=(parse_rule("0-1:lost-pongs=0.5"), parse_rule("2:lost-pongs")),
    )


async def test_hundreds_of_pings_with_stalls_that_queue_two_and_dropped_pongs_end_no_connection(
    tmp_path: Path,
) -> None:
    cycles = CYCLES if isinstance(asyncio.get_running_loop(), uvloop.Loop) else CYCLES_ON_ASYNCIO
    late_s = 0.0
    for attempt in range(TRIES):
        interval_s = INTERVAL_S * 2**attempt
        ours = {"ping_interval_s": interval_s, "silence_timeout_s": SILENCES * interval_s}
        async with (
            run_threaded_network(plan_of(interval_s)) as other,
            run_daemon(build_config(other.network, tmp_path / str(attempt), peers=ours)) as daemon,
        ):
            await daemon.until_connected(VALIDATORS)
            late_s = max(
                await stall_again_and_again(cycles * interval_s, interval_s), other.worst_lag_s
            )
            violations = other.network.violations.by_kind()
            # A pong is up to half an interval old when it is sent. If the machine held up the nodes
            # as well, a late ping of theirs, our late sending and their late reading add to that.
            # Only if these three, and what the ticks do not see of them, together fill less than
            # the other half, an error is ours.
            if not violations or late_s < interval_s / 8:
                assert violations == {}
                await assert_nobody_hung_up(other, daemon)
                return
    raise AssertionError(f"the machine is too busy: timers are {late_s:.3f} s late")


async def stall_again_and_again(seconds: float, interval_s: float) -> float:
    """Let our loop stand still for two or three pings of every validator, then run for as long.

    Returns by how much it was held up at worst while it was to run, in seconds.
    """
    until = time.monotonic() + seconds
    stalls, late_s = 0, 0.0
    while time.monotonic() < until:
        time.sleep(interval_s * (2.2 + stalls % 5 / 5))  # noqa: ASYNC251
        stalls += 1
        late_s = max(late_s, await run_for(interval_s * 3))
    assert stalls >= seconds / interval_s / 12
    return late_s


async def run_for(seconds: float) -> float:
    """Let our loop run; return by how much its timers were late at worst, in seconds."""
    until, late_s = time.monotonic() + seconds, 0.0
    await asyncio.sleep(0)
    while (now := time.monotonic()) < until:
        await asyncio.sleep(_TICK_S)
        late_s = max(late_s, time.monotonic() - now - _TICK_S)
    return late_s


async def assert_nobody_hung_up(other: ThreadedNetwork, daemon: Daemon) -> None:
    """Assert that each validator saw one connection in all, and that everybody still signs."""
    page = await daemon.metrics()
    assert not [name for name in page if name.startswith("warpseal_peer_disconnects_total")]
    assert page["warpseal_peer_connections"] == VALIDATORS
    assert [validator.counts.connections for validator in other.network.validators] == [
        1
    ] * VALIDATORS
    message = other.network.messages_of(PRIMARY_NETWORK)[0]
    reply = await daemon.aggregate(message, quorum_percentage=100)
    verify_signed_message(other.network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, 100)
