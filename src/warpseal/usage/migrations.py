"""The schema versions of the metrics database. The tables of the first version are read once, here.

A table of its sums is MessagePack in columns, compressed by Zstandard: of each label its values,
and by row the number of its value; five counters by row; the times of all rows, and by row their
bytes. Times are pairs of a bucket and its count, or a mark, the first bucket, the bytes of a count,
and the counts of all buckets from there on. Numbers are little-endian.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

import msgspec

from warpseal.runtime.zstd import Decompressor, ZstdError
from warpseal.store.connection import Connection
from warpseal.store.migrate import Migration
from warpseal.usage.calls import LABELS, Dimension, UsageLabels, UsageTotals
from warpseal.usage.periods import Level
from warpseal.usage.response_times import pack_counts
from warpseal.usage.schema import TABLES
from warpseal.usage.settings import UsageSettings
from warpseal.usage.sums import Flush, RowKey, RowSums, add_rows, add_sums, keep_flush, key_of

log = logging.getLogger(__name__)

_PAIR = struct.Struct("<hI")
_DENSE = struct.Struct("<hhH")
_DENSE_MARK = 2**15 - 1
_DENSE_CODES = {1: "B", 2: "H", 4: "I"}
_MAX_TABLE_BYTES = 1024 * 1024 * 1024
_DAMAGE = (
    ZstdError,
    msgspec.MsgspecError,
    IndexError,
    KeyError,
    ValueError,
    OverflowError,
    struct.error,
)

Rows = list[tuple[tuple[str, ...], UsageTotals]]


class _Columns(msgspec.Struct, array_like=True):
    values: list[list[str]]
    indices: list[bytes]
    counters: list[bytes]
    times: bytes
    lengths: bytes


def _create_first_tables(connection: Connection) -> None:
    serial, blob = ("BIGSERIAL", "BYTEA") if connection.is_postgresql else ("INTEGER", "BLOB")
    connection.run(f"""\
CREATE TABLE minutes (
    key {serial} PRIMARY KEY,
    run {blob} NOT NULL,
    sequence BIGINT NOT NULL,
    minute BIGINT NOT NULL,
    is_merged SMALLINT NOT NULL,
    combinations INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL,
    sums {blob} NOT NULL,
    UNIQUE (run, sequence)
)
""")
    connection.run(f"""\
CREATE TABLE buckets (
    level SMALLINT NOT NULL,
    start BIGINT NOT NULL,
    dimension SMALLINT NOT NULL,
    size_bytes INTEGER NOT NULL,
    sums {blob} NOT NULL,
    PRIMARY KEY (level, start, dimension)
)
""")
    connection.run(f"CREATE TABLE rollup (key {serial} PRIMARY KEY, merges BIGINT NOT NULL)")
    connection.run(f"""\
CREATE TABLE page_tokens (
    id {blob} NOT NULL PRIMARY KEY,
    expires_at BIGINT NOT NULL,
    body {blob} NOT NULL
)
""")
    connection.run("CREATE INDEX page_tokens_by_time ON page_tokens (expires_at)")


def _create_rows(connection: Connection) -> None:
    """Make the tables, and fill them from the tables of the first version.

    A damaged table is logged and left out.
    """
    TABLES.create_all(connection, if_missing=True)
    buckets = connection.fetch("SELECT DISTINCT level, start FROM buckets ORDER BY level, start")
    for level, start in buckets:
        add_rows(connection, Level(level), start, _rows_of_bucket(connection, level, start))
    for flush in _unmerged(connection):
        if buckets:
            sums = flush.decode()
            add_sums(connection, flush.minute, sums, UsageSettings().max_combinations)
        else:
            # The file may be of a daemon that did not know its network: the next start adds its
            # flushes to the buckets.
            keep_flush(connection, flush, flush.minute)
    for table in ("minutes", "buckets", "rollup"):
        connection.run(f"DROP TABLE {table}")


def _rows_of_bucket(connection: Connection, level: int, start: int) -> dict[RowKey, RowSums]:
    query = "SELECT dimension, sums FROM buckets WHERE level = ? AND start = ?"
    tables: dict[Dimension, Rows] = {}
    for number, raw in connection.fetch(query, level, start):
        dimension = Dimension(number)
        try:
            tables[dimension] = _decode(raw)
        except _DAMAGE as error:
            place = {"level": level, "start": start, "dimension": dimension.name}
            fields = {**place, "reason": str(error)}
            log.error("usage of a bucket is damaged, it is left out", extra=fields)
    if Dimension.NONE not in tables and tables:
        # Queries subtract groups from the total, so it may not be less than they are.
        total = UsageTotals()
        for _, totals in next(iter(tables.values())):
            total.add(totals)
        tables[Dimension.NONE] = [((), total)]
    rows_by_key: dict[RowKey, RowSums] = {}
    for dimension, rows in tables.items():
        for labels, totals in rows:
            rows_by_key[key_of(dimension, *labels)] = RowSums.of(totals)
    return rows_by_key


def _unmerged(connection: Connection) -> Iterator[Flush]:
    query = """\
SELECT run, sequence, minute, sums
FROM minutes
WHERE is_merged = 0
ORDER BY key
"""
    for run, sequence, minute, raw in connection.stream(query):
        sums: list[tuple[UsageLabels, UsageTotals]] = []
        try:
            for texts, totals in _decode(raw):
                labels = UsageLabels._make(texts)
                sums.append((labels._replace(status=int(labels.status)), totals))
        except (*_DAMAGE, TypeError) as error:
            fields = {"minute": minute, "reason": str(error)}
            log.error("usage of a minute is damaged, it is left out", extra=fields)
        else:
            yield Flush.of(run, sequence, minute, sums)


def _decode(raw: bytes) -> Rows:
    """Return the rows of a stored table."""
    content = Decompressor(_MAX_TABLE_BYTES).decompress(raw)
    columns = msgspec.msgpack.decode(content, type=_Columns)
    counters = [_numbers("Q", column) for column in columns.counters]
    numbers = [_numbers("I", column) for column in columns.indices]
    lengths = _numbers("I", columns.lengths)
    rows: Rows = []
    for place, end in enumerate(accumulate(lengths)):
        labels = tuple(
            values[column[place]] for values, column in zip(columns.values, numbers, strict=True)
        )
        requests, invalid, failed, credits, wasted = (column[place] for column in counters)
        times = _decode_times(columns.times[end - lengths[place] : end])
        pack_counts(times)  # Raises for buckets and counts that no call has.
        rows.append((labels, UsageTotals(requests, invalid, failed, credits, wasted, times)))
    if len(numbers) not in (0, 1, len(LABELS)):
        raise ValueError("the table has an unknown number of labels")
    return rows


def _decode_times(raw: bytes) -> dict[int, int]:
    if raw[:2] == _DENSE_MARK.to_bytes(2, "little"):
        _, first, size = _DENSE.unpack_from(raw)
        counts = _numbers(_DENSE_CODES[size], raw[_DENSE.size :])
        return {bucket: count for bucket, count in enumerate(counts, first) if count}
    times: dict[int, int] = {}
    for bucket, count in _PAIR.iter_unpack(raw):
        times[bucket] = times.get(bucket, 0) + count
    return times


def _numbers(code: str, raw: bytes) -> list[int]:
    count = len(raw) // struct.calcsize(f"<{code}")
    return list(struct.unpack(f"<{count}{code}", raw))


VERSIONS: Final = (Migration("0001", _create_first_tables), Migration("0002", _create_rows))
