"""What a signing block may name of a message; an error for a message that is blocked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from warpseal.messages.errors import SigningBlocked
from warpseal.messages.teleporter import parse_teleporter
from warpseal.resources.text import hex_text
from warpseal.store.signing_blocks import SigningBlocks
from warpseal.store.values import SigningBlockKind
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import id_text
from warpseal.warp.message import AddressedCall, UnsignedMessage


def check_allowed(blocks: SigningBlocks, message: UnsignedMessage) -> None:
    """Raise SigningBlocked for a blocked message, StoreDown until the blocks were read."""
    check_subjects(blocks, subjects(message))


def check_subjects(blocks: SigningBlocks, pairs: Iterable[tuple[str, str]]) -> None:
    """Raise SigningBlocked if a block has one of these kinds and values.

    Raises StoreDown until the blocks were read.
    """
    block = blocks.find(pairs)
    if block is not None:
        raise SigningBlocked(block)


def subjects(message: UnsignedMessage) -> Iterator[tuple[str, str]]:
    """Yield what a block of a message may name.

    A Teleporter message has a sender and an id of its own.
    """
    yield SigningBlockKind.SOURCE_CHAIN, id_text(message.source_chain_id)
    yield SigningBlockKind.MESSAGE_ID, hex_text(message.id)
    with suppress(MalformedMessage):
        call = AddressedCall.parse(message.payload)
        yield SigningBlockKind.SENDER, hex_text(call.source_address)
        teleporter = parse_teleporter(call.source_address, call.payload)
        if teleporter is not None:
            yield SigningBlockKind.SENDER, hex_text(teleporter.fields.sender)
            yield SigningBlockKind.DESTINATION, id_text(teleporter.fields.destination)
            yield (
                SigningBlockKind.MESSAGE_ID,
                hex_text(teleporter.message_id(message.source_chain_id)),
            )
