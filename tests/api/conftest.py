"""Which event loops the tests of the front doors run on: the server's also on uvloop, which the daemon prefers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

_BOTH: Mapping[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run the tests of the server on both loops, all others on asyncio's."""
    on_both = item.path.name == "test_server.py"
    return _BOTH if on_both else {"asyncio": asyncio.new_event_loop}
