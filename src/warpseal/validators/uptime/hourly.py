"""What was observed of each node in each hour, until the store has it. Pure: moments come in.

Tallies only grow; what they grew since the last look at them belongs to the hour of that look. No hour has more than
its 3,600 seconds: of what is decided late, the proportion is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from warpseal.history.ports import ObservedUptime
from warpseal.store.values import HourRow
from warpseal.validators.uptime.counter import HOUR_MS, HOUR_S, ObservedHour, Uptime, UptimeCounter
from warpseal.warp.ids import NodeID

_NOTHING = Uptime()


class HourlyUptime:
    """Rows by hour and node. max_rows: in memory; beyond them the oldest hours are given up.

    first_hour: of which rows may be here.
    """

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._counted: dict[NodeID, Uptime] = {}
        self._rows: dict[int, dict[NodeID, Uptime]] = {}
        self._written: dict[int, dict[NodeID, Uptime]] = {}
        self._hour: int | None = None
        self.first_hour = 0

    def begin(self, unix_s: float) -> None:
        """Begin with the present hour; what was counted before belongs to it, too."""
        self.first_hour = self._hour = hour_of(unix_s)

    def look(self, tallies: Mapping[NodeID, UptimeCounter], unix_s: float) -> None:
        """Close the hour where another one began."""
        if self._hour != hour_of(unix_s):
            self.count(tallies)
            self._hour = hour_of(unix_s)

    def count(self, tallies: Mapping[NodeID, UptimeCounter]) -> None:
        """Take over what the tallies have more than before."""
        if self._hour is None:
            return
        rows = self._rows.setdefault(self._hour, {})
        for node_id, tally in tallies.items():
            before, total = self._counted.get(node_id, _NOTHING), tally.total()
            if total.observed_ms != before.observed_ms:
                self._counted[node_id] = total
                rows[node_id] = _within_an_hour(rows.get(node_id, _NOTHING), _grown(before, total))
        self._shed()

    def forget(self, node_ids: Iterable[NodeID]) -> None:
        """Begin anew with these nodes' tallies, which were counted and dropped."""
        for node_id in node_ids:
            self._counted.pop(node_id, None)

    def recalled(self, rows: Iterable[HourRow]) -> None:
        """Add what an earlier process wrote of hours of which there are, or may be, rows here."""
        for row in rows:
            before = Uptime(row.observed_ms, row.connected_ms)
            ours = self._rows.setdefault(row.hour, {})
            ours[row.node_id] = _within_an_hour(before, ours.get(row.node_id, _NOTHING))
            self._written.setdefault(row.hour, {})[row.node_id] = before

    def due(self) -> tuple[HourRow, ...]:
        """Return the rows that are not written as they are now."""
        return tuple(self._due())

    def written(self, rows: Iterable[HourRow]) -> None:
        """Take it that these are written; hours that are over need not be kept here any more."""
        for row in rows:
            if row.hour in self._rows:
                self._written.setdefault(row.hour, {})[row.node_id] = Uptime(row.observed_ms, row.connected_ms)
        for hour in [hour for hour in self._rows if self._is_over(hour)]:
            if self._written.get(hour, {}) == self._rows[hour]:
                del self._rows[hour]
                self._written.pop(hour, None)

    def of(self, node_id: NodeID) -> tuple[HourRow, ...]:
        """Return the rows of a node that are here, oldest first."""
        found = ((hour, self._rows[hour].get(node_id)) for hour in sorted(self._rows))
        return tuple(
            HourRow(hour, node_id, one.observed_ms, one.connected_ms) for hour, one in found if one is not None
        )

    def _due(self) -> Iterator[HourRow]:
        for hour, rows in self._rows.items():
            written = self._written.get(hour, {})
            for node_id, one in rows.items():
                if written.get(node_id) != one:
                    yield HourRow(hour, node_id, one.observed_ms, one.connected_ms)

    def _is_over(self, hour: int) -> bool:
        """Tell whether an hour will not be added to, even if the clock is set back a little."""
        return self._hour is not None and hour < self._hour - 1

    def _shed(self) -> None:
        while sum(map(len, self._rows.values())) > self._max_rows and len(self._rows) > 1:
            oldest = min(self._rows)
            del self._rows[oldest]
            self._written.pop(oldest, None)


def hour_of(unix_s: float) -> int:
    """Return the number of the hour since 1970."""
    return int(unix_s) // HOUR_S


def _grown(before: Uptime, after: Uptime) -> Uptime:
    return Uptime(after.observed_ms - before.observed_ms, after.connected_ms - before.connected_ms)


def _within_an_hour(one: Uptime, more: Uptime) -> Uptime:
    observed_ms, connected_ms = one.observed_ms + more.observed_ms, one.connected_ms + more.connected_ms
    if observed_ms <= HOUR_MS:
        return Uptime(observed_ms, connected_ms)
    return Uptime(HOUR_MS, connected_ms * HOUR_MS // observed_ms)


_DAY_MS: Final = 24 * HOUR_S * 1_000
_REMEMBERED_S: Final = 60.0
_MAX_REMEMBERED: Final = 2_000

_Asked = tuple[NodeID, int]


class RememberedReach:
    """What was told of nodes a moment ago: a month of hours takes the store some milliseconds. Moments: seconds."""

    def __init__(self) -> None:
        self._told: OrderedDict[_Asked, tuple[float, ObservedUptime | None]] = OrderedDict()

    def knows(self, asked: _Asked, now: float) -> bool:
        """Tell whether this was told less than a minute ago."""
        return asked in self._told and now < self._told[asked][0] + _REMEMBERED_S

    def told(self, asked: _Asked) -> ObservedUptime | None:
        """Return what was told."""
        return self._told[asked][1]

    def tell(self, asked: _Asked, reach: ObservedUptime | None, now: float) -> ObservedUptime | None:
        """Remember what is told, and return it."""
        self._told[asked] = now, reach
        self._told.move_to_end(asked)
        if len(self._told) > _MAX_REMEMBERED:
            self._told.popitem(last=False)
        return reach


def compute_reach(hours: Sequence[ObservedHour], recent_since_unix_s: float) -> ObservedUptime | None:
    """Return what these hours (oldest first) tell; None where the recent ones hold less than a day of observation.

    Uptime is that of all, reachability that of the latest hours that make a day.
    """
    recent = [hour for hour in hours if hour.start_unix_s + HOUR_S > recent_since_unix_s]
    if sum(hour.observed_ms for hour in recent) < _DAY_MS:
        return None
    return ObservedUptime(_percentage(hours), _percentage(_last_day(hours)))


def _last_day(hours: Sequence[ObservedHour]) -> Iterable[ObservedHour]:
    found: list[ObservedHour] = []
    for hour in reversed(hours):
        found.append(hour)
        if sum(one.observed_ms for one in found) >= _DAY_MS:
            break
    return found


def _percentage(hours: Iterable[ObservedHour]) -> float:
    pairs = [(hour.connected_ms, hour.observed_ms) for hour in hours]
    return 100.0 * sum(connected for connected, _ in pairs) / sum(observed for _, observed in pairs)
