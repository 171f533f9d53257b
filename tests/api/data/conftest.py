"""Gives the tests of the Data API a PostgreSQL database."""

from tests.store.postgres import postgres_server, postgres_url

__all__ = ["postgres_server", "postgres_url"]
