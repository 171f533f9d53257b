"""Daemons that are born by the hundred: real processes, forked from one that has loaded the program already.

A process of its own, without threads or an event loop, forks: each child runs `warpseal serve` as the command does.
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

PATIENCE_S = 60.0
_LISTENING = re.compile(r"warpseal is listening: api=(\S+) metrics=\S+")
# Who is killed may have begun a line.
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
class Life:
    """One daemon's life. api_url: known as soon as it listens; ended: with its exit code."""

    pid: int
    listening: asyncio.Future[str] = field(default_factory=asyncio.Future)
    ended: asyncio.Future[int] = field(default_factory=asyncio.Future)
    _killed: bool = False

    def kill(self) -> None:
        """End it at once, whatever it is doing. Only the first call does something: pids are used again."""
        if not self._killed and not self.ended.done():
            self._killed = True
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    async def stop(self) -> int:
        """End it politely; return its exit code."""
        os.kill(self.pid, signal.SIGTERM)
        return await asyncio.wait_for(asyncio.shield(self.ended), PATIENCE_S)


class Nursery:
    """Where the daemons of one config file are born, one after another."""

    def __init__(self, process: asyncio.subprocess.Process, config: Path) -> None:
        self._process = process
        self._config = config

    @asynccontextmanager
    async def born(self) -> AsyncIterator[Life]:
        """Run a daemon; nothing of it is left behind."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{self._config}\n".encode())
        life = Life(int(await self._line()))
        listener = asyncio.create_task(self._listen(life))
        try:
            yield life
        finally:
            life.kill()
            await asyncio.wait_for(listener, PATIENCE_S)

    def log(self) -> str:
        """Return what all of them said."""
        return Path(f"{self._config}.log").read_text()

    async def _listen(self, life: Life) -> None:
        while (ended := _ENDED.fullmatch(line := await self._line())) is None:
            if found := _LISTENING.fullmatch(line):
                life.listening.set_result(found[1])
        life.ended.set_result(int(ended[1]))
        life.listening.cancel()

    async def _line(self) -> str:
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), PATIENCE_S)
        assert line, "the nursery has ended"
        return line.decode().strip()


@asynccontextmanager
async def nursery(config: Path) -> AsyncIterator[Nursery]:
    """Hold a process that has loaded the program."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WARPSEAL_")}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _PARENT, stdin=pipe, stdout=pipe, env=kept)
    try:
        yield Nursery(process, config)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await asyncio.wait_for(process.wait(), PATIENCE_S)
