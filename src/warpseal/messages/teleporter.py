"""Teleporter (ICM) messages, as their contracts put them into an addressed call.

Source of truth: icm-contracts `TeleporterMessenger.sol`; for the second version `TeleporterMessageV2.sol` and
`WarpAdapter.sol`.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from warpseal.chains.evm.icm_events import decode_message, decode_tail, message_id
from warpseal.warp.ids import ChainID

_WORD_BYTES: Final = 32


class TeleporterMessage(Struct, frozen=True):
    """A call of a contract on another chain. Addresses have 20 bytes.

    messenger: the contract that assigned the nonce. version 1 sends its calls itself, version 2 through an adapter.
    receipts: the nonces of messages that were delivered to the source chain, and the addresses of the rewards.
    """

    version: int
    messenger: bytes
    nonce: int
    sender: bytes
    destination_chain_id: ChainID
    destination: bytes
    gas_limit: int
    relayers: tuple[bytes, ...]
    receipts: tuple[tuple[int, bytes], ...]
    body: bytes

    def message_id(self, source_chain_id: ChainID) -> bytes:
        """Return the 32 bytes by which the contracts identify the message; not the id of the Warp message."""
        return message_id(self.messenger, source_chain_id, self.destination_chain_id, self.nonce)


def parse_teleporter(sender: bytes, payload: bytes) -> TeleporterMessage | None:
    """Return the message in the payload of an addressed call from `sender`, or None if the payload is something else.

    The bytes must be exactly the ABI encoding of the message.
    """
    if len(sender) != 20 or int.from_bytes(payload[:_WORD_BYTES]) != _WORD_BYTES:
        return None
    for is_v2 in (False, True):
        fields = decode_message(payload, _WORD_BYTES, is_v2=is_v2)
        if fields is not None:
            relayers, receipts = decode_tail(fields.tail)
            return TeleporterMessage(
                version=1 + is_v2,
                messenger=sender if fields.origin is None else fields.origin,
                nonce=fields.nonce,
                sender=fields.sender,
                destination_chain_id=fields.destination,
                destination=fields.recipient,
                gas_limit=fields.gas_limit,
                relayers=relayers,
                receipts=receipts,
                body=fields.body,
            )
    return None
