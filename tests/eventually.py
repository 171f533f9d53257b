"""The one way in which tests wait for something that has no event."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Final

TIMEOUT_S: Final = 60.0
"""More than any machine needs; a test that reaches it fails."""
_INTERVAL_S: Final = 0.005


async def until(condition: Callable[[], object | Awaitable[object]], timeout_s: float = TIMEOUT_S) -> None:
    """Wait until the condition, a function or a coroutine function, returns a true value. Raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while True:
            holds = condition()
            if inspect.isawaitable(holds):
                holds = await holds
            if holds:
                return
            await asyncio.sleep(_INTERVAL_S)
