"""Gives the tests of the store a real PostgreSQL server, and either kind of database."""

from pathlib import Path

import pytest

from tests.store.postgres import empty_database_url, postgres_server, postgres_url

__all__ = ["any_store_url", "postgres_server", "postgres_url"]


@pytest.fixture(params=["sqlite", "postgresql"])
def any_store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Give a test the URL of an empty database of its own; it runs once for each kind."""
    return empty_database_url(request, tmp_path / "store.db")
