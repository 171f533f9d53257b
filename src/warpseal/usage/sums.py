"""Adds usage to the rows of its hour, day, week and month.

A bucket has rows by all labels together, by each label, and one by none. A flush is added in one
transaction with a row that identifies it, so that it counts once, however often it is written.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from warpseal.runtime.throttle import Throttle
from warpseal.store.connection import Connection
from warpseal.usage.calls import LABELS, Dimension, UsageLabels, UsageTotals
from warpseal.usage.fold import FOLDED_FROM, FOLDS, admit
from warpseal.usage.periods import Level, bucket_start
from warpseal.usage.response_times import decode_counts, encode_counts, pack_counts
from warpseal.usage.schema import BUCKETS, FLUSHES, USAGE

log = logging.getLogger(__name__)


class RowKey(NamedTuple):
    """The key of a row in its bucket.

    texts: all labels; labels that the dimension does not have are empty.
    """

    dimension: Dimension
    texts: tuple[str, ...]


_NO_LABELS: Final = ("",) * len(LABELS)
_KEY_NAMES: Final = ("dimension", *UsageLabels._fields)
_SIZES: Final = """\
SELECT combinations, size_bytes
FROM usage_buckets
WHERE level = ? AND start = ?
"""
_INSERT_FLUSH: Final = f"{FLUSHES.insert_text} ON CONFLICT DO NOTHING"
_KEPT_FLUSHES: Final = """\
SELECT run, sequence, minute, sums
FROM usage_flushes
WHERE sums IS NOT NULL
LIMIT ?
"""
_CLEAR_FLUSH: Final = """\
UPDATE usage_flushes
SET sums = NULL, written_at = ?
WHERE run = ? AND sequence = ? AND sums IS NOT NULL
"""
_REMOVE_FLUSH: Final = "DELETE FROM usage_flushes WHERE run = ? AND sequence = ?"
_KEYS_AT_ONCE: Final = 100
_FLUSHES_AT_ONCE: Final = 50
# Bytes of a row besides its labels and times.
_ROW_BYTES: Final = 60

_encode: Final = msgspec.msgpack.Encoder().encode
_sums_decoder: Final = msgspec.msgpack.Decoder(list[tuple[UsageLabels, UsageTotals]])


class RowSums(msgspec.Struct, gc=False):
    """The sums of a row.

    times: packed counts of response_times.py.
    """

    requests: int = 0
    invalid: int = 0
    failed: int = 0
    credits: int = 0
    credits_wasted: int = 0
    times: int = 0

    @classmethod
    def of(cls, totals: UsageTotals) -> RowSums:
        """Return the sums of totals."""
        return cls(
            requests=totals.requests,
            invalid=totals.invalid,
            failed=totals.failed,
            credits=totals.credits,
            credits_wasted=totals.credits_wasted,
            times=pack_counts(totals.times),
        )

    def add(self, other: RowSums, sign: int = 1) -> None:
        """Add other sums, or with the sign -1 subtract them."""
        self.requests += sign * other.requests
        self.invalid += sign * other.invalid
        self.failed += sign * other.failed
        self.credits += sign * other.credits
        self.credits_wasted += sign * other.credits_wasted
        self.times += sign * other.times


class _StoredRow(NamedTuple):
    """The sums of a row, and the bytes of its times."""

    sums: RowSums
    times_bytes: int


class Flush(NamedTuple):
    """Usage of one minute that one daemon recorded until one flush.

    run, sequence: identity of the flush: the run of the daemon, and a number.
    minute: first second of the minute.
    sums: encoded pairs of labels and totals.
    """

    run: bytes
    sequence: int
    minute: int
    sums: bytes

    @classmethod
    def of(
        cls, run: bytes, sequence: int, minute: int, sums: Iterable[tuple[UsageLabels, UsageTotals]]
    ) -> Flush:
        """Return the flush of these sums."""
        return cls(run, sequence, minute, _encode(list(sums)))

    def decode(self) -> dict[UsageLabels, UsageTotals]:
        """Return the sums; log an error and return {} if they are damaged."""
        try:
            return dict(_sums_decoder.decode(self.sums))
        except msgspec.MsgspecError as error:
            fields = {"minute": self.minute, "reason": str(error)}
            log.error("usage of a minute is damaged, it does not count", extra=fields)
            return {}


def keep_flush(connection: Connection, flush: Flush, now: int) -> None:
    """Store a flush that is added later.

    now: unix seconds.
    """
    _insert_flush(connection, flush, now, flush.sums)


def add_flush(connection: Connection, flush: Flush, now: int, bound: int) -> None:
    """Add a flush that is not stored yet.

    now: unix seconds.
    bound: label combinations of a bucket.
    """
    if _insert_flush(connection, flush, now, None):
        add_sums(connection, flush.minute, flush.decode(), bound)


def add_kept_flush(connection: Connection, flush: Flush, now: int, bound: int) -> None:
    """Add a flush that `keep_flush` stored in the same database, unless it was added already."""
    if connection.run(_CLEAR_FLUSH, now, flush.run, flush.sequence):
        add_sums(connection, flush.minute, flush.decode(), bound)


def read_kept_flushes(connection: Connection) -> list[Flush]:
    """Return some of the flushes that are yet to be added, empty if all are added."""
    return list(map(Flush._make, connection.fetch(_KEPT_FLUSHES, _FLUSHES_AT_ONCE)))


def remove_flush(connection: Connection, flush: Flush) -> None:
    """Remove a flush that was added to another database."""
    connection.run(_REMOVE_FLUSH, flush.run, flush.sequence)


def add_sums(
    connection: Connection, time: int, sums: Mapping[UsageLabels, UsageTotals], bound: int
) -> None:
    """Add sums to the hour, day, week and month that have a time.

    bound: label combinations of a bucket.
    """
    if not sums:
        return
    throttle = Throttle()
    if connection.is_postgresql:
        # Two daemons that add to the same rows would each lose the sums of the other.
        connection.run("LOCK TABLE usage_buckets IN SHARE ROW EXCLUSIVE MODE")
    unfolded = rows_of(sums, throttle)
    for level in Level:
        bucket = _Bucket(connection, level, bucket_start(level, time), throttle)
        admitted = bucket.admit(sums, bound)
        bucket.add(unfolded if admitted is sums else rows_of(admitted, throttle))


def add_rows(
    connection: Connection, level: Level, start: int, rows: Mapping[RowKey, RowSums]
) -> None:
    """Add rows of a bucket, whatever their number."""
    _Bucket(connection, level, start, Throttle()).add(rows)


def decode_times(raw: bytes, level: Level, start: int) -> int:
    """Return the packed times of a row; log an error and return 0 if they are damaged.

    level, start: bucket of the row.
    """
    try:
        return decode_counts(raw)
    except (ValueError, struct.error) as error:
        fields = {"level": level.name, "start": start, "reason": str(error)}
        log.error("response times of usage are damaged, they do not count", extra=fields)
        return 0


def texts_of(labels: UsageLabels) -> tuple[str, ...]:
    """Return labels as a row has them."""
    path, method, status, api_key, country, user_agent = labels
    return path, method, str(status), api_key, country, user_agent


def key_of(dimension: Dimension, *texts: str) -> RowKey:
    """Return the key of a row.

    texts: all labels, the one of the dimension, or none.
    """
    if dimension in LABELS:
        place = LABELS.index(dimension)
        texts = (*_NO_LABELS[:place], *texts, *_NO_LABELS[place + 1 :])
    return RowKey(dimension, texts or _NO_LABELS)


def rows_of(sums: Mapping[UsageLabels, UsageTotals], throttle: Throttle) -> dict[RowKey, RowSums]:
    """Return the rows of all dimensions."""
    rows: dict[RowKey, RowSums] = {}
    for labels, totals in throttle.steps(sums.items()):
        texts = texts_of(labels)
        row = rows[key_of(Dimension.ALL, *texts)] = RowSums.of(totals)
        for key in (key_of(Dimension.NONE), *map(key_of, LABELS, texts)):
            if key not in rows:
                rows[key] = RowSums()
            rows[key].add(row)
    return rows


class _Bucket:
    """The rows of one bucket in a transaction."""

    def __init__(
        self, connection: Connection, level: Level, start: int, throttle: Throttle
    ) -> None:
        self._connection = connection
        self._level = level
        self._start = start
        self._throttle = throttle
        sizes = connection.fetch(_SIZES, int(level), start)
        self._combinations, self._size_bytes = sizes[0] if sizes else (0, 0)

    def admit(
        self, sums: Mapping[UsageLabels, UsageTotals], bound: int
    ) -> Mapping[UsageLabels, UsageTotals]:
        """Return sums with the labels for which the bucket has room.

        The same mapping is returned if the bucket has room for all.
        """
        if self._combinations + len(sums) <= FOLDED_FROM * bound:
            return sums
        candidates: set[UsageLabels] = set()
        for labels in sums:
            candidates.add(labels)
            candidates.update(step(labels) for step in FOLDS)
        by_key = {key_of(Dimension.ALL, *texts_of(labels)): labels for labels in candidates}
        stored = {by_key[key] for key in self._find(by_key)}
        used = self._combinations
        admitted: dict[UsageLabels, UsageTotals] = {}
        for labels, totals in self._throttle.steps(sums.items()):
            folded = admit(labels, stored, used, bound)
            if folded not in stored:
                stored.add(folded)
                used += 1
            admitted.setdefault(folded, UsageTotals()).add(totals)
        return admitted

    def add(self, rows: Mapping[RowKey, RowSums]) -> None:
        """Add rows to those that are stored."""
        stored, values = self._find(rows), []
        for key, sums in self._throttle.steps(rows.items()):
            earlier = stored.get(key)
            if earlier is None:
                self._combinations += key.dimension is Dimension.ALL
                self._size_bytes += _ROW_BYTES + sum(map(len, key.texts))
            else:
                self._size_bytes -= earlier.times_bytes
                earlier.sums.add(sums)
                sums = earlier.sums
            times = encode_counts(sums.times)
            self._size_bytes += len(times)
            place = (int(self._level), int(key.dimension), self._start)
            counters = (sums.requests, sums.invalid, sums.failed, sums.credits, sums.credits_wasted)
            values.append((*place, *key.texts, *counters, times))
        self._connection.run_many(USAGE.upsert_text, values)
        sizes = (self._combinations, self._size_bytes)
        self._connection.run(BUCKETS.upsert_text, int(self._level), self._start, *sizes)

    def _find(self, keys: Iterable[RowKey]) -> dict[RowKey, _StoredRow]:
        """Return the stored rows by their keys; a key without a row is left out."""
        rows: dict[RowKey, _StoredRow] = {}
        remaining = iter(keys)
        while some := list(islice(remaining, _KEYS_AT_ONCE)):
            values: list[int | str] = []
            for key in some:
                values += (int(key.dimension), *key.texts)
            text = _text_by_keys(len(some))
            stored = self._connection.fetch(text, *values, int(self._level), self._start)
            for row in self._throttle.steps(stored):
                number, *texts, requests, invalid, failed, credits, wasted, raw = row
                times = decode_times(raw, self._level, self._start)
                sums = RowSums(requests, invalid, failed, credits, wasted, times)
                rows[RowKey(Dimension(number), tuple(texts))] = _StoredRow(sums, len(raw))
        return rows


@cache
def _text_by_keys(count: int) -> str:
    """Return the query of this number of keys.

    With a list of keys in the condition, or another join, SQLite would read all rows of the level.
    """
    names = ", ".join(_KEY_NAMES)
    key_columns = ", ".join(f"k.{name}" for name in _KEY_NAMES)
    has_key = " AND ".join(f"u.{name} = k.{name}" for name in _KEY_NAMES)
    key_marks = "(CAST(? AS SMALLINT)" + ", ?" * len(LABELS) + ")"
    keys = ", ".join([key_marks] * count)
    return f"""\
WITH k ({names}) AS (VALUES {keys})
SELECT {key_columns}, requests, invalid, failed, credits, credits_wasted, times
FROM k
CROSS JOIN usage u
WHERE {has_key} AND level = ? AND start = ?
"""


def _insert_flush(connection: Connection, flush: Flush, now: int, sums: bytes | None) -> bool:
    return connection.run(_INSERT_FLUSH, flush.run, flush.sequence, flush.minute, now, sums) > 0
