"""The real command as a process of its own: started, talked to, signalled, and never left behind."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

PATIENCE_S = 30.0
_LISTENING = re.compile(r"warpseal is listening: api=(\S+) metrics=(\S+)\n")


@dataclass
class Command:
    """A running `warpseal …`. stderr grows while it runs."""

    process: asyncio.subprocess.Process
    stderr: list[str] = field(default_factory=list)

    async def listening(self) -> tuple[str, str]:
        """Return the URLs of API and metrics as soon as the daemon says that it listens."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            line = (await self.process.stdout.readline()).decode()
        found = _LISTENING.fullmatch(line)
        assert found, f"{line!r}, and on standard error: {''.join(self.stderr)}"
        return found[1], found[2]

    async def ended(self) -> int:
        """Return the exit code when the process has ended."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.process.wait()

    async def until_said(self, words: str) -> str:
        """Return the first line on standard error that has these words."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for line in self.stderr:
                    if words in line:
                        return line
                await asyncio.sleep(0.01)


@dataclass(frozen=True)
class Finished:
    """What a command that has ended said."""

    code: int
    stdout: str
    stderr: str


@asynccontextmanager
async def started(*arguments: str, environ: Mapping[str, str] | None = None) -> AsyncIterator[Command]:
    """Run `warpseal …` beside this process; kill it at the end, if it has not ended by then."""
    process = await asyncio.create_subprocess_exec(
        *_command(arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=_environment(environ),
    )
    command = Command(process)
    reading = asyncio.create_task(_read(process, command.stderr))
    try:
        yield command
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reading


async def finished(*arguments: str, environ: Mapping[str, str] | None = None) -> Finished:
    """Run `warpseal …` to its end."""
    process = await asyncio.create_subprocess_exec(
        *_command(arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=_environment(environ),
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            stdout, stderr = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return Finished(process.returncode, stdout.decode(), stderr.decode())


def _command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "warpseal", *arguments]


def _environment(more: Mapping[str, str] | None) -> dict[str, str]:
    """Return the environment without settings that the machine of a developer may have."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WARPSEAL_")}
    return {**kept, **(more or {})}


async def _read(process: asyncio.subprocess.Process, lines: list[str]) -> None:
    assert process.stderr is not None
    async for line in process.stderr:
        lines.append(line.decode())
