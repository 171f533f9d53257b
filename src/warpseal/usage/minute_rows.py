"""Minute rows: what one daemon recorded of one minute, in the metrics database.

A row is identified by the run of the daemon and its number in it, so that a row that is written twice counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection
from sqlalchemy.dialects import postgresql, sqlite

from warpseal.usage.schema import MINUTES


class MinuteRow(NamedTuple):
    """One row. minute: its first second. sums: an encoded SumTable of this many label combinations."""

    run: bytes
    sequence: int
    minute: int
    combinations: int
    sums: bytes


def insert_minute_rows(connection: Connection, rows: Sequence[MinuteRow]) -> None:
    """Add rows that are not stored yet."""
    if not rows:
        return
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    values = [{**row._asdict(), "is_merged": 0, "size_bytes": len(row.sums)} for row in rows]
    connection.execute(dialect.insert(MINUTES).on_conflict_do_nothing(), values)
