"""The uptime recorder: it subscribes, writes, and continues from the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from msgspec.structs import replace

from tests.eventually import until
from tests.store.fixtures import hasty_settings, store_at
from tests.validators.uptime.fixtures import (
    HASTY,
    NODE,
    OTHER,
    OURS,
    START_UNIX_S,
    Clock,
    FakePeers,
    MemoryUptimeStorage,
    observing,
    validation,
)
from warpseal.resources.interfaces import ObservedUptime
from warpseal.store.store import open_store
from warpseal.store.url import OFF
from warpseal.store.values import HourRow
from warpseal.validators.uptime.node_uptime import HOUR_MS, Uptime
from warpseal.validators.uptime.recorder import UptimeRecorder
from warpseal.warp.ids import NodeID

HOUR = START_UNIX_S // 3_600


@asynccontextmanager
async def running(
    observed: UptimeRecorder, peers: FakePeers | None = None
) -> AsyncIterator[UptimeRecorder]:
    """Let it run for a while; where `peers` are given, from when it looks at them."""
    task = asyncio.create_task(observed.run())
    await until(lambda: peers is None or bool(peers.listeners))
    try:
        yield observed
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def pass_time(clock: Clock, peers: FakePeers, seconds: int) -> None:
    """Wind the clock, second by second as everybody has looked at it, all connected nodes heard."""
    for _ in range(seconds):
        clock.now_ms += 1_000
        peers.last_heard = dict.fromkeys(peers.last_heard, clock.now())
        seen = clock.readings + 8
        await until(lambda seen=seen: clock.readings >= seen)  # type: ignore[misc]


async def test_connects_and_disconnects_are_counted_and_kept_over_a_restart() -> None:
    clock, storage, peers = Clock(), MemoryUptimeStorage(), FakePeers()
    async with running(observing(peers, storage, clock), peers) as observed:
        peers.connect(NODE, clock.now())
        observed.watch([validation()])
        await pass_time(clock, peers, 8)
        peers.drop(NODE)
        await pass_time(clock, peers, 2)
        assert observed.uptime(validation()) == Uptime(10_000, 8_000)
    clock.now_ms += 7_000_000
    async with running(observing(peers, storage, clock), peers) as observed:
        peers.connect(NODE, clock.now())
        observed.watch([validation()])
        await pass_time(clock, peers, 5)
        await until(lambda: observed.uptime(validation()) == Uptime(15_000, 13_000))
        first, *_ = await observed.hours(NODE, 0)
        assert first == HourRow(HOUR, NODE, 10_000, 8_000)
    assert sum(row.connected_ms for row in storage.hour_rows.values()) == 13_000


async def test_stopping_the_daemon_counts_no_disconnect() -> None:
    clock, storage, peers = Clock(), MemoryUptimeStorage(), FakePeers()
    async with running(observing(peers, storage, clock), peers) as observed:
        peers.connect(NODE, clock.now())
        observed.watch([validation()])
        await pass_time(clock, peers, 3)
        clock.now_ms += 2_000
    peers.drop(NODE)
    assert peers.listeners == []
    (row,) = storage.validations.values()
    assert (row.observed_ms, row.connected_ms) == (3_000, 3_000)


async def test_no_node_is_credited_for_a_blocked_event_loop() -> None:
    clock, peers = Clock(), FakePeers()
    async with running(observing(peers, MemoryUptimeStorage(), clock), peers) as observed:
        peers.connect(NODE, clock.now())
        peers.targets.add(OTHER)
        peers.dialed.add(OTHER)
        observed.watch([validation(), validation(8, OTHER)])
        await pass_time(clock, peers, 6)
        clock.now_ms += 90_000
        await pass_time(clock, peers, 6)
        assert observed.uptime(validation()) == Uptime(11_000, 11_000)
        assert observed.uptime(validation(8, OTHER)) == Uptime(11_000, 0)


async def test_while_the_store_is_down_counting_goes_on_and_is_written_later() -> None:
    clock, peers, storage = Clock(), FakePeers(), MemoryUptimeStorage()
    before = validation()
    async with running(observing(peers, storage, clock), peers) as observed:
        observed.watch([before])
        peers.connect(NODE, clock.now())
        await pass_time(clock, peers, 4)
    peers.drop(NODE)
    storage.is_down = True
    async with running(observing(peers, storage, clock), peers) as observed:
        observed.watch([before])
        peers.connect(NODE, clock.now())
        await pass_time(clock, peers, 6)
        assert observed.uptime(before).connected_ms == 6_000
        assert [hour.connected_ms for hour in await observed.hours(NODE, 0)] in ([5_000], [6_000])
        assert storage.validations[before.validation_id].connected_ms == 4_000
        storage.is_down = False
        await until(lambda: storage.validations[before.validation_id].connected_ms == 10_000)
        assert observed.uptime(before).connected_ms == 10_000
        await until(lambda: storage.hour_rows[HOUR, NODE].connected_ms == 10_000)


async def test_a_store_that_is_down_again_and_again_never_adds_anything_twice() -> None:
    clock, peers, storage = Clock(), FakePeers(), MemoryUptimeStorage()
    async with running(observing(peers, storage, clock), peers) as observed:
        peers.connect(NODE, clock.now())
        observed.watch([validation()])
        for is_down in (True, False) * 5:
            storage.is_down = is_down
            await pass_time(clock, peers, 2)
        storage.is_down = False
        await until(lambda: storage.validations[validation().validation_id].connected_ms == 20_000)
        assert observed.uptime(validation()) == Uptime(20_000, 20_000)


async def test_connectivity_combines_hours_of_the_store_and_of_memory() -> None:
    clock, peers, storage = Clock(), FakePeers(), MemoryUptimeStorage()
    old = [HourRow(HOUR - number, NODE, HOUR_MS, HOUR_MS // 2) for number in range(1, 24)]
    storage.put([], old)
    observed = observing(peers, storage, clock)
    assert await observed.reach(NODE, 0) is None
    storage.put([], [HourRow(HOUR - 24, NODE, HOUR_MS, HOUR_MS // 2)])
    clock.now_ms += 59_999
    assert await observed.reach(NODE, 0) is None, "the store is not asked twice within a minute"
    clock.now_ms += 1
    assert await observed.reach(NODE, 0) == ObservedUptime(50.0, 50.0)
    assert await observed.reach(NODE, START_UNIX_S - 10 * 3_600) is None
    assert await observed.reach(OTHER, 0) is None
    storage.is_down = True
    clock.now_ms += 60_000
    assert await observed.reach(NODE, 0) is None


async def test_connections_of_the_last_day_are_known_from_the_store_and_from_memory() -> None:
    clock, peers, storage = Clock(), FakePeers(), MemoryUptimeStorage()
    since = START_UNIX_S - 24 * 3_600
    nodes = [NodeID(bytes([number]) * 20) for number in range(4)]
    storage.put(
        [], [HourRow(HOUR - 3, nodes[0], HOUR_MS, 1), HourRow(HOUR - 1, nodes[1], HOUR_MS, 0)]
    )
    storage.put([], [HourRow(HOUR - 25, node_id, HOUR_MS, HOUR_MS) for node_id in nodes[1:]])
    observed = observing(peers, storage, clock)
    assert await observed.connected_since(nodes, since) == {nodes[0]: True, nodes[1]: False}
    peers.connect(nodes[2], clock.now())
    assert await observed.connected_since(nodes, since) == {
        nodes[0]: True,
        nodes[1]: False,
        nodes[2]: True,
    }
    assert await observed.connected_since(nodes[3:], since) == {}
    storage.is_down = True
    clock.now_ms += 60_000
    assert await observed.connected_since(nodes, since) == {nodes[2]: True}


async def test_a_connection_that_ended_a_moment_ago_was_one_of_the_last_day() -> None:
    clock, peers = Clock(), FakePeers()
    async with running(observing(peers, MemoryUptimeStorage(), clock), peers) as observed:
        peers.connect(NODE, clock.now())
        peers.targets.add(OTHER)
        peers.dialed.add(OTHER)
        await pass_time(clock, peers, 6)
        peers.drop(NODE)
        await pass_time(clock, peers, 2)
        assert await observed.connected_since((NODE, OTHER), START_UNIX_S) == {
            NODE: True,
            OTHER: False,
        }


async def test_hours_beyond_the_retention_are_neither_returned_nor_stored() -> None:
    clock, storage = Clock(), MemoryUptimeStorage()
    storage.put([], [HourRow(HOUR - number, NODE, 10, 10) for number in (1, 26)])
    observed = observing(FakePeers(), storage, clock, replace(HASTY, retention_s=86_400.0))
    assert [row.hour for row in await observed.hours(NODE, 0)] == [HOUR - 1]
    async with running(observed):
        await until(lambda: storage.pruned == (HOUR - 24, START_UNIX_S - 86_400.0))


async def test_two_daemons_on_one_store_return_their_own_observations(any_store_url: str) -> None:
    """SQLite has one daemon at a time; of the other identity it is the same."""
    clock, ours, theirs = Clock(), FakePeers(), FakePeers()
    async with store_at(any_store_url) as store:
        first = UptimeRecorder(
            ours, store.observed, OURS, HASTY, now=clock.now, unix_clock=clock.unix
        )
        second = UptimeRecorder(
            theirs, store.observed, OTHER, HASTY, now=clock.now, unix_clock=clock.unix
        )
        async with running(first, ours), running(second, theirs):
            ours.connect(NODE, clock.now())
            theirs.connect(NODE, clock.now())
            first.watch([validation()])
            second.watch([validation()])
            await pass_time(clock, ours, 6)
            theirs.last_heard[NODE] = 1_003.0
    async with store_at(any_store_url) as store:
        loaded = [
            (await store.observed.load(observer, 0, 0)).validations for observer in (OURS, OTHER)
        ]
    assert [[row.connected_ms for row in rows] for rows in loaded] == [[6_000], [3_000]]


async def test_without_a_store_everything_is_counted_in_memory() -> None:
    clock, peers = Clock(), FakePeers()
    async with open_store(hasty_settings(OFF), None) as store:
        observed = UptimeRecorder(
            peers, store.observed, OURS, HASTY, now=clock.now, unix_clock=clock.unix
        )
        async with running(observed, peers):
            peers.connect(NODE, clock.now())
            observed.watch([validation()])
            await pass_time(clock, peers, 6)
            assert observed.uptime(validation()) == Uptime(6_000, 6_000)
            await pass_time(clock, peers, 1)
            assert [hour.connected_ms >= 5_000 for hour in await observed.hours(NODE, 0)] == [True]
