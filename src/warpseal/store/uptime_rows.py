"""Uptime that daemons observed of their peers, each under its own node id; counters are absolute and never decrease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Table, delete, func, select

from warpseal.store.ports import ReadSide, WriteSide
from warpseal.store.schema import OBSERVED_HOURS, OBSERVED_VALIDATIONS
from warpseal.store.settings import StoreSettings
from warpseal.store.statements import Insert, Prepared
from warpseal.store.values import HourRow, StoredUptime, ValidationRow
from warpseal.warp.ids import NodeID

# Signatures are committed between two of these writes.
_ROWS_PER_WRITE: Final = 1_000
_HOURS_PER_PRUNE: Final = 24
_MAX_HOURS_READ: Final = 24 * 366


def _growing(statement: Insert, table: Table, *key: str) -> Insert:
    """Replace a row unless it has larger counters, because the clock was set back or two daemons share an identity."""
    new = statement.excluded
    return statement.on_conflict_do_update(
        index_elements=list(key),
        set_={column.name: new[column.name] for column in table.columns if column.name not in key},
        where=new.observed_ms >= table.c.observed_ms,
    )


_KEEP_HOUR: Final = Prepared(
    lambda into: _growing(into(OBSERVED_HOURS), OBSERVED_HOURS, "hour", "observer", "node_id"),
    "hour", "observer", "node_id", "observed_ms", "connected_ms",
)  # fmt: skip
_KEEP_VALIDATION: Final = Prepared(
    lambda into: _growing(into(OBSERVED_VALIDATIONS), OBSERVED_VALIDATIONS, "observer", "validation_id"),
    "observer", "validation_id", "node_id", "first_at", "seen_at", "observed_ms", "connected_ms",
)  # fmt: skip

_Write = Callable[[Connection], None]


class UptimeRows:
    """The observed uptime of all daemons of one store; observer: the node id of the observing daemon."""

    def __init__(self, reads: ReadSide, writes: WriteSide, settings: StoreSettings) -> None:
        self._reads = reads
        self._writes = writes
        self._settings = settings

    async def load(self, observer: NodeID, first_hour: int, recent_since_hour: int) -> StoredUptime:
        """Return the uptime with which this observer starts: hours from `first_hour` on. Raises StoreDown."""
        return await self._reads.read(
            lambda connection: StoredUptime(
                _validations(connection, observer),
                _hours_since(connection, observer, first_hour),
                _recent_nodes(connection, observer, recent_since_hour),
            ),
            self._settings.call_timeout_s,
        )

    async def keep(self, observer: NodeID, validations: Sequence[ValidationRow], hours: Sequence[HourRow]) -> None:
        """Write rows in several transactions; return when they are committed. Raises StoreDown."""
        for write in _writes_of(observer, validations, hours):
            await asyncio.wrap_future(self._writes.call(write))

    def keep_later(self, observer: NodeID, validations: Sequence[ValidationRow], hours: Sequence[HourRow]) -> None:
        """Write rows before the store closes; they are lost if it is down."""
        for write in _writes_of(observer, validations, hours):
            self._writes.call(write)

    async def hours(self, observer: NodeID, node_id: NodeID, first_hour: int, last_hour: int) -> Sequence[HourRow]:
        """Return the hours of a node, both bounds included, oldest first, a year at most.

        Raises StoreDown, after a second at most.
        """
        asked = range(first_hour, last_hour + 1)[-_MAX_HOURS_READ:]
        return await self._reads.read(
            lambda connection: _hours_of(connection, observer, node_id, asked), self._settings.load_timeout_s
        )

    async def prune(self, before_hour: int, unseen_since_unix_s: float) -> bool:
        """Delete some older rows of all observers; return whether there are more. Raises StoreDown."""
        write = self._writes.call(lambda connection: _prune(connection, before_hour, unseen_since_unix_s))
        return await asyncio.wrap_future(write)


def _writes_of(observer: NodeID, validations: Sequence[ValidationRow], hours: Sequence[HourRow]) -> Iterator[_Write]:
    """Yield writes of bounded size, rows in the order of their keys so that two daemons cannot deadlock."""
    yield from _pieces(_KEEP_VALIDATION, sorted(_validation_tuple(observer, row) for row in validations))
    yield from _pieces(
        _KEEP_HOUR, sorted((row.hour, observer, row.node_id, row.observed_ms, row.connected_ms) for row in hours)
    )


def _pieces(statement: Prepared, rows: Sequence[tuple[Any, ...]]) -> Iterator[_Write]:
    def writing(piece: Sequence[tuple[Any, ...]]) -> _Write:
        return lambda connection: statement.run(connection, piece)

    for begin in range(0, len(rows), _ROWS_PER_WRITE):
        yield writing(rows[begin : begin + _ROWS_PER_WRITE])


def _validation_tuple(observer: NodeID, row: ValidationRow) -> tuple[Any, ...]:
    counters = (row.first_at, row.seen_at, row.observed_ms, row.connected_ms)
    return (observer, row.validation_id, row.node_id, *counters)


def _validations(connection: Connection, observer: NodeID) -> tuple[ValidationRow, ...]:
    table = OBSERVED_VALIDATIONS
    rows = connection.execute(select(table).where(table.c.observer == observer))
    return tuple(
        ValidationRow(
            bytes(row.validation_id),
            NodeID(bytes(row.node_id)),
            row.first_at,
            row.seen_at,
            row.observed_ms,
            row.connected_ms,
        )
        for row in rows
    )


def _hours_since(connection: Connection, observer: NodeID, first_hour: int) -> tuple[HourRow, ...]:
    table = OBSERVED_HOURS
    rows = connection.execute(select(table).where(table.c.hour >= first_hour, table.c.observer == observer))
    return tuple(HourRow(row.hour, NodeID(bytes(row.node_id)), row.observed_ms, row.connected_ms) for row in rows)


def _recent_nodes(connection: Connection, observer: NodeID, since_hour: int) -> frozenset[NodeID]:
    table = OBSERVED_HOURS
    which = (table.c.hour >= since_hour, table.c.observer == observer)
    found = connection.execute(select(table.c.node_id).distinct().where(*which)).scalars()
    return frozenset(NodeID(bytes(node_id)) for node_id in found)


def _hours_of(connection: Connection, observer: NodeID, node_id: NodeID, hours: range) -> list[HourRow]:
    """Read each hour by its key, because the rows of one node lie far apart: each hour is written together."""
    table = OBSERVED_HOURS
    which = (table.c.hour.in_(list(hours)), table.c.observer == observer, table.c.node_id == node_id)
    rows = connection.execute(select(table).where(*which).order_by(table.c.hour))
    return [HourRow(row.hour, node_id, row.observed_ms, row.connected_ms) for row in rows]


def _prune(connection: Connection, before_hour: int, unseen_since_unix_s: float) -> bool:
    hours, validations = OBSERVED_HOURS, OBSERVED_VALIDATIONS
    connection.execute(delete(validations).where(validations.c.seen_at < unseen_since_unix_s))
    oldest: int | None = connection.execute(select(func.min(hours.c.hour))).scalar()
    if oldest is None or oldest >= before_hour:
        return False
    until_hour = min(before_hour, oldest + _HOURS_PER_PRUNE)
    connection.execute(delete(hours).where(hours.c.hour < until_hour))
    return until_hour < before_hour
