"""A Bloom filter of the stored messages: a message that is not in it needs no query.

It is complete only if no other process writes to the database.
"""

from __future__ import annotations

import struct
from typing import Final

from sqlalchemy import Connection, select

from warpseal.store.schema import MESSAGES

# A megabyte. With a million messages, 2 % of the queries for unknown ones are in vain.
_BITS: Final = 2**23
_MAX_LOADED: Final = 2_000_000
_ROWS_PER_FETCH: Final = 10_000
# An id is a SHA-256 hash: its four parts are four hashes.
_HASHES: Final = struct.Struct("<4I")


class MessageFilter:
    """A set of message ids that may report an id that was not added, and never misses one."""

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
        """Add all messages of a database; if there are too many, report every message as possibly stored."""
        query = select(MESSAGES.c.message_id).limit(_MAX_LOADED + 1)
        loaded = 0
        for (message_id,) in connection.execution_options(yield_per=_ROWS_PER_FETCH).execute(query):
            self.add(message_id)
            loaded += 1
        self._holds_all = loaded > _MAX_LOADED
