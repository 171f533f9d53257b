"""The child process is started again when it dies, and ends with its parent."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from warpseal.indexer.settings import IndexerSettings
from warpseal.indexer.subprocess import IndexSubprocess

FAST = IndexerSettings(restart_first_s=0.01, restart_cap_s=0.02)


async def test_a_child_that_dies_is_started_again(tmp_path: Path) -> None:
    note = tmp_path / "starts"
    command = [sys.executable, "-c", f"open({str(note)!r}, 'a').write('x'); raise SystemExit(3)"]
    child = IndexSubprocess(command, FAST)
    running = asyncio.create_task(child.run())
    async with asyncio.timeout(30):
        while not note.exists() or len(note.read_text()) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert child.starts >= 3


async def test_a_child_is_ended_gently_when_the_daemon_stops(tmp_path: Path) -> None:
    note = tmp_path / "note"
    script = (
        "import os, signal, sys, time\n"
        f"note = os.open({str(note)!r}, os.O_WRONLY | os.O_CREAT)\n"
        "def stop(*_): os.write(note, b'stopped'); sys.exit()\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "os.write(note, b'started ')\n"
        "time.sleep(60)\n"
    )
    running = asyncio.create_task(IndexSubprocess([sys.executable, "-c", script], FAST).run())
    async with asyncio.timeout(30):
        while not note.exists() or not note.read_text():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert note.read_text() == "started stopped"


async def test_a_command_that_is_not_there_ends_nothing() -> None:
    child = IndexSubprocess(["/nowhere/at/all"], FAST)
    running = asyncio.create_task(child.run())
    async with asyncio.timeout(10):
        while child.starts < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
