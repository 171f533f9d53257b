"""A real PostgreSQL server, for tests with the fixture of its URL."""

from tests.store.postgres import postgres_server, postgres_url

__all__ = ["postgres_server", "postgres_url"]
