"""Uptime that daemons observed of their peers, each under its own node id; counters are absolute and never decrease."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from sqlalchemy import Connection, delete, func, select

from warpseal.store.database import Database
from warpseal.store.schema import OBSERVED_HOURS, OBSERVED_VALIDATIONS
from warpseal.store.statements import Insert, Prepared, replacing
from warpseal.store.values import HourRow, StoredUptime, ValidationRow
from warpseal.warp.ids import NodeID

# Signatures are committed between two of these writes.
_ROWS_PER_WRITE: Final = 1_000
_HOURS_PER_PRUNE: Final = 24
_MAX_HOURS_READ: Final = 24 * 366


def _growing(statement: Insert) -> Insert:
    """Replace a row unless it has larger counters, because the clock was set back or two daemons share an identity."""
    return replacing(statement, where=statement.excluded.observed_ms >= statement.table.c.observed_ms)


_SAVE_HOUR: Final = Prepared(lambda into: _growing(into(OBSERVED_HOURS)), *OBSERVED_HOURS.c.keys())
_SAVE_VALIDATION: Final = Prepared(lambda into: _growing(into(OBSERVED_VALIDATIONS)), *OBSERVED_VALIDATIONS.c.keys())


class UptimeRows:
    """The observed uptime of all daemons of one store; observer: the node id of the observing daemon."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self, observer: NodeID, first_hour: int, recent_since_hour: int) -> StoredUptime:
        """Return the uptime with which this observer starts: hours from `first_hour` on. Raises StoreDown."""
        return await self._database.read(lambda connection: _load(connection, observer, first_hour, recent_since_hour))

    async def write(self, observer: NodeID, validations: Sequence[ValidationRow], hours: Sequence[HourRow]) -> None:
        """Write rows in several transactions; return when they are committed. Raises StoreDown."""
        for write in _writes_of(observer, validations, hours):
            await self._database.write(write)

    def write_later(self, observer: NodeID, validations: Sequence[ValidationRow], hours: Sequence[HourRow]) -> None:
        """Write rows before the store closes; they are lost if it is down."""
        for write in _writes_of(observer, validations, hours):
            self._database.call(write)

    async def hours(self, observer: NodeID, node_id: NodeID, first_hour: int, last_hour: int) -> Sequence[HourRow]:
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
        """Delete some older rows of all observers; return whether there are more. Raises StoreDown."""
        return await self._database.write(lambda connection: _prune(connection, before_hour, unseen_since_unix_s))


def _writes_of(
    observer: NodeID, validations: Sequence[ValidationRow], hours: Sequence[HourRow]
) -> Iterator[Callable[[Connection], None]]:
    """Yield writes of bounded size, rows in the order of their keys so that two daemons cannot deadlock."""
    validation_rows = [
        (observer, row.validation_id, row.node_id, row.first_at, row.seen_at, row.observed_ms, row.connected_ms)
        for row in validations
    ]
    hour_rows = [(row.hour, observer, row.node_id, row.observed_ms, row.connected_ms) for row in hours]
    for statement, rows in ((_SAVE_VALIDATION, sorted(validation_rows)), (_SAVE_HOUR, sorted(hour_rows))):
        for begin in range(0, len(rows), _ROWS_PER_WRITE):
            yield partial(statement.run, rows=rows[begin : begin + _ROWS_PER_WRITE])


def _load(connection: Connection, observer: NodeID, first_hour: int, recent_since_hour: int) -> StoredUptime:
    hours, validations = OBSERVED_HOURS, OBSERVED_VALIDATIONS
    ours = select(validations).where(validations.c.observer == observer)
    since = select(hours).where(hours.c.hour >= first_hour, hours.c.observer == observer)
    recent = select(hours.c.node_id).distinct().where(hours.c.hour >= recent_since_hour, hours.c.observer == observer)
    return StoredUptime(
        tuple(
            ValidationRow(validation_id, NodeID(node_id), *counts)
            for _, validation_id, node_id, *counts in connection.execute(ours)
        ),
        tuple(
            HourRow(row.hour, NodeID(row.node_id), row.observed_ms, row.connected_ms)
            for row in connection.execute(since)
        ),
        frozenset(map(NodeID, connection.execute(recent).scalars())),
    )


def _hours_of(connection: Connection, observer: NodeID, node_id: NodeID, hours: range) -> list[HourRow]:
    """Read each hour by its key, because the rows of one node lie far apart: each hour is written together."""
    table = OBSERVED_HOURS
    which = (table.c.hour.in_(list(hours)), table.c.observer == observer, table.c.node_id == node_id)
    rows = connection.execute(select(table).where(*which).order_by(table.c.hour))
    return [HourRow(row.hour, node_id, row.observed_ms, row.connected_ms) for row in rows]


def _connected_nodes(connection: Connection, observer: NodeID, first_hour: int) -> dict[NodeID, bool]:
    table = OBSERVED_HOURS
    longest = select(table.c.node_id, func.max(table.c.connected_ms)).group_by(table.c.node_id)
    rows = connection.execute(longest.where(table.c.hour >= first_hour, table.c.observer == observer))
    return {NodeID(node_id): connected_ms > 0 for node_id, connected_ms in rows}


def _prune(connection: Connection, before_hour: int, unseen_since_unix_s: float) -> bool:
    hours, validations = OBSERVED_HOURS, OBSERVED_VALIDATIONS
    connection.execute(delete(validations).where(validations.c.seen_at < unseen_since_unix_s))
    oldest: int | None = connection.execute(select(func.min(hours.c.hour))).scalar()
    if oldest is None or oldest >= before_hour:
        return False
    until_hour = min(before_hour, oldest + _HOURS_PER_PRUNE)
    connection.execute(delete(hours).where(hours.c.hour < until_hour))
    return until_hour < before_hour
