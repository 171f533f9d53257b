"""The silence of the index process, measured by its heartbeats in the data folder."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from tests.eventually import until
from warpseal.indexer.subprocess import HEARTBEAT_NAME, HeartbeatReader, send_heartbeats
from warpseal.runtime.process import running


async def test_the_reader_measures_the_time_since_the_last_heartbeat(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    reader = HeartbeatReader(folder)
    assert reader.silence_s() is None
    async with running(send_heartbeats(folder)):
        await until(lambda: reader.silence_s() is not None)
    silence_s = reader.silence_s()
    await asyncio.sleep(0.02)
    assert (reader.silence_s() or 0) > (silence_s or 0)


def test_heartbeats_from_before_the_start_of_the_daemon_do_not_count(tmp_path: Path) -> None:
    (tmp_path / HEARTBEAT_NAME).touch()
    os.utime(tmp_path / HEARTBEAT_NAME, (time.time() - 60,) * 2)
    assert HeartbeatReader(tmp_path).silence_s() is None


async def test_heartbeats_go_on_once_the_folder_can_be_used(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.write_text("a file")
    reader = HeartbeatReader(folder)
    async with running(send_heartbeats(folder)):
        await asyncio.sleep(0)
        assert reader.silence_s() is None
        folder.unlink()
        await until(lambda: reader.silence_s() is not None)
