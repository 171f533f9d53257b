"""A process that is killed at any moment loses no acknowledged message and corrupts nothing."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sqlite3
import time
from multiprocessing.connection import Connection
from random import Random

import msgspec
import pytest

from tests.store.fixtures import PATIENCE_S, hasty_settings, message, share, signature, store_at
from warpseal.store.eviction import measure
from warpseal.store.store import open_store
from warpseal.store.url import StoreUrl
from warpseal.store.values import Event

KILLS = 20
SEED = 20


def write_until_killed(url: str, first: int, pipe: Connection) -> None:
    """Run in a child process: write messages and send the number of each committed message."""
    asyncio.run(_write_forever(url, first, pipe))


async def _write_forever(url: str, first: int, pipe: Connection) -> None:
    async with open_store(hasty_settings(url), None) as store:
        pipe.send("open")
        number = first
        while True:
            store.archive.pin(message(number))
            store.archive.store_shares(message(number), [share(number), share(number + 1)])
            await store.archive.store_signature(message(number), signature(number))
            pipe.send(number)
            number += 1


@pytest.fixture(scope="module")
def processes() -> multiprocessing.context.ForkServerContext:
    """A context that forks children from a process with all imports loaded, so that they start
    fast.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "warpseal.store.store"])
    return context


def run_and_kill(
    processes: multiprocessing.context.ForkServerContext, url: str, first: int, after_s: float
) -> list[int]:
    """Let a child write messages for a while and kill it; return the numbers that it had
    acknowledged.
    """
    ours, theirs = processes.Pipe(duplex=False)
    child = processes.Process(target=write_until_killed, args=(url, first, theirs))
    child.start()
    theirs.close()
    acknowledged: list[int] = []
    try:
        assert ours.poll(PATIENCE_S)
        assert ours.recv() == "open"
        time.sleep(after_s)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        while True:
            acknowledged.append(ours.recv())
    except EOFError:
        return acknowledged
    finally:
        child.kill()
        child.join(PATIENCE_S)


async def test_acknowledged_messages_survive_a_kill_at_any_moment(
    any_store_url: str, processes: multiprocessing.context.ForkServerContext
) -> None:
    rnd = Random(SEED)
    path = StoreUrl.parse(any_store_url).path
    acknowledged: list[int] = []
    kills = 0
    while kills < (KILLS if path else KILLS // 4) or not acknowledged:
        kills += 1
        first = acknowledged[-1] + 1 if acknowledged else 0
        acknowledged += run_and_kill(processes, any_store_url, first, rnd.uniform(0.0, 0.06))
        if path is not None:
            with sqlite3.connect(path) as connection:
                assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
                assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
            connection.close()
    async with store_at(any_store_url) as store:
        for number in acknowledged:
            assert (await store.archive.load(message(number).id)).signatures == (signature(number),)
        assert (await store.database.read(measure)).messages_for_ever >= len(acknowledged)
        # Each signature in the store has its event, and no event is without a signature.
        query = "SELECT message_id FROM messages JOIN signatures ON message_key = messages.key"
        signed = {f"0x{row.message_id.hex()}" for row in await store.database.records(query)}
        events = await store.events.read(0, 10**6)
        assert [event.number for event in events] == list(range(1, len(signed) + 1))
        assert {
            msgspec.json.decode(event.body, type=Event).message_id for event in events
        } == signed
