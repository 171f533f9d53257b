"""How well a node is reached, of the hours in which it was observed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from warpseal.history.index import Reach
from warpseal.observed.values import HOUR_S, ObservedHour

_DAY_MS = 24 * HOUR_S * 1_000


def reach_of(hours: Sequence[ObservedHour], recent_since_unix_s: float) -> Reach | None:
    """Return what these hours (oldest first) tell; None where the recent ones hold less than a day of observation.

    Uptime is that of all, reachability that of the latest hours that make a day.
    """
    recent = [hour for hour in hours if hour.start_unix_s + HOUR_S > recent_since_unix_s]
    if sum(hour.observed_ms for hour in recent) < _DAY_MS:
        return None
    return Reach(_percentage(hours), _percentage(_last_day(hours)))


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
