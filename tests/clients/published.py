"""Published clients, installed by `make test` beside the virtual environment, run by Node.js."""

from __future__ import annotations

import asyncio
import json
import shutil
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import paths
from tests.eventually import TIMEOUT_S

_INSTALLED = paths.ROOT / ".venv" / "clients"
_NODE = shutil.which("node")
_MAX_LINE_BYTES = 100_000_000

Call = tuple[str | dict[str, Any], ...]
"""A function of a client by its path, and its arguments; the arguments of the script come first."""


def are_installed() -> bool:
    """Return whether the clients can be run here."""
    return _NODE is not None and (_INSTALLED / "node_modules").is_dir()


async def outcomes(script: str, *arguments: str, calls: Sequence[Call]) -> list[dict[str, Any]]:
    """Let a script of this folder make calls; return its line for each of them."""
    assert _NODE is not None
    # From its standard input a script finds the packages of the folder that it runs in.
    command = (_NODE, "--input-type=module", "-", *arguments, json.dumps(calls))
    process = await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=_INSTALLED
    )
    try:
        text = Path(__file__).with_name(script).read_bytes()
        output, errors = await asyncio.wait_for(process.communicate(text), TIMEOUT_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()
    results = [json.loads(line) for line in output.decode().splitlines()]
    assert len(results) == len(calls)
    return results


@dataclass(frozen=True)
class Sdk:
    """A published SDK of the Data API in a process, which loads its packages once: that costs more
    than the calls.
    """

    name: str
    _process: Process

    async def outcomes(self, url: str, calls: Sequence[Call]) -> list[dict[str, Any]]:
        """Make calls to a server; return the outcome of each, as `data_api.mjs` writes it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps([url, calls])}\n".encode())
        async with asyncio.timeout(TIMEOUT_S):
            return [json.loads(await self._process.stdout.readline()) for _ in calls]


@asynccontextmanager
async def running_sdk(name: str, runtime: str = "node") -> AsyncIterator[Sdk]:
    """Run an SDK until the end; runtime: "node", or "browser" as SDKs recognize one.

    What it logs is displayed.
    """
    assert _NODE is not None
    text = Path(__file__).with_name("data_api.mjs").read_text()
    # A script that is an argument finds the packages of the folder that it runs in.
    command = (_NODE, "--input-type=module", "--eval", text, name, runtime)
    process = await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, cwd=_INSTALLED, limit=_MAX_LINE_BYTES
    )
    try:
        yield Sdk(name, process)
        assert process.stdin is not None
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), TIMEOUT_S) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
