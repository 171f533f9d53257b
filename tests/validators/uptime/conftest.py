"""Runs the tests of observed uptime on both kinds of store."""

from pathlib import Path

import pytest

from tests.store.postgres import postgres_server, postgres_url

__all__ = ["any_store_url", "postgres_server", "postgres_url"]


@pytest.fixture(params=["sqlite", "postgresql"])
def any_store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Give a test the URL of an empty database of its own; it runs once for each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    url: str = request.getfixturevalue("postgres_url")
    return url
