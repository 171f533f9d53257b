"""The keys of ids, as the writer assigns them: an id that many rows name is stored once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sqlalchemy import Connection

from warpseal.index import bulk
from warpseal.index.keys import prefix_of
from warpseal.index.schema import IDS

ACCOUNT: Final = b"\x00"
"""In front of an account of the C-Chain, which is no address of P or X."""

_BATCH_ROWS: Final = 2_000
_BY_PREFIX: Final = "SELECT key, id FROM ids WHERE prefix IN {keys}"


class IdTable:
    """Keys of ids. `load` reads all ids of a batch at a time, then `keys` has them. capacity: how many are cached."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.keys: dict[bytes, int] = {}
        self._new: list[tuple[int, int, bytes]] = []
        self._next = 1

    def open(self, connection: Connection) -> None:
        """Continue behind the keys of the database."""
        ((last,),) = bulk.fetch(connection, "SELECT max(key) FROM ids")
        self._next = (last or 0) + 1
        self.keys.clear()
        self._new.clear()

    def load(self, connection: Connection, ids: Iterable[bytes]) -> None:
        """Find the keys of ids, or assign new ones, which `flush` writes."""
        keys = self.keys
        if len(keys) > self._capacity:
            self._evict_oldest()
        wanted = {raw for raw in ids if raw not in keys}
        found: set[bytes] = set()
        prefixes = sorted(map(prefix_of, wanted))
        for start in range(0, len(prefixes), _BATCH_ROWS):
            for key, raw in bulk.run(connection, _BY_PREFIX, prefixes[start : start + _BATCH_ROWS]):
                raw = bytes(raw)
                if raw in wanted:
                    keys[raw] = key
                    found.add(raw)
        # In one order, so that equal batches give equal keys.
        for raw in sorted(wanted - found):
            keys[raw] = self._next
            self._new.append((self._next, prefix_of(raw), raw))
            self._next += 1

    def key(self, raw: bytes) -> int:
        """Return the key of an id that was loaded. Raises KeyError."""
        return self.keys[raw]

    def flush(self, connection: Connection) -> None:
        """Write the new ids."""
        bulk.insert(connection, IDS, self._new)
        self._new = []

    def _evict_oldest(self) -> None:
        for raw in list(self.keys)[: self._capacity // 2]:
            del self.keys[raw]
