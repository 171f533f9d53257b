"""Uptime of peers, which each daemon stores under its own node id.

Counters are absolute and never decrease.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import starmap
from typing import Any, Final

from warpseal.store.connection import Connection
from warpseal.store.database import Database
from warpseal.store.schema import OBSERVED_HOURS, OBSERVED_VALIDATIONS
from warpseal.store.values import HourRow, StoredUptime, ValidationRow
from warpseal.warp.ids import NodeID

# Signatures are committed between two of these writes.
_ROWS_PER_WRITE: Final = 1_000
_HOURS_PER_PRUNE: Final = 24
_MAX_HOURS_READ: Final = 24 * 366

# A row with larger counters stays, because the clock was set back or two daemons share an identity.
_SAVE_HOUR: Final = f"""
{OBSERVED_HOURS.upsert_text}
WHERE excluded.observed_ms >= observed_hours.observed_ms
"""
_SAVE_VALIDATION: Final = f"""
{OBSERVED_VALIDATIONS.upsert_text}
WHERE excluded.observed_ms >= observed_validations.observed_ms
"""
_VALIDATIONS: Final = """
SELECT validation_id, node_id, first_at, seen_at, observed_ms, connected_ms
FROM observed_validations
WHERE observer = ?
"""
_HOURS: Final = """
SELECT hour, node_id, observed_ms, connected_ms
FROM observed_hours
WHERE hour >= ? AND observer = ?
"""
_RECENT: Final = "SELECT DISTINCT node_id FROM observed_hours WHERE hour >= ? AND observer = ?"
# Each hour is read by its key, because the rows of one node lie far apart: the rows of all nodes in
# an hour are written together.
_HOURS_OF: Final = """
WITH RECURSIVE hours (hour) AS (
  SELECT CAST(? AS BIGINT)
  UNION ALL
  SELECT hour + 1 FROM hours WHERE hour < ?
)
SELECT hour, observed_ms, connected_ms
FROM observed_hours
WHERE hour IN (SELECT hour FROM hours) AND observer = ? AND node_id = ?
ORDER BY hour
"""
_CONNECTED: Final = """
SELECT node_id, max(connected_ms)
FROM observed_hours
WHERE hour >= ? AND observer = ?
GROUP BY node_id
"""
_DELETE_UNSEEN: Final = "DELETE FROM observed_validations WHERE seen_at < ?"
_OLDEST_HOUR: Final = "SELECT min(hour) FROM observed_hours"
_DELETE_HOURS: Final = "DELETE FROM observed_hours WHERE hour < ?"


class UptimeRows:
    """The uptime that the daemons of one store observed.

    Each method takes as `observer` the node id of the daemon that observed.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self, observer: NodeID, first_hour: int, recent_since_hour: int) -> StoredUptime:
        """Return the uptime with which this observer starts: hours from `first_hour` on.

        Raises StoreDown.
        """
        return await self._database.read(
            lambda connection: _load(connection, observer, first_hour, recent_since_hour)
        )

    async def write(
        self, observer: NodeID, validations: Sequence[ValidationRow], hours: Sequence[HourRow]
    ) -> None:
        """Write rows in several transactions; return when they are committed. Raises StoreDown."""
        for write in _writes_of(observer, validations, hours):
            await self._database.write(write)

    def write_later(
        self, observer: NodeID, validations: Sequence[ValidationRow], hours: Sequence[HourRow]
    ) -> None:
        """Write rows before the store closes; they are lost if it is down."""
        for write in _writes_of(observer, validations, hours):
            self._database.call(write)

    async def hours(
        self, observer: NodeID, node_id: NodeID, first_hour: int, last_hour: int
    ) -> Sequence[HourRow]:
        """Return the hours of a node, both bounds included, oldest first, a year at most.

        Raises StoreDown, after a second at most.
        """
        hours = range(first_hour, last_hour + 1)[-_MAX_HOURS_READ:]
        return await self._database.read(
            lambda connection: _hours_of(connection, observer, node_id, hours),
            self._database.settings.load_timeout_s,
        )

    async def connected_nodes(self, observer: NodeID, first_hour: int) -> Mapping[NodeID, bool]:
        """Return whether each node that was observed since `first_hour` was connected in that time.

        Raises StoreDown, after a second at most.
        """
        return await self._database.read(
            lambda connection: _connected_nodes(connection, observer, first_hour),
            self._database.settings.load_timeout_s,
        )

    async def prune(self, before_hour: int, unseen_since_unix_s: float) -> bool:
        """Delete some old rows of all observers; return whether there are more.

        Raises StoreDown.
        """
        return await self._database.write(
            lambda connection: _prune(connection, before_hour, unseen_since_unix_s)
        )


def _writes_of(
    observer: NodeID, validations: Sequence[ValidationRow], hours: Sequence[HourRow]
) -> Iterator[Callable[[Connection], None]]:
    """Yield writes of bounded size.

    Their rows are in the order of their keys, so that two daemons cannot deadlock.
    """
    validation_rows = [
        (
            observer,
            row.validation_id,
            row.node_id,
            row.first_at,
            row.seen_at,
            row.observed_ms,
            row.connected_ms,
        )
        for row in validations
    ]
    hour_rows = [
        (row.hour, observer, row.node_id, row.observed_ms, row.connected_ms) for row in hours
    ]
    yield from _bounded_writes(_SAVE_VALIDATION, sorted(validation_rows))
    yield from _bounded_writes(_SAVE_HOUR, sorted(hour_rows))


def _bounded_writes(
    text: str, rows: Sequence[tuple[Any, ...]]
) -> Iterator[Callable[[Connection], None]]:
    for begin in range(0, len(rows), _ROWS_PER_WRITE):
        part = rows[begin : begin + _ROWS_PER_WRITE]
        yield partial(Connection.run_many, text=text, rows=part)


def _load(
    connection: Connection, observer: NodeID, first_hour: int, recent_since_hour: int
) -> StoredUptime:
    return StoredUptime(
        tuple(starmap(ValidationRow, connection.fetch(_VALIDATIONS, observer))),
        tuple(starmap(HourRow, connection.fetch(_HOURS, first_hour, observer))),
        frozenset(
            NodeID(node_id) for (node_id,) in connection.fetch(_RECENT, recent_since_hour, observer)
        ),
    )


def _hours_of(
    connection: Connection, observer: NodeID, node_id: NodeID, hours: range
) -> list[HourRow]:
    if not hours:
        return []
    rows = connection.fetch(_HOURS_OF, hours[0], hours[-1], observer, node_id)
    return [
        HourRow(hour, node_id, observed_ms, connected_ms)
        for hour, observed_ms, connected_ms in rows
    ]


def _connected_nodes(
    connection: Connection, observer: NodeID, first_hour: int
) -> dict[NodeID, bool]:
    rows = connection.fetch(_CONNECTED, first_hour, observer)
    return {NodeID(node_id): connected_ms > 0 for node_id, connected_ms in rows}


def _prune(connection: Connection, before_hour: int, unseen_since_unix_s: float) -> bool:
    connection.run(_DELETE_UNSEEN, unseen_since_unix_s)
    oldest: int | None = connection.value(_OLDEST_HOUR)
    if oldest is None or oldest >= before_hour:
        return False
    until_hour = min(before_hour, oldest + _HOURS_PER_PRUNE)
    connection.run(_DELETE_HOURS, until_hour)
    return until_hour < before_hour
