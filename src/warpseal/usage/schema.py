"""The tables of the metrics database. Times are unix seconds; `sums` are encoded tables of sums, see sum_table.py."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    UniqueConstraint,
    text,
)

METADATA: Final = MetaData()
# SQLite numbers rows by a column of exactly this type.
_Key = BigInteger().with_variant(Integer(), "sqlite")
# Compared as literal text, because both databases use a partial index only then.
UNMERGED: Final = text("is_merged = 0")


def _number(name: str, **options: Any) -> Column[Any]:
    return Column(name, BigInteger, nullable=False, **options)


def _bytes(name: str, **options: Any) -> Column[Any]:
    return Column(name, LargeBinary, nullable=False, **options)


# The sums that one daemon recorded of one minute until one flush. run: random id of a daemon's run, which numbers its
# rows. minute: its first second. combinations: the number of label combinations in `sums`.
MINUTES: Final = Table(
    "minutes",
    METADATA,
    Column("key", _Key, primary_key=True),
    _bytes("run"),
    _number("sequence"),
    _number("minute"),
    Column("is_merged", SmallInteger, nullable=False),
    Column("combinations", Integer, nullable=False),
    Column("size_bytes", Integer, nullable=False),
    _bytes("sums"),
    UniqueConstraint("run", "sequence"),
    Index("minutes_unmerged", "minute", sqlite_where=UNMERGED, postgresql_where=UNMERGED),
    Index("minutes_by_time", "minute", "size_bytes"),
)
# level, dimension: numbers of periods.py and sum_table.py. start: first second of the bucket.
BUCKETS: Final = Table(
    "buckets",
    METADATA,
    Column("level", SmallInteger, primary_key=True, autoincrement=False),
    Column("start", BigInteger, primary_key=True, autoincrement=False),
    Column("dimension", SmallInteger, primary_key=True, autoincrement=False),
    Column("size_bytes", Integer, nullable=False),
    _bytes("sums"),
    Index("buckets_by_time", "level", "start", "size_bytes"),
)
# One row. merges: the number of merges, which a merge compares, so that two leaders cannot change a bucket at once.
ROLLUP: Final = Table("rollup", METADATA, Column("key", _Key, primary_key=True), _number("merges"))

# One row for each page token of the Metrics API. id: the 16 bytes of a UUID.
PAGE_TOKENS: Final = Table(
    "page_tokens",
    METADATA,
    _bytes("id", primary_key=True),
    _number("expires_at"),
    _bytes("body"),
    Index("page_tokens_by_time", "expires_at"),
)
