"""Gives the tests of usage either kind of metrics database, and threads that do not pause."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.store.postgres import empty_database_url, postgres_server, postgres_url
from warpseal.runtime import throttle

__all__ = ["any_metrics_url", "postgres_server", "postgres_url"]


@pytest.fixture(params=["sqlite", "postgresql"])
def any_metrics_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Give a test the URL of an empty metrics database of its own; it runs once for each kind."""
    return empty_database_url(request, tmp_path / "metrics.db")


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the threads compute without their pauses for the event loop, which has nothing else to do
    here.
    """
    monkeypatch.setattr(
        throttle, "time", SimpleNamespace(perf_counter=time.perf_counter, sleep=lambda _: None)
    )
