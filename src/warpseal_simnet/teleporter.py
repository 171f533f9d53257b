"""The Teleporter messenger of simulated EVM chains: which messages it has received.

Source of truth: icm-contracts `TeleporterMessenger.sol`.
"""

from __future__ import annotations

from typing import Final

from eth_hash.auto import keccak

from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import ChainID
from warpseal.warp.message import AddressedCall, UnsignedMessage

MESSENGER: Final = bytes.fromhex("253b2784c75e510dd0ff1da844684a1ac0aa5fcf")
# messageReceived(bytes32).
_MESSAGE_RECEIVED: Final = bytes.fromhex("ebc3b1ba")
_WORD_BYTES: Final = 32
_NONCE: Final = 1
_DESTINATION: Final = 3


class Messenger:
    """The messenger of one chain."""

    def __init__(self, chain_id: ChainID) -> None:
        self._chain_id = chain_id
        self._received_ids = set[bytes]()

    def receive(self, message: UnsignedMessage) -> bool:
        """Take a verified message; return whether it is new.

        Messages for other contracts or chains are always new.
        """
        message_id = self.id_of(message)
        if message_id is None:
            return True
        is_new = message_id not in self._received_ids
        self._received_ids.add(message_id)
        return is_new

    def call(self, data: bytes) -> bytes:
        """Return the result of a call; empty if the contract has no such function."""
        if data[:4] != _MESSAGE_RECEIVED or len(data) != 4 + _WORD_BYTES:
            return b""
        return int(data[4:] in self._received_ids).to_bytes(_WORD_BYTES, "big")

    def id_of(self, message: UnsignedMessage) -> bytes | None:
        """Return the Teleporter ID of a message for this chain; None of other messages."""
        try:
            call = AddressedCall.parse(message.payload)
        except MalformedMessage:
            return None
        words = [
            call.payload[at : at + _WORD_BYTES] for at in range(0, len(call.payload), _WORD_BYTES)
        ]
        if (
            call.source_address != MESSENGER
            or len(words) <= _DESTINATION
            or words[_DESTINATION] != self._chain_id
        ):
            return None
        sender = MESSENGER.rjust(_WORD_BYTES, b"\x00")
        return keccak(sender + message.source_chain_id + self._chain_id + words[_NONCE])
