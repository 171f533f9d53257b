"""The uptime of each validation: the growth of its node's counter while the validation was current.

Pure.

Counting begins at the start of the validation, or when it is first watched if that is later, and
continues from the row that an earlier process wrote. Time in which the validation is not confirmed
to be current is not counted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec import Struct

from warpseal.node.p_chain import CurrentValidation
from warpseal.store.values import ValidationRow
from warpseal.validators.settings import UptimeSettings
from warpseal.validators.uptime.node_uptime import NodeUptimes, Uptime
from warpseal.warp.ids import NodeID

_SEEN_STEP_S = 86_400


class _Entry(Struct):
    """The counts of one validation.

    counted: counter of its node at the last count; None before the first one.
    confirmed_ms: time at which a node last confirmed the validation.
    """

    validation: CurrentValidation
    first_at: int
    seen_at: int
    confirmed_ms: int
    counted: Uptime | None = None
    observed_ms: int = 0
    connected_ms: int = 0

    def row(self) -> ValidationRow:
        validation = self.validation
        counters = (self.first_at, self.seen_at, self.observed_ms, self.connected_ms)
        return ValidationRow(validation.validation_id, validation.node_id, *counters)


class ValidationUptime:
    """The watched validations. Times are milliseconds of the clock of `uptimes`, or Unix time."""

    def __init__(self, uptimes: NodeUptimes, settings: UptimeSettings) -> None:
        self._uptimes = uptimes
        self._settings = settings
        self._unconfirmed_ms = round(settings.unconfirmed_s * 1_000)
        self._entries: dict[bytes, _Entry] = {}
        self._loaded: dict[bytes, ValidationRow] = {}
        self._stored_rows: dict[bytes, ValidationRow] = {}

    @property
    def node_ids(self) -> Collection[NodeID]:
        """The nodes of the watched validations."""
        return frozenset(entry.validation.node_id for entry in self._entries.values())

    def watch(self, validations: Iterable[CurrentValidation], now_ms: int, unix_s: float) -> None:
        """Confirm that these validations are current; count new ones from now on."""
        is_full = False
        for validation in validations:
            entry = self._entries.get(validation.validation_id)
            if entry is not None:
                self._confirm(entry, validation, now_ms, unix_s)
            elif not is_full:
                is_full = not self._add(validation, now_ms, unix_s)

    def count(self, now_ms: int, unix_s: float) -> None:
        """Count all up to now."""
        for entry in self._entries.values():
            self._count(entry, now_ms, unix_s)

    def uptime(self, validation: CurrentValidation, now_ms: int, unix_s: float) -> Uptime:
        """Return the uptime of a validation; zero if it is not watched."""
        entry = self._entries.get(validation.validation_id)
        if entry is None:
            return Uptime()
        self._count(entry, now_ms, unix_s)
        return Uptime(entry.observed_ms, entry.connected_ms)

    def load_rows(self, rows: Iterable[ValidationRow]) -> None:
        """Add the counts of an earlier process, also for validations that are watched later."""
        for row in rows:
            self._stored_rows[row.validation_id] = row
            entry = self._entries.get(row.validation_id)
            if entry is None:
                self._loaded[row.validation_id] = row
            else:
                _add_stored(entry, row)

    def unwritten_rows(self) -> tuple[ValidationRow, ...]:
        """Return the rows that changed since they were written, or that were written a day ago."""
        rows = (entry.row() for entry in self._entries.values())
        return tuple(
            row for row in rows if not _is_written(self._stored_rows.get(row.validation_id), row)
        )

    def mark_written(self, rows: Iterable[ValidationRow]) -> None:
        """Note that these rows are written."""
        self._stored_rows.update((row.validation_id, row) for row in rows)

    def drop_old(self, unix_s: float) -> None:
        """Drop the validations that have not been current for long."""
        before = unix_s - self._settings.retention_s
        for validation_id in [
            key for key, entry in self._entries.items() if entry.seen_at < before
        ]:
            del self._entries[validation_id]
        self._loaded = {key: row for key, row in self._loaded.items() if row.seen_at >= before}
        validation_ids = self._entries.keys() | self._loaded.keys()
        self._stored_rows = {
            key: row for key, row in self._stored_rows.items() if key in validation_ids
        }

    def _add(self, validation: CurrentValidation, now_ms: int, unix_s: float) -> bool:
        """Add a validation; return False if the limit is reached."""
        if len(self._entries) >= self._settings.max_validations and not self._evict(now_ms):
            return False
        entry = _Entry(validation, int(unix_s), int(unix_s), now_ms)
        row = self._loaded.pop(validation.validation_id, None)
        if row is not None:
            _add_stored(entry, row)
        self._entries[validation.validation_id] = entry
        self._count(entry, now_ms, unix_s)
        return True

    def _evict(self, now_ms: int) -> bool:
        """Drop the validation that was confirmed longest ago, unless it is still confirmed."""
        validation_id, oldest = min(self._entries.items(), key=lambda item: item[1].confirmed_ms)
        if self._is_confirmed(oldest, now_ms):
            return False
        del self._entries[validation_id]
        if len(self._loaded) < self._settings.max_validations:
            self._loaded[validation_id] = oldest.row()
        return True

    def _confirm(
        self, entry: _Entry, validation: CurrentValidation, now_ms: int, unix_s: float
    ) -> None:
        if self._is_confirmed(entry, now_ms):
            if not validation.is_active:
                # The time at which it became inactive is unknown.
                entry.validation = validation
            self._count(entry, now_ms, unix_s)
        elif entry.counted is not None:
            entry.counted = self._upper_bound(entry, now_ms)
        entry.validation, entry.confirmed_ms, entry.seen_at = validation, now_ms, int(unix_s)

    def _count(self, entry: _Entry, now_ms: int, unix_s: float) -> None:
        counted = entry.counted
        if counted is None:
            if unix_s >= entry.validation.start_unix_s:
                entry.counted = self._upper_bound(entry, now_ms)
            return
        counter = self._uptimes.advance(entry.validation.node_id, now_ms)
        if counter is None or not self._is_confirmed(entry, now_ms):
            return
        total = counter.total() if entry.validation.is_active else counter.upper_bound(now_ms)
        entry.observed_ms += max(0, total.observed_ms - counted.observed_ms)
        if entry.validation.is_active:
            entry.connected_ms += max(0, total.connected_ms - counted.connected_ms)
        entry.counted = Uptime(
            max(counted.observed_ms, total.observed_ms),
            max(counted.connected_ms, total.connected_ms),
        )

    def _upper_bound(self, entry: _Entry, now_ms: int) -> Uptime | None:
        counter = self._uptimes.advance(entry.validation.node_id, now_ms)
        return None if counter is None else counter.upper_bound(now_ms)

    def _is_confirmed(self, entry: _Entry, now_ms: int) -> bool:
        return now_ms - entry.confirmed_ms <= self._unconfirmed_ms


def _add_stored(entry: _Entry, row: ValidationRow) -> None:
    entry.first_at = min(entry.first_at, row.first_at)
    entry.observed_ms += row.observed_ms
    entry.connected_ms += row.connected_ms


def _is_written(stored: ValidationRow | None, row: ValidationRow) -> bool:
    if stored is None:
        return False
    is_equal = (stored.observed_ms, stored.connected_ms) == (row.observed_ms, row.connected_ms)
    return is_equal and row.seen_at - stored.seen_at < _SEEN_STEP_S
