"""The index process as a subprocess that is restarted when it ends, and its heartbeat.

The daemon never waits for it. The process touches a file in the data folder every second, so that
the daemon knows an index process that it did not start itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from warpseal.indexer.settings import IndexerSettings
from warpseal.runtime.process import os_error_text
from warpseal.runtime.retry import Backoff, RetryDelays

log = logging.getLogger(__name__)

TERMINATE_TIMEOUT_S: Final = 10.0
# A process that ran for so long had no problem at its start.
_HEALTHY_AFTER_S: Final = 60.0


class IndexSubprocess:
    """Keeps `command` running while `run` does.

    The subprocess shares the daemon's standard error. It ends when its standard input does, so that
    it ends with the daemon even after kill -9.
    """

    def __init__(self, command: Sequence[str], settings: IndexerSettings) -> None:
        self._command = tuple(command)
        self._backoff = Backoff(settings.restart_first_s, settings.restart_cap_s)
        self.starts = 0

    async def run(self) -> None:
        """Keep it running until cancelled; then terminate it, and kill it if it does not end."""
        clock, delays = asyncio.get_running_loop().time, RetryDelays(self._backoff)
        while True:
            started_at = clock()
            exit_code = await self._run_once()
            if clock() - started_at >= _HEALTHY_AFTER_S:
                delays.reset()
            delay_s = delays.next()
            log.warning(
                "indexer process ended", extra={"exit_code": exit_code, "next_start_s": delay_s}
            )
            await asyncio.sleep(delay_s)

    async def _run_once(self) -> int | None:
        """Return its exit code, None if it could not be started."""
        self.starts += 1
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=PIPE, stdout=DEVNULL
            )
        except OSError as error:
            fields = {"command": self._command[0], "reason": os_error_text(error)}
            log.error("indexer process cannot be started", extra=fields)
            return None
        log.info("started the indexer process", extra={"pid": process.pid})
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                await _terminate(process)


async def _terminate(process: Process) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
        try:
            async with asyncio.timeout(TERMINATE_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


HEARTBEAT_NAME: Final = "indexer.heartbeat"
_BEAT_S: Final = 1.0


async def send_heartbeats(data_dir: Path) -> None:
    """Touch the file until cancelled, as far as its folder allows."""
    while True:
        _beat(data_dir)
        await asyncio.sleep(_BEAT_S)


def _beat(data_dir: Path) -> None:
    with suppress(OSError):
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        (data_dir / HEARTBEAT_NAME).touch(0o600)


class HeartbeatReader:
    """Measures the silence of the index process since the reader was created."""

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
