"""What depends on how an event loop reads and keeps time is tested on both loops that the daemon
may run on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop

_ON_BOTH_LOOPS = ("test_tls", "test_keep_alive")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    both = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    if item.path.stem in _ON_BOTH_LOOPS:
        return both
    return {"asyncio": asyncio.new_event_loop}
