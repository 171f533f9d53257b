"""API keys of callers, stored as digests, and the page token keys that the daemons of one store share.

An API key has 24 random bytes, so a single SHA-256 protects it as well as a slower hash.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import asdict
from sqlalchemy import Connection, Row, select, update

from warpseal.store.api_key import ApiKey, NameTaken
from warpseal.store.database import Database
from warpseal.store.schema import API_KEYS, SECRETS
from warpseal.store.statements import inserter

_SECRET_BYTES: Final = 32
_PAGE_TOKENS: Final = "page_tokens"


class ApiKeys:
    """The API keys and the page token keys of one store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find_key(self, digest: bytes) -> ApiKey | None:
        """Return the key of this digest, revoked or not; None if there is none. Raises StoreDown."""
        rows = await self._database.fetch(select(API_KEYS).where(API_KEYS.c.digest == digest))
        return _key(rows[0]) if rows else None

    async def token_keys(self) -> Sequence[bytes]:
        """Return the keys of 32 bytes that seal page tokens, newest first; create the first one. Raises StoreDown."""
        keys = await self._database.read(lambda connection: load_secrets(connection, _PAGE_TOKENS))
        return keys or await self._database.write(lambda connection: ensure_secret(connection, _PAGE_TOKENS))


def add_key(connection: Connection, key: ApiKey) -> None:
    """Store a new key. Raises NameTaken."""
    if connection.execute(select(API_KEYS.c.name).where(API_KEYS.c.name == key.name)).first() is not None:
        raise NameTaken(key.name)
    connection.execute(API_KEYS.insert().values(**asdict(key)))


def list_keys(connection: Connection) -> tuple[ApiKey, ...]:
    """Return all keys, oldest first."""
    return tuple(map(_key, connection.execute(select(API_KEYS).order_by(API_KEYS.c.created_at, API_KEYS.c.name))))


def revoke_key(connection: Connection, name: str, now_unix_s: float) -> bool:
    """Revoke a key by its name; return whether there is a key of this name."""
    of_name = API_KEYS.c.name == name
    connection.execute(update(API_KEYS).where(of_name, API_KEYS.c.revoked_at.is_(None)).values(revoked_at=now_unix_s))
    return connection.execute(select(API_KEYS.c.name).where(of_name)).first() is not None


def _key(row: Row[Any]) -> ApiKey:
    return ApiKey(**row._mapping)


def load_secrets(connection: Connection, kind: str) -> tuple[bytes, ...]:
    """Return the secrets of a kind, newest first."""
    query = select(SECRETS.c.value).where(SECRETS.c.kind == kind).order_by(SECRETS.c.created_at.desc())
    return tuple(connection.execute(query).scalars())


def ensure_secret(connection: Connection, kind: str) -> tuple[bytes, ...]:
    """Create the first secret of a kind, 32 bytes, unless another daemon was faster; return all."""
    first = inserter(connection.dialect.name)(SECRETS).values(
        kind=kind, number=1, value=os.urandom(_SECRET_BYTES), created_at=time.time()
    )
    connection.execute(first.on_conflict_do_nothing(index_elements=["kind", "number"]))
    return load_secrets(connection, kind)
