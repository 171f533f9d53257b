"""The hourly uptime of each node, until the store has it. Pure: the caller passes the time.

Counters only grow; their growth since the last count belongs to the hour of the count. No hour has more than its 3,600
seconds: if late growth exceeds them, the proportion of connected time is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from warpseal.history.ports import ObservedUptime
from warpseal.store.values import HourRow
from warpseal.validators.uptime.counter import HOUR_MS, HOUR_S, ObservedHour, Uptime, UptimeCounter
from warpseal.warp.ids import NodeID

_NOTHING: Final = Uptime()
_DAY_MS: Final = 24 * HOUR_S * 1_000


class HourlyUptime:
    """Rows by hour and node. max_rows: in memory; beyond them the oldest hours are dropped.

    first_hour: the first hour that may have rows.
    """

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._counted: dict[NodeID, Uptime] = {}
        self._rows: dict[int, dict[NodeID, Uptime]] = {}
        self._written: dict[int, dict[NodeID, Uptime]] = {}
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
        if self._hour is None:
            return
        rows = self._rows.setdefault(self._hour, {})
        for node_id, counter in counters.items():
            before, total = self._counted.get(node_id, _NOTHING), counter.total()
            if total.observed_ms != before.observed_ms:
                self._counted[node_id] = total
                rows[node_id] = _cap_to_hour(rows.get(node_id, _NOTHING), _difference(before, total))
        self._drop_oldest()

    def drop_counters(self, node_ids: Iterable[NodeID]) -> None:
        """Forget the state of counters that were counted and dropped."""
        for node_id in node_ids:
            self._counted.pop(node_id, None)

    def load_rows(self, rows: Iterable[HourRow]) -> None:
        """Add the rows that an earlier process wrote for hours that have, or may have, rows here."""
        for row in rows:
            before = Uptime(row.observed_ms, row.connected_ms)
            ours = self._rows.setdefault(row.hour, {})
            ours[row.node_id] = _cap_to_hour(before, ours.get(row.node_id, _NOTHING))
            self._written.setdefault(row.hour, {})[row.node_id] = before

    def unwritten_rows(self) -> tuple[HourRow, ...]:
        """Return the rows that changed since they were written."""
        return tuple(self._unwritten())

    def mark_written(self, rows: Iterable[HourRow]) -> None:
        """Note that these rows are written, and drop the hours that are over."""
        for row in rows:
            if row.hour in self._rows:
                self._written.setdefault(row.hour, {})[row.node_id] = Uptime(row.observed_ms, row.connected_ms)
        for hour in [hour for hour in self._rows if self._is_over(hour)]:
            if self._written.get(hour, {}) == self._rows[hour]:
                del self._rows[hour]
                self._written.pop(hour, None)

    def rows_of(self, node_id: NodeID) -> tuple[HourRow, ...]:
        """Return the rows of a node in memory, oldest first."""
        found = ((hour, self._rows[hour].get(node_id)) for hour in sorted(self._rows))
        return tuple(
            HourRow(hour, node_id, row.observed_ms, row.connected_ms) for hour, row in found if row is not None
        )

    def _unwritten(self) -> Iterator[HourRow]:
        for hour, rows in self._rows.items():
            written = self._written.get(hour, {})
            for node_id, row in rows.items():
                if written.get(node_id) != row:
                    yield HourRow(hour, node_id, row.observed_ms, row.connected_ms)

    def _is_over(self, hour: int) -> bool:
        """Return whether an hour cannot grow any more, even if the clock is set back a little."""
        return self._hour is not None and hour < self._hour - 1

    def _drop_oldest(self) -> None:
        while sum(map(len, self._rows.values())) > self._max_rows and len(self._rows) > 1:
            oldest = min(self._rows)
            del self._rows[oldest]
            self._written.pop(oldest, None)


def hour_of(unix_s: float) -> int:
    """Return the number of the hour since 1970."""
    return int(unix_s) // HOUR_S


def _difference(before: Uptime, after: Uptime) -> Uptime:
    return Uptime(after.observed_ms - before.observed_ms, after.connected_ms - before.connected_ms)


def _cap_to_hour(uptime: Uptime, growth: Uptime) -> Uptime:
    observed_ms = uptime.observed_ms + growth.observed_ms
    connected_ms = uptime.connected_ms + growth.connected_ms
    if observed_ms <= HOUR_MS:
        return Uptime(observed_ms, connected_ms)
    return Uptime(HOUR_MS, connected_ms * HOUR_MS // observed_ms)


def compute_reach(hours: Sequence[ObservedHour], recent_since_unix_s: float) -> ObservedUptime | None:
    """Return uptime and reachability by these hours (oldest first); None if the recent ones hold less than a day.

    Uptime is that of all hours, reachability that of the latest hours that make a full day of observation.
    """
    recent = [hour for hour in hours if hour.start_unix_s + HOUR_S > recent_since_unix_s]
    if sum(hour.observed_ms for hour in recent) < _DAY_MS:
        return None
    return ObservedUptime(_percentage(hours), _percentage(_last_day(hours)))


def _last_day(hours: Sequence[ObservedHour]) -> Iterable[ObservedHour]:
    found: list[ObservedHour] = []
    for hour in reversed(hours):
        found.append(hour)
        if sum(observed.observed_ms for observed in found) >= _DAY_MS:
            break
    return found


def _percentage(hours: Iterable[ObservedHour]) -> float:
    pairs = [(hour.connected_ms, hour.observed_ms) for hour in hours]
    return 100.0 * sum(connected for connected, _ in pairs) / sum(observed for _, observed in pairs)
