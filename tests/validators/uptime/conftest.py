"""Gives the tests of observed uptime either kind of store."""

from tests.store.conftest import any_store_url
from tests.store.postgres import postgres_server, postgres_url

__all__ = ["any_store_url", "postgres_server", "postgres_url"]
