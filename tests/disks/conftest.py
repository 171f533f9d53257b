"""Gives the tests of failing databases a real PostgreSQL server."""

from tests.store.postgres import postgres_server

__all__ = ["postgres_server"]
