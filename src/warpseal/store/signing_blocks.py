"""The rows of the signing blocks. Every method raises StoreDown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import asdict
from sqlalchemy import select

from warpseal.store.database import Database
from warpseal.store.schema import SIGNING_BLOCKS
from warpseal.store.statements import inserter, replacing
from warpseal.store.values import SigningBlock, SigningBlockKind

_COLUMNS: Final = SIGNING_BLOCKS.c


class SigningBlockRows:
    """The signing blocks of all daemons of a store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self) -> Sequence[SigningBlock]:
        """Return all blocks, oldest first."""
        query = select(SIGNING_BLOCKS).order_by(_COLUMNS.created_at, _COLUMNS.kind, _COLUMNS.value)
        rows = await self._database.fetch(query, self._database.settings.load_timeout_s)
        return [SigningBlock(SigningBlockKind(row.kind), row.value, row.reason, row.created_at) for row in rows]

    async def add(self, block: SigningBlock) -> None:
        """Add a block, or replace the one of its kind and value."""
        await self._database.write(
            lambda connection: connection.execute(
                replacing(inserter(connection.dialect.name)(SIGNING_BLOCKS).values(**asdict(block)))
            )
        )

    async def remove(self, kind: SigningBlockKind, value: str) -> None:
        """Remove a block."""
        same = SIGNING_BLOCKS.delete().where(_COLUMNS.kind == kind, _COLUMNS.value == value)
        await self._database.write(lambda connection: connection.execute(same))
