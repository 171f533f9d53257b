"""The messages that the operator has blocked: none of their signatures is made or handed out.

The blocks are in the store. Each daemon of the store has all of them in memory, and reads them again every second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from warpseal.messages.errors import SigningBlocked
from warpseal.messages.teleporter import parse_teleporter
from warpseal.resources.text import hex_text
from warpseal.runtime.locks import AsyncLock
from warpseal.store.errors import StoreDown
from warpseal.store.signing_blocks import SigningBlockRows
from warpseal.store.values import SigningBlock, SigningBlockKind
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import id_text
from warpseal.warp.message import AddressedCall, UnsignedMessage

log = logging.getLogger(__name__)

MAX_SIGNING_BLOCKS: Final = 1_000
POLL_S: Final = 1.0
_NOT_READ: Final = "the signing blocks were not read yet, and nothing is signed before"

_Subject = tuple[SigningBlockKind, str]


class SigningBlocks:
    """Used from one event loop. rows: None without a store, where there are no blocks."""

    def __init__(self, rows: SigningBlockRows | None) -> None:
        self._rows = rows
        # A read that began before a change must not end after the read that follows the change.
        self._reading = AsyncLock()
        # None until the store has answered: a block that is not known must not be missed.
        self._blocks: Mapping[_Subject, SigningBlock] | None = {} if rows is None else None

    async def run(self) -> None:
        """Read the blocks again and again, until cancelled; the last ones hold while the store is down.

        Without a store it returns at once.
        """
        while self._rows is not None:
            await asyncio.sleep(POLL_S)
            with suppress(StoreDown):
                await self.load()

    def blocking_error(self) -> str | None:
        """Return why nothing is signed; None once the blocks were read."""
        return _NOT_READ if self._blocks is None else None

    def find(self, message: UnsignedMessage) -> SigningBlock | None:
        """Return a block of a message, None if there is none. Raises StoreDown until the blocks were read."""
        blocks = self._blocks
        if blocks is None:
            raise StoreDown(_NOT_READ)
        if not blocks:
            return None
        return next((blocks[subject] for subject in _subjects(message) if subject in blocks), None)

    def check(self, message: UnsignedMessage) -> None:
        """Raise SigningBlocked for a blocked message, StoreDown until the blocks were read."""
        block = self.find(message)
        if block is not None:
            raise SigningBlocked(block)

    async def load(self) -> Sequence[SigningBlock]:
        """Read the blocks and return them, oldest first. Raises StoreDown."""
        if self._rows is None:
            return ()
        async with self._reading:
            blocks = await self._rows.load()
            _log_changes(() if self._blocks is None else self._blocks.values(), blocks)
            self._blocks = {(block.kind, block.value): block for block in blocks}
        return blocks

    async def add(self, block: SigningBlock) -> None:
        """Add a block, or replace the one of its kind and value; it is in force on return. Raises StoreDown."""
        assert self._rows is not None
        await self._rows.add(block)
        await self.load()

    async def remove(self, block: SigningBlock) -> None:
        """Remove a block. Raises StoreDown."""
        assert self._rows is not None
        await self._rows.remove(block.kind, block.value)
        await self.load()


def _subjects(message: UnsignedMessage) -> Iterator[_Subject]:
    """Yield what a block of the message may name. A Teleporter message has a sender and an id of its own."""
    yield SigningBlockKind.SOURCE_CHAIN, id_text(message.source_chain_id)
    yield SigningBlockKind.MESSAGE_ID, hex_text(message.id)
    with suppress(MalformedMessage):
        call = AddressedCall.parse(message.payload)
        yield SigningBlockKind.SENDER, hex_text(call.source_address)
        teleporter = parse_teleporter(call.source_address, call.payload)
        if teleporter is not None:
            yield SigningBlockKind.SENDER, hex_text(teleporter.fields.sender)
            yield SigningBlockKind.DESTINATION, id_text(teleporter.fields.destination)
            yield SigningBlockKind.MESSAGE_ID, hex_text(teleporter.message_id(message.source_chain_id))


def _log_changes(before: Collection[SigningBlock], after: Collection[SigningBlock]) -> None:
    """Log the blocks that this daemon has not had, and those that it has no longer."""
    for event, blocks in (
        ("signing blocked", set(after) - set(before)),
        ("signing unblocked", set(before) - set(after)),
    ):
        for block in blocks:
            log.info(event, extra={"kind": block.kind, "value": block.value, "reason": block.reason})
