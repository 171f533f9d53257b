"""How well a node is reached, of the hours in which it was observed. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from warpseal.history.ports import ObservedUptime
from warpseal.validators.uptime.values import HOUR_S, ObservedHour
from warpseal.warp.ids import NodeID

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


def reach_of(hours: Sequence[ObservedHour], recent_since_unix_s: float) -> ObservedUptime | None:
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
