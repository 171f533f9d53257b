"""Signing blocks: the rules of the operator about messages that are not signed.

Each daemon of a store holds all of them in memory, and reads them again every second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Final

from msgspec.structs import asdict, astuple

from warpseal.store.database import Database
from warpseal.store.errors import StoreDown
from warpseal.store.schema import SIGNING_BLOCKS
from warpseal.store.url import OFF
from warpseal.store.values import SigningBlock

log = logging.getLogger(__name__)

POLL_S: Final = 1.0
_READ: Final = f"""
SELECT {SIGNING_BLOCKS.names}
FROM signing_blocks
ORDER BY created_at, kind, value
"""
_DELETE: Final = "DELETE FROM signing_blocks WHERE kind = ? AND value = ?"
NOT_READ: Final = "the signing blocks were not read yet, and nothing is signed before"


class SigningBlocks:
    """Used from one event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # A read that began before a change must not end after the read that follows the change.
        self._reading = asyncio.Lock()
        # By kind and value. None until the store has answered: no block may be missed. Without a
        # store there is none.
        self._blocks: Mapping[tuple[str, str], SigningBlock] | None = (
            {} if database.status().url == OFF else None
        )

    def blocking_error(self) -> str | None:
        """Return why nothing is signed; None once the blocks were read."""
        return NOT_READ if self._blocks is None else None

    @property
    def may_block(self) -> bool:
        """Whether there is a block, or the blocks were not read yet."""
        return self._blocks is None or bool(self._blocks)

    @property
    def kinds(self) -> AbstractSet[str]:
        """The kinds of the blocks that were read."""
        return {kind for kind, _ in self._blocks or ()}

    def find(self, subjects: Iterable[tuple[str, str]]) -> SigningBlock | None:
        """Return a block of one of these kinds and values, if there is one.

        Raises StoreDown until they were read.
        """
        blocks = self._blocks
        if blocks is None:
            raise StoreDown(NOT_READ)
        if not blocks:
            return None
        return next((blocks[subject] for subject in subjects if subject in blocks), None)

    async def run(self) -> None:
        """Read the blocks every second until cancelled; the last ones hold while it is down."""
        while True:
            await asyncio.sleep(POLL_S)
            with suppress(StoreDown):
                await self.load()

    async def load(self) -> Sequence[SigningBlock]:
        """Read all blocks and return them, oldest first. Raises StoreDown."""
        wait_s = self._database.settings.load_timeout_s
        async with self._reading:
            rows = await self._database.records(_READ, wait_s=wait_s)
            blocks = [SigningBlock(*row) for row in rows]
            self._blocks = {(block.kind, block.value): block for block in blocks}
        return blocks

    async def add(self, block: SigningBlock) -> None:
        """Add a block, or replace the block of the same kind and value.

        It holds on return, and after a power cut. Raises StoreDown.
        """
        await self._database.write(
            lambda connection: connection.run(SIGNING_BLOCKS.upsert_text, *astuple(block)),
            is_flushed=True,
            is_idempotent=True,
        )
        log.info("signing blocked", extra=asdict(block))
        await self.load()

    async def remove(self, block: SigningBlock) -> None:
        """Remove a block. Raises StoreDown."""
        await self._database.write(
            lambda connection: connection.run(_DELETE, block.kind, block.value),
            is_flushed=True,
            is_idempotent=True,
        )
        log.info("signing unblocked", extra=asdict(block))
        await self.load()
