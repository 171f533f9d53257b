"""Teleporter (ICM) messages, as their contracts put them into an addressed call.

Source of truth: icm-contracts `TeleporterMessenger.sol`; for the second version
`TeleporterMessageV2.sol` and `WarpAdapter.sol`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from warpseal.chains.evm.icm_events import MessageFields, decode_message, message_id
from warpseal.warp.ids import ChainID

_WORD_BYTES: Final = 32


class TeleporterMessage(NamedTuple):
    """A call of a contract on another chain.

    messenger: the contract that assigned the nonce.

    Version 1 sends its calls itself, version 2 through an adapter, and its fields have an origin.
    """

    messenger: bytes
    fields: MessageFields

    def message_id(self, source_chain_id: ChainID) -> bytes:
        """Return the message's id in the contracts, 32 bytes; not that of the Warp message."""
        return message_id(
            self.messenger, source_chain_id, self.fields.destination, self.fields.nonce
        )


def parse_teleporter(sender: bytes, payload: bytes) -> TeleporterMessage | None:
    """Return the message in the payload of an addressed call from `sender`, if it is one.

    The bytes must be exactly the ABI encoding of the message.
    """
    if len(sender) != 20 or int.from_bytes(payload[:_WORD_BYTES]) != _WORD_BYTES:
        return None
    for is_v2 in (False, True):
        fields = decode_message(payload, _WORD_BYTES, is_v2=is_v2)
        if fields is not None:
            return TeleporterMessage(sender if fields.origin is None else fields.origin, fields)
    return None
