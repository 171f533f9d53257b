"""Gives the tests of EVM indexes either kind of database."""

from pathlib import Path

import pytest

from tests.index.conftest import any_index_url, postgres_server, postgres_url

__all__ = ["any_index_url", "postgres_server", "postgres_url"]


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    """Return the URL of an index in a file."""
    return f"sqlite:///{tmp_path}/index.db"
