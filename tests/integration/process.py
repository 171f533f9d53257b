"""The real command as a process of its own, which ends with the test."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.eventually import TIMEOUT_S, until

_LISTENING = re.compile(r"warpseal is listening: api=(\S+) metrics=(\S+)\n")


@dataclass
class RunningCommand:
    """A running `warpseal …`. stderr grows while it runs."""

    process: asyncio.subprocess.Process
    stderr: list[str] = field(default_factory=list)

    async def listening(self) -> tuple[str, str]:
        """Return the URLs of API and metrics once the daemon listens."""
        assert self.process.stdout is not None
        async with asyncio.timeout(TIMEOUT_S):
            line = (await self.process.stdout.readline()).decode()
        found = _LISTENING.fullmatch(line)
        assert found, f"{line!r}, and on standard error: {''.join(self.stderr)}"
        return found[1], found[2]

    async def ended(self) -> int:
        """Wait for the end of the process and return the exit code."""
        async with asyncio.timeout(TIMEOUT_S):
            return await self.process.wait()

    async def until_logged(self, words: str) -> str:
        """Return the first line on standard error that has these words, once there is one."""
        await until(lambda: any(words in line for line in self.stderr))
        return next(line for line in self.stderr if words in line)


@dataclass(frozen=True)
class FinishedCommand:
    """The exit code and the output of a command that has ended."""

    code: int
    stdout: str
    stderr: str


@asynccontextmanager
async def start_command(
    *arguments: str, environ: Mapping[str, str] | None = None, own_group: bool = False
) -> AsyncIterator[RunningCommand]:
    """Run `warpseal …` and kill it at the end if it still runs.

    own_group: its process group is its own, and has its pid.
    """
    process = await asyncio.create_subprocess_exec(
        *_command(arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=_environment(environ),
        start_new_session=own_group,
    )
    command = RunningCommand(process)
    reading = asyncio.create_task(_read(process, command.stderr))
    try:
        yield command
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reading


async def run_command(*arguments: str, environ: Mapping[str, str] | None = None) -> FinishedCommand:
    """Run `warpseal …` to its end."""
    process = await asyncio.create_subprocess_exec(
        *_command(arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=_environment(environ),
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            stdout, stderr = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return FinishedCommand(process.returncode, stdout.decode(), stderr.decode())


def _command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "warpseal", *arguments]


def _environment(more: Mapping[str, str] | None) -> dict[str, str]:
    """Return the environment without the developer's own settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WARPSEAL_")}
    return {**kept, **(more or {})}


async def _read(process: asyncio.subprocess.Process, lines: list[str]) -> None:
    assert process.stderr is not None
    async for line in process.stderr:
        lines.append(line.decode())
