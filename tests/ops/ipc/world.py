"""A daemon's end of the socket, and processes that listen to it, on one loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from tests.eventually import until
from warpseal.ops.ipc.client import Act, do_as_told
from warpseal.ops.ipc.server import SOCKET_NAME, Siblings


@asynccontextmanager
async def running(siblings: Siblings, folder: Path) -> AsyncIterator[None]:
    """Let others listen meanwhile."""
    task = asyncio.create_task(siblings.run())
    try:
        await until((folder / SOCKET_NAME).exists)
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))


@asynccontextmanager
async def acting(folder: Path, acts: Mapping[str, Act]) -> AsyncIterator[None]:
    """Listen meanwhile, and do as told."""
    task = asyncio.create_task(do_as_told(folder, acts))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))
