"""Which event loops whole daemons are tested on: uvloop, which they prefer, and for keep-alive both."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping

import pytest
import uvloop

from tests.store.postgres import postgres_server, postgres_url

__all__ = ["postgres_server", "postgres_url"]

_LOOPS: Mapping[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run the tests of keep-alive on both loops: when a pong goes out depends on the order in which a loop works."""
    if item.path.name == "test_keep_alive.py":
        return _LOOPS
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def no_fault_of_our_own(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Assert that nothing was logged as an error: whatever others do, it is no fault of the daemon."""
    yield
    faults = [record.getMessage() for record in caplog.get_records("call") if record.levelno >= logging.ERROR]
    assert not faults
