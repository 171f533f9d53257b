"""Gives the tests of usage either kind of metrics database."""

from pathlib import Path

import pytest

from tests.store.postgres import postgres_server, postgres_url

__all__ = ["any_metrics_url", "postgres_server", "postgres_url"]


@pytest.fixture(params=["sqlite", "postgresql"])
def any_metrics_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Give a test the URL of an empty metrics database of its own; it runs once for each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/metrics.db"
    url: str = request.getfixturevalue("postgres_url")
    return url
