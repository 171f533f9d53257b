"""The index process is restarted when it exits, and ends with its parent."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.eventually import until
from warpseal.indexer.settings import IndexerSettings
from warpseal.indexer.subprocess import IndexSubprocess

FAST = IndexerSettings(restart_first_s=0.01, restart_cap_s=0.02)


async def test_a_process_that_exits_is_restarted(tmp_path: Path) -> None:
    output = tmp_path / "starts"
    command = [sys.executable, "-c", f"open({str(output)!r}, 'a').write('x'); raise SystemExit(3)"]
    process = IndexSubprocess(command, FAST)
    running = asyncio.create_task(process.run())
    await until(lambda: output.exists() and len(output.read_text()) >= 3)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert process.starts >= 3


async def test_the_process_gets_sigterm_when_the_daemon_stops(tmp_path: Path) -> None:
    output = tmp_path / "output"
    script = (
        "import os, signal, sys, time\n"
        f"output = os.open({str(output)!r}, os.O_WRONLY | os.O_CREAT)\n"
        "def stop(*_): os.write(output, b'stopped'); sys.exit()\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "os.write(output, b'started ')\n"
        "time.sleep(60)\n"
    )
    running = asyncio.create_task(IndexSubprocess([sys.executable, "-c", script], FAST).run())
    await until(lambda: output.exists() and output.read_text())
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert output.read_text() == "started stopped"


async def test_a_missing_command_is_retried() -> None:
    process = IndexSubprocess(["/nowhere/at/all"], FAST)
    running = asyncio.create_task(process.run())
    await until(lambda: process.starts >= 2)
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
