"""Long waits of chains in tests, without waiting: the clock of the loop is set forward."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import asdict

from tests.eventually import until
from warpseal.cli.index import describe_chain
from warpseal.index.checkpoint import ProgressRow
from warpseal.indexer.status import EvmIndexStatus
from warpseal.ops.health.checks import indexer_check
from warpseal.ops.health.registry import CheckOutcome
from warpseal.ops.settings import HealthSettings
from warpseal.resources.progress import EvmChainProgress
from warpseal.runtime.go_time import rfc3339


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


def assert_wait_is_shown(row: ProgressRow) -> None:
    """Assert that the health check of indexes fails for a chain that waits, and that `index status`
    says since when and why.
    """
    assert row.waiting
    assert row.waiting_since
    since, status = rfc3339(row.waiting_since), EvmIndexStatus()
    status.chains = {row.chain: EvmChainProgress(**asdict(row.as_progress()))}
    outcome = indexer_check(lambda: 1.0, HealthSettings(), status.stalled_chains).run()
    assert isinstance(outcome, CheckOutcome)
    assert outcome.error == f"indexing the {row.chain} waits since {since}: {row.waiting}"
    description = describe_chain(row.as_progress())
    assert (description["waiting"], description["waitingSince"]) == (row.waiting, since)
