"""For how long each validation was observed and connected: what its node's tally grew while it was under way. Pure.

Counting begins at the start of the validation, or when it is first watched if that is later, and goes on from what an
earlier process wrote. The time in which nobody confirms that a validation is under way is not counted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from warpseal.store.values import ValidationRow
from warpseal.validators.uptime.counter import Subject, Uptime
from warpseal.validators.uptime.node_uptime import NodeUptimes
from warpseal.validators.uptime.settings import UptimeSettings
from warpseal.warp.ids import NodeID

_SEEN_STEP_S = 86_400


@dataclass(slots=True)
class _Counted:
    """One validation. counted: the tally up to which it is; None before it starts. confirmed_ms: last watched."""

    subject: Subject
    first_at: int
    seen_at: int
    confirmed_ms: int
    counted: Uptime | None = None
    observed_ms: int = 0
    connected_ms: int = 0

    def row(self) -> ValidationRow:
        subject = self.subject
        counters = (self.first_at, self.seen_at, self.observed_ms, self.connected_ms)
        return ValidationRow(subject.validation_id, subject.node_id, *counters)


class ValidationUptime:
    """The validations that are watched. Moments: milliseconds of the roster's clock, and unix seconds."""

    def __init__(self, roster: NodeUptimes, settings: UptimeSettings) -> None:
        self._roster = roster
        self._settings = settings
        self._unconfirmed_ms = round(settings.unconfirmed_s * 1_000)
        self._counted: dict[bytes, _Counted] = {}
        self._recalled: dict[bytes, ValidationRow] = {}
        self._written: dict[bytes, ValidationRow] = {}

    @property
    def node_ids(self) -> Collection[NodeID]:
        """Whose validations are watched."""
        return frozenset(one.subject.node_id for one in self._counted.values())

    def watch(self, subjects: Iterable[Subject], now_ms: int, unix_s: float) -> None:
        """Confirm that these are under way; count those that are new from now on."""
        is_full = False
        for subject in subjects:
            one = self._counted.get(subject.validation_id)
            if one is not None:
                self._confirm(one, subject, now_ms, unix_s)
            elif not is_full:
                is_full = not self._begin(subject, now_ms, unix_s)

    def count(self, now_ms: int, unix_s: float) -> None:
        """Count all up to now."""
        for one in self._counted.values():
            self._count(one, now_ms, unix_s)

    def uptime(self, subject: Subject, now_ms: int, unix_s: float) -> Uptime:
        """Return what was counted of a validation; nothing of one that nobody watches."""
        one = self._counted.get(subject.validation_id)
        if one is None:
            return Uptime()
        self._count(one, now_ms, unix_s)
        return Uptime(one.observed_ms, one.connected_ms)

    def recalled(self, rows: Iterable[ValidationRow]) -> None:
        """Add what an earlier process counted, also of validations that are watched only later."""
        for row in rows:
            self._written[row.validation_id] = row
            one = self._counted.get(row.validation_id)
            if one is None:
                self._recalled[row.validation_id] = row
            else:
                _carry_over(one, row)

    def due(self) -> tuple[ValidationRow, ...]:
        """Return the rows that are not written as they are now, apart from who is just seen again."""
        rows = (one.row() for one in self._counted.values())
        return tuple(row for row in rows if not _is_same(self._written.get(row.validation_id), row))

    def written(self, rows: Iterable[ValidationRow]) -> None:
        """Take it that these are written."""
        self._written.update((row.validation_id, row) for row in rows)

    def forget(self, unix_s: float) -> None:
        """Drop the validations that were not under way for long."""
        before = unix_s - self._settings.retention_s
        for validation_id in [key for key, one in self._counted.items() if one.seen_at < before]:
            del self._counted[validation_id]
        self._recalled = {key: row for key, row in self._recalled.items() if row.seen_at >= before}
        known = self._counted.keys() | self._recalled.keys()
        self._written = {key: row for key, row in self._written.items() if key in known}

    def _begin(self, subject: Subject, now_ms: int, unix_s: float) -> bool:
        """Count a new one; tell whether there was room for it."""
        if len(self._counted) >= self._settings.max_validations and not self._make_room(now_ms):
            return False
        one = _Counted(subject, int(unix_s), int(unix_s), now_ms)
        row = self._recalled.pop(subject.validation_id, None)
        if row is not None:
            _carry_over(one, row)
        self._counted[subject.validation_id] = one
        self._count(one, now_ms, unix_s)
        return True

    def _make_room(self, now_ms: int) -> bool:
        """Drop the validation that was confirmed longest ago, unless that is not long ago."""
        validation_id, oldest = min(self._counted.items(), key=lambda item: item[1].confirmed_ms)
        if self._is_confirmed(oldest, now_ms):
            return False
        del self._counted[validation_id]
        if len(self._recalled) < self._settings.max_validations:
            self._recalled[validation_id] = oldest.row()
        return True

    def _confirm(self, one: _Counted, subject: Subject, now_ms: int, unix_s: float) -> None:
        if self._is_confirmed(one, now_ms):
            if not subject.is_active:
                # Nobody knows since when it is not.
                one.subject = subject
            self._count(one, now_ms, unix_s)
        elif one.counted is not None:
            one.counted = self._ahead(one, now_ms)
        one.subject, one.confirmed_ms, one.seen_at = subject, now_ms, int(unix_s)

    def _count(self, one: _Counted, now_ms: int, unix_s: float) -> None:
        counted = one.counted
        if counted is None:
            if unix_s >= one.subject.start_unix_s:
                one.counted = self._ahead(one, now_ms)
            return
        tally = self._roster.settle(one.subject.node_id, now_ms)
        if tally is None or not self._is_confirmed(one, now_ms):
            return
        total = tally.total() if one.subject.is_active else tally.ahead(now_ms)
        one.observed_ms += max(0, total.observed_ms - counted.observed_ms)
        if one.subject.is_active:
            one.connected_ms += max(0, total.connected_ms - counted.connected_ms)
        one.counted = _most(counted, total)

    def _ahead(self, one: _Counted, now_ms: int) -> Uptime | None:
        tally = self._roster.settle(one.subject.node_id, now_ms)
        return None if tally is None else tally.ahead(now_ms)

    def _is_confirmed(self, one: _Counted, now_ms: int) -> bool:
        return now_ms - one.confirmed_ms <= self._unconfirmed_ms


def _carry_over(one: _Counted, row: ValidationRow) -> None:
    one.first_at = min(one.first_at, row.first_at)
    one.observed_ms += row.observed_ms
    one.connected_ms += row.connected_ms


def _is_same(written: ValidationRow | None, row: ValidationRow) -> bool:
    if written is None:
        return False
    is_as_counted = (written.observed_ms, written.connected_ms) == (row.observed_ms, row.connected_ms)
    return is_as_counted and row.seen_at - written.seen_at < _SEEN_STEP_S


def _most(one: Uptime, other: Uptime) -> Uptime:
    return Uptime(max(one.observed_ms, other.observed_ms), max(one.connected_ms, other.connected_ms))
