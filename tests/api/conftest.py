"""The event loops of the API tests: the tests of the server also run on uvloop, which the daemon
prefers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

_BOTH: Mapping[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}

_ON_BOTH = ("test_server.py", "test_stopping.py")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run the tests of the server on both loops, all others on asyncio's."""
    return _BOTH if item.path.name in _ON_BOTH else {"asyncio": asyncio.new_event_loop}
