"""The tables of the metrics database. Times are unix seconds."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import BigInteger, Column, Index, LargeBinary, MetaData, SmallInteger, Table, Text

from warpseal.usage.calls import UsageLabels

METADATA: Final = MetaData()


def _number(name: str, **options: Any) -> Column[Any]:
    return Column(name, BigInteger, nullable=False, **options)


def _bytes(name: str, **options: Any) -> Column[Any]:
    return Column(name, LargeBinary, nullable=False, **options)


# Sums of calls. level, dimension: numbers of periods.py and calls.py. start: first second of the bucket. Labels that
# the dimension does not have are empty. times: see response_times.py.
USAGE: Final = Table(
    "usage",
    METADATA,
    Column("level", SmallInteger, primary_key=True, autoincrement=False),
    Column("dimension", SmallInteger, primary_key=True, autoincrement=False),
    Column("start", BigInteger, primary_key=True, autoincrement=False),
    *(Column(name, Text, primary_key=True) for name in UsageLabels._fields),
    *(_number(name) for name in ("requests", "invalid", "failed", "credits", "credits_wasted")),
    _bytes("times"),
    sqlite_with_rowid=False,
)
# The buckets that have rows. combinations: rows of all labels. size_bytes: size of all rows, about.
BUCKETS: Final = Table(
    "usage_buckets",
    METADATA,
    Column("level", SmallInteger, primary_key=True, autoincrement=False),
    Column("start", BigInteger, primary_key=True, autoincrement=False),
    _number("combinations"),
    _number("size_bytes"),
)
# What one daemon recorded of one minute until one flush. run: random id of a daemon's run, which numbers its flushes.
# sums: encoded until they are added to the buckets, then null: the row is kept for a day, so that they count once.
FLUSHES: Final = Table(
    "usage_flushes",
    METADATA,
    _bytes("run", primary_key=True),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    _number("minute"),
    _number("written_at"),
    Column("sums", LargeBinary),
    Index("usage_flushes_by_time", "written_at"),
)

# One row for each page token of the Metrics API. id: the 16 bytes of a UUID.
PAGE_TOKENS: Final = Table(
    "page_tokens",
    METADATA,
    _bytes("id", primary_key=True),
    _number("expires_at"),
    _bytes("body"),
    Index("page_tokens_by_time", "expires_at"),
)
