"""Which messages are certainly not kept: a Bloom filter, so that a new message costs no question to the database.

Only where one process writes to a database does its memory know all that is in it.
"""

from __future__ import annotations

import struct
from typing import Final

from sqlalchemy import Connection, select

from warpseal.store.schema import MESSAGES

# A megabyte; of a million messages two in a hundred unknown ones are looked up in vain.
_BITS: Final = 2**23
_MAX_LOADED: Final = 2_000_000
_AT_ONCE: Final = 10_000
# The ids are SHA-256 already: four pieces of one are four hashes.
_HASHES: Final = struct.Struct("<4I")


class MessageFilter:
    """A set that may hold more than was added, and never less."""

    def __init__(self) -> None:
        self._bits = bytearray(_BITS // 8)
        self._holds_all = False

    def add(self, message_id: bytes) -> None:
        """Add a message id (32 bytes)."""
        for number in _HASHES.unpack_from(message_id):
            self._bits[(number % _BITS) >> 3] |= 1 << (number & 7)

    def __contains__(self, message_id: bytes) -> bool:
        bits = self._bits
        return self._holds_all or all(
            bits[(number % _BITS) >> 3] >> (number & 7) & 1 for number in _HASHES.unpack_from(message_id)
        )

    def load(self, connection: Connection) -> None:
        """Add all messages of a database; of one too large for that, take it that it may hold any."""
        query = select(MESSAGES.c.message_id).limit(_MAX_LOADED + 1)
        loaded = 0
        for (message_id,) in connection.execution_options(yield_per=_AT_ONCE).execute(query):
            self.add(message_id)
            loaded += 1
        self._holds_all = loaded > _MAX_LOADED


class NullMessageFilter(MessageFilter):
    """Where nothing is kept, whatever is added."""

    def __init__(self) -> None:
        """Need no bits."""

    def add(self, message_id: bytes) -> None:
        """Do nothing."""

    def __contains__(self, message_id: bytes) -> bool:
        return False
