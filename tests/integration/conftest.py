"""Event loops of whole daemons: uvloop, which they prefer, and both for keep-alive."""

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
    """Run the tests of keep-alive on both loops: the order of a loop's work decides when a pong is
    sent.
    """
    if item.path.name == "test_keep_alive.py":
        return _LOOPS
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def no_logged_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Assert that the daemon logged no error: misbehaviour of peers and clients is none."""
    yield
    errors = [
        record.getMessage()
        for record in caplog.get_records("call")
        if record.levelno >= logging.ERROR
    ]
    assert not errors
