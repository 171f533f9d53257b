"""A daemon that is killed leaves correct counters, and the next process continues them."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from multiprocessing.connection import Connection

from tests.eventually import TIMEOUT_S
from tests.store.fixtures import hasty_settings, store_at
from tests.validators.uptime.fixtures import HASTY, NODE, OURS, Clock, FakePeers, validation
from warpseal.store.store import open_store
from warpseal.validators.uptime.recorder import UptimeRecorder

KILLS = 2
STEP_MS = 10


def observe_until_killed(url: str, pipe: Connection) -> None:
    """Observe a node that is always connected, in a process of its own, on a clock that the parent
    advances.
    """
    asyncio.run(_observe(url, pipe))


async def _observe(url: str, pipe: Connection) -> None:
    peers, clock = FakePeers(), Clock()
    async with open_store(hasty_settings(url), None) as store:
        observed = UptimeRecorder(
            peers, store.observed, OURS, HASTY, now=clock.now, unix_clock=clock.unix
        )
        task = asyncio.create_task(observed.run())
        peers.connect(NODE, clock.now())
        observed.watch([validation()])
        while not task.done():
            validations = (await store.observed.load(OURS, 0, 0)).validations
            pipe.send([row.connected_ms for row in validations])
            await asyncio.to_thread(pipe.recv)
            clock.now_ms += STEP_MS
            peers.last_heard[NODE] = clock.now()
            await asyncio.sleep(HASTY.write_s)


def observed_until_killed(url: str, least_ms: int) -> tuple[int, int]:
    """Let a child observe until more than `least_ms` is written, and kill it; return that and the
    time that it had.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=observe_until_killed, args=(url, theirs))
    child.start()
    theirs.close()
    passed_ms, readings = 0, [0]
    try:
        while True:
            assert ours.poll(TIMEOUT_S)
            readings = ours.recv()
            if max(readings, default=0) > least_ms:
                break
            passed_ms += STEP_MS
            ours.send("step")
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        return max(readings), passed_ms
    finally:
        child.kill()
        child.join()


async def test_a_killed_daemon_loses_only_unwritten_time(any_store_url: str) -> None:
    written_ms = lived_ms = 0
    for _ in range(KILLS):
        now_ms, passed_ms = await asyncio.to_thread(
            observed_until_killed, any_store_url, written_ms + 100
        )
        assert now_ms > written_ms
        written_ms, lived_ms = now_ms, lived_ms + passed_ms
    async with store_at(any_store_url, call_timeout_s=TIMEOUT_S) as store:
        observed = await store.observed.load(OURS, 0, 0)
    (row,) = observed.validations
    assert written_ms <= row.connected_ms <= row.observed_ms <= lived_ms
    assert sum(hour.connected_ms for hour in observed.hours) <= lived_ms
