"""The real command as a process of its own, which ends with the test.

It is forked by a process that has imported the program. The demo and the index process of a daemon
start interpreters.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import BinaryIO

from tests import paths
from tests.eventually import TIMEOUT_S, until

_LISTENING = re.compile(r"warpseal is listening: api=(\S+) metrics=(\S+)\n")

ABSENT_NODES = ("--p-chain-api", "http://127.0.0.1:1", "--info-api", "http://127.0.0.1:1")
"""Flags of a command that needs no node."""


@dataclass
class RunningCommand:
    """A running `warpseal …`. stderr grows while it runs, and is whole with the exit code."""

    pid: int
    stdin: BinaryIO
    stdout: asyncio.StreamReader
    stderr: list[str] = field(default_factory=list)
    exit_code: asyncio.Future[int] = field(default_factory=asyncio.Future)

    async def listening(self) -> tuple[str, str]:
        """Return the URLs of API and metrics once the daemon listens."""
        line = await self.read_line()
        match = _LISTENING.fullmatch(line)
        assert match, f"{line!r}, and on standard error: {''.join(self.stderr)}"
        return match[1], match[2]

    async def read_line(self) -> str:
        """Return the next line on standard output, empty at its end."""
        async with asyncio.timeout(TIMEOUT_S):
            return (await self.stdout.readline()).decode()

    async def ended(self) -> int:
        """Wait for the end of the process and return the exit code, negative after a signal."""
        async with asyncio.timeout(TIMEOUT_S):
            return await asyncio.shield(self.exit_code)

    async def until_logged(self, words: str) -> str:
        """Return the first line on standard error that has these words, once there is one."""
        await until(lambda: self.exit_code.done() or any(words in line for line in self.stderr))
        matching_line = next((line for line in self.stderr if words in line), None)
        assert matching_line, "".join(self.stderr)
        return matching_line

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if not self.exit_code.done():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)


@dataclass(frozen=True)
class FinishedCommand:
    """The exit code and the output of a command that has ended."""

    code: int
    stdout: str
    stderr: str


@asynccontextmanager
async def start_command(
    *arguments: object, environ: Mapping[str, str] | None = None
) -> AsyncIterator[RunningCommand]:
    """Run `warpseal …` in a process group of its own, and kill it at the end if it still runs."""
    stdin, *outputs = _fork([*map(str, arguments)], _environment(environ))
    transports, (stdout, stderr, status) = zip(
        *[await _open_reader(output) for output in outputs], strict=True
    )
    command = RunningCommand(int(await status.readline()), stdin, stdout)
    watching = asyncio.create_task(_watch(command, stderr, status))
    try:
        yield command
    finally:
        command.kill()
        stdin.close()
        await watching
        for transport in transports:
            transport.close()


async def run_command(
    *arguments: object, environ: Mapping[str, str] | None = None
) -> FinishedCommand:
    """Run `warpseal …` to its end."""
    async with start_command(*arguments, environ=environ) as command:
        async with asyncio.timeout(TIMEOUT_S):
            stdout = await command.stdout.read()
        code = await command.ended()
    return FinishedCommand(code, stdout.decode(), "".join(command.stderr))


@cache
def _forker() -> socket.socket:
    """Start the process that forks commands; it ends with the tests."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.forker", str(theirs.fileno())],
            cwd=paths.ROOT,
            env=_environment({}),
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    atexit.register(process.wait, TIMEOUT_S)
    atexit.register(ours.close)
    return ours


def _fork(
    arguments: list[str], environ: dict[str, str]
) -> tuple[BinaryIO, BinaryIO, BinaryIO, BinaryIO]:
    """Return our ends of the pipes of a new process: standard input, output and error, and its pid
    and exit code.
    """
    (stdin, ours), *pipes = [os.pipe() for _ in range(4)]
    request = json.dumps([arguments, environ]).encode()
    theirs = [stdin, *(writing for _, writing in pipes)]
    socket.send_fds(_forker(), [len(request).to_bytes(4)], theirs)
    _forker().sendall(request)
    for descriptor in theirs:
        os.close(descriptor)
    stdout, stderr, status = (os.fdopen(reading, "rb", 0) for reading, _ in pipes)
    return os.fdopen(ours, "wb", 0), stdout, stderr, status


async def _open_reader(pipe: BinaryIO) -> tuple[asyncio.ReadTransport, asyncio.StreamReader]:
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    return transport, reader


def _environment(more: Mapping[str, str] | None) -> dict[str, str]:
    """Return the environment without the developer's own settings."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("WARPSEAL_")
    }
    return {**environment, **(more or {})}


async def _watch(
    command: RunningCommand, stderr: asyncio.StreamReader, status: asyncio.StreamReader
) -> None:
    async for line in stderr:
        command.stderr.append(line.decode())
    command.exit_code.set_result(int(await status.readline()))
