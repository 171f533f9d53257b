"""A real PostgreSQL server, where a test asks for its URL."""

from tests.store.postgres import postgres_server, postgres_url

__all__ = ["postgres_server", "postgres_url"]
