"""A daemon that is killed leaves correct counters, and the next process continues them."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection

from tests.store.world import settings_of, store_at
from tests.validators.uptime.world import HASTY, NODE, OURS, PATIENCE_S, FakePeers, validation
from warpseal.store.store import open_store
from warpseal.validators.uptime.recorder import UptimeRecorder

KILLS = 2


def observe_until_killed(url: str, pipe: Connection) -> None:
    """Observe a node that is always connected, in a process of its own, and print a line after each write."""
    asyncio.run(_observe(url, pipe))


async def _observe(url: str, pipe: Connection) -> None:
    peers, loop = FakePeers(), asyncio.get_running_loop()
    async with open_store(settings_of(url), None) as store:
        observed = UptimeRecorder(peers, store.observed, OURS, HASTY)
        task = asyncio.create_task(observed.run())
        pipe.send("observes")
        peers.connect(NODE, loop.time())
        observed.watch([validation()])
        while not task.done():
            await asyncio.sleep(0.01)
            peers.heard[NODE] = loop.time()
            found = (await store.observed.load(OURS, 0, 0)).validations
            pipe.send([row.connected_ms for row in found])


def observed_until_killed(url: str, least_ms: int) -> tuple[int, float]:
    """Let a child observe until more than `least_ms` is written, and kill it: what was, and how long it lived."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=observe_until_killed, args=(url, theirs))
    began = time.monotonic()
    child.start()
    theirs.close()
    try:
        assert ours.poll(PATIENCE_S)
        assert ours.recv() == "observes"
        written = [0]
        while max(written, default=0) <= least_ms:
            assert ours.poll(PATIENCE_S)
            written = ours.recv()
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        return max(written), time.monotonic() - began
    finally:
        child.kill()
        child.join()


async def test_a_killed_daemon_loses_only_unwritten_time(any_store_url: str) -> None:
    written_ms, lived_s = 0, 0.0
    for _ in range(KILLS):
        now_ms, took_s = await asyncio.to_thread(observed_until_killed, any_store_url, written_ms + 100)
        assert now_ms > written_ms
        written_ms, lived_s = now_ms, lived_s + took_s
    async with store_at(any_store_url, call_timeout_s=PATIENCE_S) as store:
        found = await store.observed.load(OURS, 0, 0)
    (row,) = found.validations
    assert written_ms <= row.connected_ms <= row.observed_ms <= lived_s * 1_000
    assert sum(hour.connected_ms for hour in found.hours) <= lived_s * 1_000
