"""The hourly uptime of each node, until the store has it. Pure: the caller passes the time.

Counters only grow; their growth since the last count belongs to the hour of the count. No hour has
more than its 3,600 seconds: if late growth exceeds them, the proportion of connected time is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from warpseal.resources.interfaces import ObservedUptime
from warpseal.store.values import HourRow
from warpseal.validators.uptime.node_uptime import HOUR_MS, HOUR_S, Uptime, UptimeCounter
from warpseal.warp.ids import NodeID

_NOTHING: Final = Uptime()
_DAY_MS: Final = 24 * HOUR_S * 1_000


class HourlyUptime:
    """Rows by hour and node.

    max_rows: greatest number of rows in memory; beyond it the oldest hours are dropped.
    first_hour: first hour that may have rows.
    """

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._counted: dict[NodeID, Uptime] = {}
        self._rows: dict[int, dict[NodeID, HourRow]] = {}
        self._unwritten: dict[tuple[int, NodeID], HourRow] = {}
        self._hour: int | None = None
        self.first_hour = 0

    def start(self, unix_s: float) -> None:
        """Start with the current hour; earlier counts belong to it."""
        self.first_hour = self._hour = hour_of(unix_s)

    def roll_hour(self, counters: Mapping[NodeID, UptimeCounter], unix_s: float) -> None:
        """Close the hour if another one has begun."""
        if self._hour != hour_of(unix_s):
            self.count(counters)
            self._hour = hour_of(unix_s)

    def count(self, counters: Mapping[NodeID, UptimeCounter]) -> None:
        """Add the growth of the counters to the current hour."""
        hour = self._hour
        if hour is None:
            return
        rows = self._rows.setdefault(hour, {})
        for node_id, counter in counters.items():
            before, total = self._counted.get(node_id, _NOTHING), counter.total()
            if total.observed_ms != before.observed_ms:
                self._counted[node_id] = total
                row = rows.get(node_id) or HourRow(hour, node_id, 0, 0)
                grown = _grow(
                    row,
                    total.observed_ms - before.observed_ms,
                    total.connected_ms - before.connected_ms,
                )
                if grown != row:
                    rows[node_id] = self._unwritten[hour, node_id] = grown
        while sum(map(len, self._rows.values())) > self._max_rows and len(self._rows) > 1:
            oldest = min(self._rows)
            for node_id in self._rows.pop(oldest):
                self._unwritten.pop((oldest, node_id), None)

    def drop_counters(self, node_ids: Iterable[NodeID]) -> None:
        """Forget the state of counters that were counted and dropped."""
        for node_id in node_ids:
            self._counted.pop(node_id, None)

    def load_rows(self, rows: Iterable[HourRow]) -> None:
        """Add the rows that an earlier process wrote for hours that may have rows here."""
        for row in rows:
            ours = self._rows.setdefault(row.hour, {})
            if (counted := ours.get(row.node_id)) is not None:
                row = _grow(row, counted.observed_ms, counted.connected_ms)
                self._unwritten[row.hour, row.node_id] = row
            ours[row.node_id] = row

    def unwritten_rows(self) -> tuple[HourRow, ...]:
        """Return the rows that changed since they were written."""
        return tuple(self._unwritten.values())

    def mark_written(self, rows: Iterable[HourRow]) -> None:
        """Note that these rows are written, and drop the hours that are over."""
        for row in rows:
            if self._unwritten.get((row.hour, row.node_id)) == row:
                del self._unwritten[row.hour, row.node_id]
        # An hour may still grow in the next one, if the clock is set back a little.
        unwritten_hours = {hour for hour, _ in self._unwritten}
        for hour in [
            hour for hour in self._rows if self._hour is not None and hour < self._hour - 1
        ]:
            if hour not in unwritten_hours:
                del self._rows[hour]

    def rows_of(self, node_id: NodeID) -> tuple[HourRow, ...]:
        """Return the rows of a node in memory, oldest first."""
        return tuple(rows[node_id] for _, rows in sorted(self._rows.items()) if node_id in rows)


def hour_of(unix_s: float) -> int:
    """Return the number of the hour since 1970."""
    return int(unix_s) // HOUR_S


def compute_reach(hours: Sequence[HourRow], recent_since_unix_s: float) -> ObservedUptime | None:
    """Return uptime and reachability by these hours, oldest first.

    Uptime counts all hours, reachability the latest hours that make a full day of observation.
    None: the recent hours hold less than a day.
    """
    recent = [row for row in hours if (row.hour + 1) * HOUR_S > recent_since_unix_s]
    if sum(row.observed_ms for row in recent) < _DAY_MS:
        return None
    last_day: list[HourRow] = []
    while sum(row.observed_ms for row in last_day) < _DAY_MS:
        last_day.append(recent.pop())
    return ObservedUptime(_percentage(hours), _percentage(last_day))


def _grow(row: HourRow, observed_ms: int, connected_ms: int) -> HourRow:
    """Return a row with more time, at most an hour."""
    observed_ms, connected_ms = row.observed_ms + observed_ms, row.connected_ms + connected_ms
    if observed_ms > HOUR_MS:
        observed_ms, connected_ms = HOUR_MS, connected_ms * HOUR_MS // observed_ms
    return HourRow(row.hour, row.node_id, observed_ms, connected_ms)


def _percentage(hours: Sequence[HourRow]) -> float:
    return 100.0 * sum(row.connected_ms for row in hours) / sum(row.observed_ms for row in hours)
