"""A daemon's end of the socket, and processes that listen to it, on one loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from tests.eventually import until
from warpseal.ops.ipc import SOCKET_NAME, CommandHandler, ControlServer, serve_commands


@asynccontextmanager
async def running_server(control_server: ControlServer, folder: Path) -> AsyncIterator[None]:
    """Let others listen meanwhile."""
    task = asyncio.create_task(control_server.run())
    try:
        await until((folder / SOCKET_NAME).exists)
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))


@asynccontextmanager
async def process(folder: Path, handlers: Mapping[str, CommandHandler]) -> AsyncIterator[None]:
    """Listen meanwhile, and apply commands."""
    task = asyncio.create_task(serve_commands(folder, handlers))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))
