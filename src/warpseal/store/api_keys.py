"""API keys of callers, stored as digests, and the page token keys that the daemons of one store share.

An API key has 24 random bytes, so a single SHA-256 protects it as well as a slower hash.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from sqlalchemy import Connection, Row, select, update

from warpseal.store.api_key import ApiKey, NameTaken
from warpseal.store.errors import StoreDown
from warpseal.store.ports import ReadSide, WriteSide
from warpseal.store.schema import API_KEYS, SECRETS
from warpseal.store.settings import StoreSettings
from warpseal.store.statements import insert_for

T = TypeVar("T")

_SECRET_BYTES: Final = 32
_PAGE_TOKENS: Final = "page_tokens"


class ApiKeys:
    """The API keys and the page token keys of one store."""

    def __init__(self, reads: ReadSide, writes: WriteSide, settings: StoreSettings) -> None:
        self._reads = reads
        self._writes = writes
        self._wait_s = settings.call_timeout_s

    async def find_key(self, digest: bytes) -> ApiKey | None:
        """Return the key of this digest, revoked or not; None if there is none. Raises StoreDown."""
        return await self._reads.read(lambda connection: find_key(connection, digest), self._wait_s)

    async def token_keys(self) -> Sequence[bytes]:
        """Return the keys of 32 bytes that seal page tokens, newest first; create the first one. Raises StoreDown."""
        found = await self._reads.read(_token_keys, self._wait_s)
        return found or await self._write(_ensure_token_key)

    async def _write(self, write: Callable[[Connection], T]) -> T:
        try:
            async with asyncio.timeout(self._wait_s):
                return await asyncio.wrap_future(self._writes.call(write))
        except TimeoutError:
            raise StoreDown(f"no answer within {self._wait_s:g} s") from None


def add_key(connection: Connection, key: ApiKey) -> None:
    """Store a new key. Raises NameTaken."""
    if connection.execute(select(API_KEYS.c.name).where(API_KEYS.c.name == key.name)).first() is not None:
        raise NameTaken(key.name)
    connection.execute(
        API_KEYS.insert().values(
            name=key.name,
            digest=key.digest,
            hint=key.hint,
            units_per_minute=key.units_per_minute,
            units_per_day=key.units_per_day,
            created_at=key.created_at,
            revoked_at=key.revoked_at,
        )
    )


def find_key(connection: Connection, digest: bytes) -> ApiKey | None:
    """Return the key of this digest, revoked or not."""
    row = connection.execute(select(API_KEYS).where(API_KEYS.c.digest == digest)).first()
    return None if row is None else _key(row)


def list_keys(connection: Connection) -> tuple[ApiKey, ...]:
    """Return all keys, oldest first."""
    return tuple(map(_key, connection.execute(select(API_KEYS).order_by(API_KEYS.c.created_at, API_KEYS.c.name))))


def revoke_key(connection: Connection, name: str, now_unix_s: float) -> bool:
    """Revoke a key by its name; return whether there is a key of this name."""
    of_name = API_KEYS.c.name == name
    connection.execute(update(API_KEYS).where(of_name, API_KEYS.c.revoked_at.is_(None)).values(revoked_at=now_unix_s))
    return connection.execute(select(API_KEYS.c.name).where(of_name)).first() is not None


def _key(row: Row[tuple[object, ...]]) -> ApiKey:
    return ApiKey(**{**row._mapping, "digest": bytes(row._mapping["digest"])})


def _token_keys(connection: Connection) -> tuple[bytes, ...]:
    query = select(SECRETS.c.value).where(SECRETS.c.kind == _PAGE_TOKENS).order_by(SECRETS.c.created_at.desc())
    return tuple(bytes(value) for value in connection.execute(query).scalars())


def _ensure_token_key(connection: Connection) -> tuple[bytes, ...]:
    """Create the first key, unless another daemon was faster."""
    first = insert_for(connection)(SECRETS).values(
        kind=_PAGE_TOKENS, number=1, value=os.urandom(_SECRET_BYTES), created_at=time.time()
    )
    connection.execute(first.on_conflict_do_nothing(index_elements=["kind", "number"]))
    return _token_keys(connection)
