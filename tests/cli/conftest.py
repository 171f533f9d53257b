"""Gives the tests of the commands either kind of store."""

from tests.store.conftest import any_store_url
from tests.store.postgres import postgres_server, postgres_url
from tests.usage.conftest import any_metrics_url

__all__ = ["any_metrics_url", "any_store_url", "postgres_server", "postgres_url"]
