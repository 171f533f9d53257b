"""The process that fills the index, as the daemon's child: started again when it dies, ended with the daemon.

Nothing of the daemon waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Final

from warpseal.indexer.settings import IndexerSettings
from warpseal.runtime.backoff import Backoff

log = logging.getLogger(__name__)

END_WITHIN_S: Final = 10.0
# One that ran so long did not die of its start.
_WELL_AFTER_S: Final = 60.0


class IndexSubprocess:
    """Runs `command` for as long as `run` does. The child's standard error is the daemon's; it ends when its
    standard input does, so that not even kill -9 leaves it behind."""

    def __init__(self, command: Sequence[str], settings: IndexerSettings) -> None:
        self._command = tuple(command)
        self._backoff = Backoff(settings.restart_first_s, settings.restart_cap_s)
        self._random = Random()
        self.starts = 0

    async def run(self) -> None:
        """Keep it running until cancelled; then end it, gently first."""
        loop = asyncio.get_running_loop()
        delay_s = 0.0
        while True:
            started_at = loop.time()
            code = await self._once()
            if loop.time() - started_at >= _WELL_AFTER_S:
                delay_s = 0.0
            delay_s = self._backoff.next_delay(delay_s, self._random)
            log.warning("the process that fills the index ended", extra={"exit_code": code, "next_start_s": delay_s})
            await asyncio.sleep(delay_s)

    async def _once(self) -> int | None:
        """Run it once; return its exit code, None where it could not be started."""
        self.starts += 1
        try:
            process = await asyncio.create_subprocess_exec(*self._command, stdin=PIPE, stdout=DEVNULL)
        except OSError as error:
            log.error("the index cannot be filled", extra={"reason": error.strerror})
            return None
        log.info("the index is filled by a process of its own", extra={"pid": process.pid})
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                await _end(process)


async def _end(process: Process) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
        try:
            async with asyncio.timeout(END_WITHIN_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
