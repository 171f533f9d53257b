"""Long waits of chains in tests, without waiting: the clock of the loop is set forward."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.eventually import until


def pass_time(seconds: float) -> None:
    """Set the clock of the running loop forward; timers that are due by then fire next."""
    loop = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + seconds  # type: ignore[method-assign]


def logged_waits(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Return the fields of what was logged about chains that wait."""
    return [vars(record) for record in caplog.records if record.msg == "indexing waits"]


async def log_two_waits(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Let ten minutes pass behind the first two, and return what was logged: once, and again after
    ten minutes.
    """
    assert not logged_waits(caplog)
    pass_time(121.0)
    await until(lambda: logged_waits(caplog))
    pass_time(300.0)
    await asyncio.sleep(0.05)
    pass_time(300.0)
    await until(lambda: len(logged_waits(caplog)) > 1)
    return logged_waits(caplog)
