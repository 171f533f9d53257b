"""anvil, a real EVM node of development, as `make test` installs it next to the virtual
environment.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests import paths

_INSTALLED = paths.ROOT / ".venv" / "anvil" / "node_modules" / "@foundry-rs"
_LISTENING = re.compile(rb"Listening on 127\.0\.0\.1:(\d+)")


def binary() -> Path | None:
    """Return the program; None where it is not installed."""
    return next(iter(sorted(_INSTALLED.glob("anvil-*/bin/anvil"))), None)


@dataclass(frozen=True)
class Anvil:
    """A running node, HTTP and WebSocket on one port."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ws(self) -> str:
        return f"ws://127.0.0.1:{self.port}"


@asynccontextmanager
async def anvil(*more: str) -> AsyncIterator[Anvil]:
    """Run a node of its own, on a free port of this machine.

    more: more flags of the node.
    """
    program = binary()
    assert program is not None
    process = await asyncio.create_subprocess_exec(
        program,
        "--port",
        "0",
        "--host",
        "127.0.0.1",
        "--no-mining",
        *more,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            while not (match := _LISTENING.search(await process.stdout.readline())):
                continue
        reading = asyncio.create_task(process.stdout.read())
        yield Anvil(int(match[1]))
        reading.cancel()
    finally:
        process.terminate()
        await process.wait()
