"""Tables of sums by labels, in columns: how minute rows and buckets are stored, added to and read.

A table is MessagePack, compressed by Zstandard. A label is a number into the list of its column's values; counters are
64-bit little-endian numbers; times are the sketches of the rows, one after another, beside their lengths. A sketch is
either pairs of a bucket and its count, 16 and 32 bits, where a larger count follows in parts; or, if that is shorter, a
mark, its first bucket, the bytes of a count, 16 bits each, and the counts of all buckets from the first to the last.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import accumulate
from typing import Any, Final

import msgspec
import zstandard

from warpseal.runtime.throttle import Throttle
from warpseal.usage.calls import UsageLabels, UsageTotals
from warpseal.usage.errors import UsageDamaged

Labels = tuple[str, ...]
"""Labels of a row; a status is decimal text."""


class Dimension(IntEnum):
    """The labels by which the sums of a bucket are stored: all of them, none, or one. The numbers are stored."""

    ALL = 0
    NONE = 1
    PATH = 2
    METHOD = 3
    STATUS = 4
    API_KEY = 5
    COUNTRY = 6
    USER_AGENT = 7


LABELS: Final = (
    Dimension.PATH,
    Dimension.METHOD,
    Dimension.STATUS,
    Dimension.API_KEY,
    Dimension.COUNTRY,
    Dimension.USER_AGENT,
)
"""The dimensions of single labels, in the order of UsageLabels."""

Sums = dict[Labels, UsageTotals]

DAMAGE: Final = (IndexError, ValueError, struct.error)
"""Errors of reading the rows of a damaged table that could be decoded."""

# Read faster than at level 3, and hardly larger.
_LEVEL: Final = 1
_MAX_BYTES: Final = 1024**3
# Bytes of content that are compressed or decompressed in one step, about 0.2 ms.
_PIECE_BYTES: Final = 64 * 1024
COUNTERS: Final = 5
"""Counters of a row: requests, invalid and failed ones, credits, wasted credits."""
_NUMBER_BYTES: Final = 4
_COUNTER_BYTES: Final = 8
_encode: Final = msgspec.msgpack.Encoder().encode
_PAIR: Final = struct.Struct("<hI")
_MAX_COUNT: Final = 2**32 - 1
_DENSE: Final = struct.Struct("<hhH")
DENSE_BYTES: Final = _DENSE.size
"""The bytes before the counts of a dense sketch."""
DENSE_MARK: Final = 2**15 - 1
_DENSE_START: Final = DENSE_MARK.to_bytes(2, "little")
DENSE_CODES: Final = {1: "B", 2: "H", 4: "I"}


class StoredTable(msgspec.Struct, array_like=True, gc=False):
    """A table as it is stored. times: of all rows. lengths: bytes of the times of each row, 32 bits."""

    values: list[list[str]]
    indices: list[memoryview]
    counters: list[memoryview]
    times: memoryview
    lengths: memoryview

    @classmethod
    def decode(cls, raw: bytes, decompressor: zstandard.ZstdDecompressor) -> StoredTable:
        """Return a table without copying its columns. decompressor: not shared by threads. Raises UsageDamaged."""
        try:
            return cls.parse(decompressor.decompress(raw, max_output_size=_MAX_BYTES))
        except zstandard.ZstdError as error:
            raise UsageDamaged(str(error)) from None

    @classmethod
    def parse(cls, content: bytes | bytearray) -> StoredTable:
        """Return a table that is not compressed, without copying its columns. Raises UsageDamaged."""
        try:
            stored = _decode_stored(content)
        except msgspec.MsgspecError as error:
            raise UsageDamaged(str(error)) from None
        stored._check()
        return stored

    def _check(self) -> None:
        """Raise UsageDamaged if the columns have different lengths."""
        count, rest = divmod(len(self.lengths), _NUMBER_BYTES)
        if (
            rest
            or len(self.values) != len(self.indices)
            or len(self.counters) != COUNTERS
            or any(len(column) != count * _NUMBER_BYTES for column in self.indices)
            or any(len(column) != count * _COUNTER_BYTES for column in self.counters)
        ):
            raise UsageDamaged("the columns have different lengths")
        if sum(_array("I", self.lengths)) != len(self.times):
            raise UsageDamaged("the times have another length")


_decode_stored: Final = msgspec.msgpack.Decoder(StoredTable).decode


class SumTable:
    """Sums by labels. columns: of each label the values, and the number of its value by row."""

    __slots__ = ("_ends", "_joined_times", "_positions", "_times", "columns", "counters")

    def __init__(self, width: int) -> None:
        self.columns: list[tuple[list[str], array[int]]] = [([], array("I")) for _ in range(width)]
        self.counters: tuple[array[int], ...] = tuple(array("Q") for _ in range(COUNTERS))
        # Encoded times by row. Those of a decoded table stay joined until a row changes.
        self._times: list[bytes] | None = []
        self._joined_times = b""
        self._ends: list[int] = []
        self._positions: dict[Labels, int] | None = None

    @classmethod
    def of(cls, sums: Mapping[Labels, UsageTotals], width: int, throttle: Throttle) -> SumTable:
        """Return a table of these sums. width: the number of labels."""
        table = cls(width)
        table.add(sums, throttle)
        return table

    @classmethod
    def decode(cls, raw: bytes, throttle: Throttle) -> SumTable:
        """Return a stored table. Raises UsageDamaged."""
        table, stored = cls(0), StoredTable.parse(_decompress(raw, throttle))
        indices = [_array("I", column) for column in stored.indices]
        table.columns = list(zip(stored.values, indices, strict=True))
        table.counters = tuple(_array("Q", column) for column in stored.counters)
        table._times, table._joined_times = None, bytes(stored.times)
        table._ends = list(accumulate(_array("I", stored.lengths)))
        return table

    def encode(self, throttle: Throttle) -> bytes:
        """Return the table as it is stored."""
        values, indices = [column[0] for column in self.columns], [_bytes(column[1]) for column in self.columns]
        times, lengths = bytearray(), array("I")
        for row in throttle.steps(map(self.times, range(len(self)))):
            times += row
            lengths.append(len(row))
        # An array of five whose fourth item is written by hand: msgspec would copy the times of all rows at once.
        head = _encode((values, indices, list(map(_bytes, self.counters))))
        start = b"\x95" + head[1:] + b"\xc6" + len(times).to_bytes(4, "big")
        return _compress((start, times, _encode(_bytes(lengths))), throttle)

    def __len__(self) -> int:
        return len(self.counters[0])

    def add(self, sums: Mapping[Labels, UsageTotals], throttle: Throttle) -> None:
        """Add sums to the rows with the same labels."""
        positions, row_times = self._find_positions(throttle), self._split_times(throttle)
        numbers = [{value: number for number, value in enumerate(values)} for values, _ in self.columns]
        requests, invalid, failed, credits, wasted = self.counters
        for labels, totals in sums.items():
            position = positions.get(labels)
            if position is None:
                positions[labels] = len(row_times)
                for label, row_numbers, (values, column) in zip(labels, numbers, self.columns, strict=True):
                    if label not in row_numbers:
                        row_numbers[label] = len(values)
                        values.append(label)
                    column.append(row_numbers[label])
                requests.append(totals.requests)
                invalid.append(totals.invalid)
                failed.append(totals.failed)
                credits.append(totals.credits)
                wasted.append(totals.credits_wasted)
                row_times.append(_encode_times(totals.times))
            else:
                requests[position] += totals.requests
                invalid[position] += totals.invalid
                failed[position] += totals.failed
                credits[position] += totals.credits
                wasted[position] += totals.credits_wasted
                if totals.times:
                    times = _decode_times(row_times[position])
                    add_times(times, totals.times)
                    row_times[position] = _encode_times(times)
            throttle.step()

    def times(self, position: int) -> bytes:
        """Return the encoded times of a row."""
        if self._times is not None:
            return self._times[position]
        return self._joined_times[self._ends[position - 1] if position else 0 : self._ends[position]]

    def totals(self, position: int) -> UsageTotals:
        """Return the sums of a row."""
        requests, invalid, failed, credits, wasted = (column[position] for column in self.counters)
        return UsageTotals(requests, invalid, failed, credits, wasted, _decode_times(self.times(position)))

    def add_to(self, totals: UsageTotals, position: int) -> None:
        """Add the sums of a row to others."""
        requests, invalid, failed, credits, wasted = self.counters
        totals.requests += requests[position]
        totals.invalid += invalid[position]
        totals.failed += failed[position]
        totals.credits += credits[position]
        totals.credits_wasted += wasted[position]
        times = self.times(position)
        if times:
            add_times(totals.times, _decode_times(times))

    def labels(self) -> Iterator[Labels]:
        """Yield the labels of all rows."""
        if not self.columns:
            return iter([()] * len(self))
        return zip(*(map(values.__getitem__, column) for values, column in self.columns), strict=True)

    def sums(self, throttle: Throttle) -> Sums:
        """Return all rows by their labels."""
        sums: Sums = {}
        for position, labels in enumerate(self.labels()):
            sums[labels] = self.totals(position)
            throttle.step()
        return sums

    def _split_times(self, throttle: Throttle) -> list[bytes]:
        """Return the encoded times of all rows, which may be changed."""
        if self._times is None:
            self._times = [self.times(position) for position in throttle.steps(range(len(self)))]
            self._joined_times, self._ends = b"", []
        return self._times

    def _find_positions(self, throttle: Throttle) -> dict[Labels, int]:
        if self._positions is None:
            self._positions = {labels: position for position, labels in enumerate(throttle.steps(self.labels()))}
        return self._positions


def free(sums: Sums | dict[UsageLabels, UsageTotals], throttle: Throttle) -> None:
    """Remove all sums in small steps. Freed at once, those of an hour hold the interpreter for 10 to 20 ms."""
    while sums:
        sums.popitem()
        throttle.step()


def _compress(parts: Sequence[bytes | bytearray], throttle: Throttle) -> bytes:
    """Return the frame of all parts."""
    # A compressor must not be shared by threads.
    compressor = zstandard.ZstdCompressor(level=_LEVEL).compressobj(size=sum(map(len, parts)))
    pieces = list[bytes]()
    for part in parts:
        view = memoryview(part)
        starts = throttle.steps(range(0, len(view), _PIECE_BYTES))
        pieces += (compressor.compress(view[start : start + _PIECE_BYTES]) for start in starts)
    return b"".join((*pieces, compressor.flush()))


def _decompress(raw: bytes, throttle: Throttle) -> bytearray:
    """Return the content of a frame, or what there is of it. Raises UsageDamaged."""
    content = bytearray()
    try:
        with zstandard.ZstdDecompressor().stream_reader(raw) as reader:
            while piece := reader.read(_PIECE_BYTES):
                content += piece
                if len(content) > _MAX_BYTES:
                    raise UsageDamaged("the table is too long")
                throttle.step()
    except zstandard.ZstdError as error:
        raise UsageDamaged(str(error)) from None
    return content


def add_times(times: dict[int, int], added: Mapping[int, int]) -> None:
    """Add counts by bucket of the sketch."""
    get = times.get
    for bucket, count in added.items():
        times[bucket] = get(bucket, 0) + count


def _encode_times(times: Mapping[int, int]) -> bytes:
    if not times:
        return b""
    most = max(times.values())
    if most > _MAX_COUNT:
        return b"".join(
            _PAIR.pack(bucket, min(count - start, _MAX_COUNT))
            for bucket, count in times.items()
            for start in range(0, count, _MAX_COUNT)
        )
    first, last = min(times), max(times)
    size = 1 if most < 2**8 else 2 if most < 2**16 else 4
    count_bytes = (last - first + 1) * size
    if DENSE_BYTES + count_bytes >= len(times) * _PAIR.size:
        return b"".join(map(_PAIR.pack, times.keys(), times.values()))
    counts = _array(DENSE_CODES[size], bytes(count_bytes))
    for bucket, count in times.items():
        counts[bucket - first] = count
    return _DENSE.pack(DENSE_MARK, first, size) + _bytes(counts)


def dense_times(raw: bytes) -> tuple[int, int] | None:
    """Return the first bucket of a dense sketch and the bytes of a count; None for pairs. Raises ValueError."""
    if not raw.startswith(_DENSE_START):
        return None
    _, first, size = _DENSE.unpack_from(raw)
    if size not in DENSE_CODES:
        raise ValueError("the counts of a sketch have an unknown size")
    return first, size


def _decode_times(raw: bytes) -> dict[int, int]:
    dense = dense_times(raw)
    if dense is not None:
        first, size = dense
        counts = _array(DENSE_CODES[size], raw[DENSE_BYTES:])
        return {bucket: count for bucket, count in enumerate(counts, first) if count}
    times = dict(_PAIR.iter_unpack(raw))
    if len(times) * _PAIR.size == len(raw):
        return times
    summed: dict[int, int] = {}
    for bucket, count in _PAIR.iter_unpack(raw):
        summed[bucket] = summed.get(bucket, 0) + count
    return summed


def as_labels(labels: UsageLabels) -> Labels:
    """Return the labels of a call as those of a row."""
    path, method, status, api_key, country, user_agent = labels
    return path, method, str(status), api_key, country, user_agent


def of_labels(labels: Labels) -> UsageLabels:
    """Return the labels of a row as those of a call."""
    path, method, status, api_key, country, user_agent = labels
    return UsageLabels(path, method, int(status), api_key, country, user_agent)


def marginal_sums(sums: Iterable[tuple[Labels, UsageTotals]], throttle: Throttle) -> dict[Dimension, Sums]:
    """Return the sums of all rows, and those by each label."""
    total = UsageTotals()
    by_label: tuple[dict[str, UsageTotals], ...] = tuple({} for _ in LABELS)
    for labels, totals in sums:
        _add_totals(total, totals)
        for label, marginal in zip(labels, by_label, strict=True):
            label_totals = marginal.get(label)
            if label_totals is None:
                label_totals = marginal[label] = UsageTotals()
            _add_totals(label_totals, totals)
        throttle.step()
    marginals: dict[Dimension, Sums] = {Dimension.NONE: {(): total} if total.requests else {}}
    for dimension, marginal in zip(LABELS, by_label, strict=True):
        marginals[dimension] = {(label,): totals for label, totals in marginal.items()}
    return marginals


def _add_totals(totals: UsageTotals, added: UsageTotals) -> None:
    totals.requests += added.requests
    totals.invalid += added.invalid
    totals.failed += added.failed
    totals.credits += added.credits
    totals.credits_wasted += added.credits_wasted
    add_times(totals.times, added.times)


def _array(code: str, raw: bytes | memoryview) -> array[int]:
    codes: array[Any] = array(code)
    codes.frombytes(raw)
    if sys.byteorder == "big":
        codes.byteswap()
    return codes


def _bytes(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()
