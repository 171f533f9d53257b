"""API keys of callers, stored as digests, and the page token keys of all daemons of one store.

An API key has 24 random bytes, so a single SHA-256 protects it as well as a slower hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import starmap
from typing import Final

from msgspec.structs import astuple

from warpseal.store.api_key import ApiKey, NameTaken
from warpseal.store.connection import Connection
from warpseal.store.database import Database
from warpseal.store.schema import API_KEYS
from warpseal.store.secrets import ensure_secret, load_secrets

_PAGE_TOKENS: Final = "page_tokens"
_FIND_KEY: Final = f"SELECT {API_KEYS.names} FROM api_keys WHERE digest = ?"
_LIST_KEYS: Final = f"SELECT {API_KEYS.names} FROM api_keys ORDER BY created_at, name"
_ADD_KEY: Final = f"{API_KEYS.insert_text} ON CONFLICT (name) DO NOTHING"
_DIGEST: Final = "SELECT digest FROM api_keys WHERE name = ?"
_REVOKE: Final = "UPDATE api_keys SET revoked_at = ? WHERE name = ? AND revoked_at IS NULL"


class ApiKeys:
    """The API keys and the page token keys of one store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find_key(self, digest: bytes) -> ApiKey | None:
        """Return the key with this digest, revoked or not, or None. Raises StoreDown."""
        rows = await self._database.records(_FIND_KEY, digest)
        return ApiKey(*rows[0]) if rows else None

    async def token_keys(self) -> Sequence[bytes]:
        """Return the keys of 32 bytes that seal page tokens, newest first; create the first one.

        Raises StoreDown.
        """
        keys = await self._database.read(lambda connection: load_secrets(connection, _PAGE_TOKENS))
        return keys or await self._database.write(
            lambda connection: ensure_secret(connection, _PAGE_TOKENS), is_idempotent=True
        )


def add_key(connection: Connection, key: ApiKey) -> None:
    """Store a new key; a second call changes nothing. Raises NameTaken."""
    connection.run(_ADD_KEY, *astuple(key))
    if connection.value(_DIGEST, key.name) != key.digest:
        raise NameTaken(key.name)


def list_keys(connection: Connection) -> tuple[ApiKey, ...]:
    """Return all keys, oldest first."""
    return tuple(starmap(ApiKey, connection.fetch(_LIST_KEYS)))


def revoke_key(connection: Connection, name: str, now_unix_s: float) -> bool:
    """Revoke a key by its name; return whether there is a key of this name."""
    connection.run(_REVOKE, now_unix_s, name)
    return connection.value(_DIGEST, name) is not None
