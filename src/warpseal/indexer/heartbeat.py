"""Heartbeat of the index process: a file in the data folder that the process touches every second.

The daemon reads the age of the file, so that it knows an index process that it did not start itself.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

HEARTBEAT_NAME: Final = "indexer.heartbeat"
_BEAT_S: Final = 1.0


async def send_heartbeats(data_dir: Path) -> None:
    """Touch the file until cancelled; without a usable folder the daemon reports that it heard nothing."""
    while True:
        _beat(data_dir)
        await asyncio.sleep(_BEAT_S)


def _beat(data_dir: Path) -> None:
    with suppress(OSError):
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        (data_dir / HEARTBEAT_NAME).touch(0o600)


class HeartbeatReader:
    """Measures the silence of the index process; heartbeats from before the reader was created do not count."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / HEARTBEAT_NAME
        self._created_at = time.time()

    def silence_s(self) -> float | None:
        """Return the seconds since the last heartbeat; None if there was none yet."""
        try:
            beat_at = self._path.stat().st_mtime
        except OSError:
            return None
        return max(0.0, time.time() - beat_at) if beat_at >= self._created_at else None
