"""Gives the tests of the store a real PostgreSQL server."""

from tests.store.postgres import postgres_server, postgres_url

__all__ = ["postgres_server", "postgres_url"]
