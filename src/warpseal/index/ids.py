"""The keys of ids, as the writer assigns them: an id that many rows name is stored once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from warpseal.index import bulk
from warpseal.index.keys import prefix_of
from warpseal.index.schema import IDS
from warpseal.ledger.outputs import LedgerOutput
from warpseal.store.connection import Connection

ACCOUNT: Final = b"\x00"
"""In front of an account of the C-Chain, which is no address of P or X."""


class IdTable:
    """Keys of ids. `load` reads all ids of a batch at a time, then `keys` has them. capacity: number of cached ones."""

    def __init__(self, connection: Connection, capacity: int) -> None:
        self._capacity = capacity
        self.keys: dict[bytes, int] = {}
        self._new: list[tuple[int, int, bytes]] = []
        ((last,),) = connection.fetch("SELECT max(key) FROM ids")
        self._next = (last or 0) + 1

    def load(self, connection: Connection, ids: Iterable[bytes]) -> None:
        """Find the keys of ids, or assign new ones, which `flush` writes."""
        keys = self.keys
        if len(keys) > self._capacity:
            for raw in list(keys)[: self._capacity // 2]:
                del keys[raw]
        missing = {raw for raw in ids if raw not in keys}
        keys.update(bulk.fetch_by_id(connection, "SELECT id, key FROM ids WHERE prefix IN {keys}", missing))
        # In one order, so that equal batches give equal keys.
        for raw in sorted(missing - keys.keys()):
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


def ids_of_output(output: LedgerOutput) -> tuple[bytes, ...]:
    """Return the ids whose keys the row of an output needs."""
    return (output.asset_id, *output.addresses)
