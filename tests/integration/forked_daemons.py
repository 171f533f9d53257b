"""Daemons as real processes that start fast: a process that has imported the program forks them.

That process has no threads and no event loop; each child runs `warpseal serve` like the command.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.eventually import TIMEOUT_S

_LISTENING = re.compile(r"warpseal is listening: api=(\S+) metrics=\S+")
# A killed daemon may have begun a line.
_ENDED = re.compile(r".*ended (-?\d+)")
_PARENT = """
import os, sys
import warpseal.daemon.app, warpseal.daemon.startup
from warpseal.cli import serve
from warpseal.cli.main import main

for config in map(str.strip, sys.stdin):
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(config + ".log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
        os._exit(main(["serve", "--config", config]))
    print(pid, flush=True)
    print("ended", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@dataclass
class ForkedDaemon:
    """A forked daemon. listening: resolves to its API URL; ended: resolves to its exit code."""

    pid: int
    listening: asyncio.Future[str] = field(default_factory=asyncio.Future)
    ended: asyncio.Future[int] = field(default_factory=asyncio.Future)
    _killed: bool = False

    def kill(self) -> None:
        """Kill it. Only the first call has an effect, since pids are reused."""
        if not self._killed and not self.ended.done():
            self._killed = True
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    async def stop(self) -> int:
        """Terminate it and return its exit code."""
        os.kill(self.pid, signal.SIGTERM)
        return await asyncio.wait_for(asyncio.shield(self.ended), TIMEOUT_S)


class DaemonForker:
    """Starts daemons of one config file, one after another."""

    def __init__(self, process: asyncio.subprocess.Process, config: Path) -> None:
        self._process = process
        self._config = config

    @asynccontextmanager
    async def start(self) -> AsyncIterator[ForkedDaemon]:
        """Run a daemon and kill it at the end if it still runs."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{self._config}\n".encode())
        daemon = ForkedDaemon(int(await self._line()))
        listener = asyncio.create_task(self._listen(daemon))
        try:
            yield daemon
        finally:
            daemon.kill()
            await asyncio.wait_for(listener, TIMEOUT_S)

    def log(self) -> str:
        """Return the log of all of them."""
        return Path(f"{self._config}.log").read_text()

    async def _listen(self, daemon: ForkedDaemon) -> None:
        while (ended := _ENDED.fullmatch(line := await self._line())) is None:
            if found := _LISTENING.fullmatch(line):
                daemon.listening.set_result(found[1])
        daemon.ended.set_result(int(ended[1]))
        daemon.listening.cancel()

    async def _line(self) -> str:
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), TIMEOUT_S)
        assert line, "the forking process has ended"
        return line.decode().strip()


@asynccontextmanager
async def run_daemon_forker(config: Path) -> AsyncIterator[DaemonForker]:
    """Run the forking process."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WARPSEAL_")}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _PARENT, stdin=pipe, stdout=pipe, env=kept)
    try:
        yield DaemonForker(process, config)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await asyncio.wait_for(process.wait(), TIMEOUT_S)
