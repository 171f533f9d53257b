"""The addresses of nodes, which outlive the process; only changed rows are written."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

from warpseal.runtime.settings import DAY_S
from warpseal.store.connection import Connection
from warpseal.store.database import Database
from warpseal.store.errors import StoreDown
from warpseal.store.schema import ADDRESSES
from warpseal.store.values import AddressKind, AddressRow
from warpseal.warp.ids import NodeID

log = logging.getLogger(__name__)

_RowKey = tuple[NodeID, AddressKind]
_LOAD: Final = f"SELECT {ADDRESSES.names} FROM addresses ORDER BY worked_at, signed_at"
_DELETE: Final = "DELETE FROM addresses WHERE node_id = ? AND kind = ?"


class Addresses:
    """The stored addresses.

    While the store is down none are loaded or written, and no method raises.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._timeout_s = database.settings.address_timeout_s
        # The hash and time of each written row: a row that stays the same is written once a day.
        self._stored: dict[_RowKey, tuple[int, float]] = {}

    async def load(self) -> list[AddressRow]:
        """Return the stored addresses, last reached ones last; none while the store is down."""
        if not self._database.is_up:
            return []
        try:
            rows = await self._database.read(_all_rows, self._timeout_s)
        except StoreDown as error:
            log.warning("cannot load addresses of peers", extra={"reason": error.reason})
            return []
        self._stored |= {(row.node_id, row.kind): (hash(row), kept_at) for row, kept_at in rows}
        return [row for row, _ in rows]

    async def replace(self, rows: Iterable[AddressRow]) -> bool:
        """Store exactly these addresses of this daemon; return whether that succeeded.

        The addresses that other daemons stored stay.
        """
        now = time.time()
        rows_by_key = {(row.node_id, row.kind): row for row in rows}
        changed = [row for key, row in rows_by_key.items() if self._is_due(key, row, now)]
        gone = [key for key in self._stored if key not in rows_by_key]
        if not changed and not gone:
            return True
        try:
            await self._database.write(_writing(changed, gone, now), self._timeout_s)
        except StoreDown as error:
            log.debug("cannot write addresses of peers", extra={"reason": error.reason})
            return False
        self._stored = {
            key: stored_at for key, stored_at in self._stored.items() if key in rows_by_key
        }
        self._stored |= {(row.node_id, row.kind): (hash(row), now) for row in changed}
        return True

    def _is_due(self, key: _RowKey, row: AddressRow, now: float) -> bool:
        written_hash, kept_at = self._stored.get(key, (0, 0.0))
        return written_hash != hash(row) or now - kept_at > DAY_S


def _all_rows(connection: Connection) -> list[tuple[AddressRow, float]]:
    return [
        (AddressRow(NodeID(node_id), AddressKind(kind), *values), kept_at)
        for node_id, kind, *values, kept_at in connection.fetch(_LOAD)
    ]


def _writing(
    changed: Iterable[AddressRow], gone: Iterable[_RowKey], now: float
) -> Callable[[Connection], None]:
    saved = sorted(
        (row.node_id, row.kind.value, row.ip, row.port, row.worked_at, row.signed_at, now)
        for row in changed
    )

    def write(connection: Connection) -> None:
        connection.run_many(_DELETE, [(node_id, kind.value) for node_id, kind in sorted(gone)])
        connection.run_many(ADDRESSES.upsert_text, saved)

    return write
