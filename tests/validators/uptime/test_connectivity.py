"""Uptime and reachability of a node are computed from hours, once they hold a full day."""

from __future__ import annotations

from tests.validators.uptime.fixtures import NODE, START_UNIX_S
from warpseal.resources.interfaces import ObservedUptime
from warpseal.store.values import HourRow
from warpseal.validators.uptime.hourly import compute_reach, hour_of
from warpseal.validators.uptime.node_uptime import HOUR_MS, HOUR_S

RECENTLY = START_UNIX_S


def hours(
    count: int, connected: float = 1.0, first: int = 0, observed_ms: int = HOUR_MS
) -> tuple[HourRow, ...]:
    return tuple(
        HourRow(hour_of(START_UNIX_S) + number, NODE, observed_ms, round(observed_ms * connected))
        for number in range(first, first + count)
    )


def test_there_is_no_uptime_until_a_full_day_was_observed() -> None:
    assert compute_reach((), RECENTLY) is None
    assert compute_reach(hours(23), RECENTLY) is None
    assert compute_reach(hours(24, observed_ms=HOUR_MS - 1), RECENTLY) is None
    assert compute_reach(hours(24), RECENTLY) == ObservedUptime(100.0, 100.0)


def test_a_day_of_old_hours_does_not_count() -> None:
    assert compute_reach(hours(24), RECENTLY + 24 * HOUR_S) is None
    assert compute_reach(
        (*hours(100), *hours(24, first=200)), RECENTLY + 200 * HOUR_S
    ) == ObservedUptime(100.0, 100.0)


def test_uptime_is_of_all_hours_and_reachability_of_the_last_day() -> None:
    assert compute_reach(
        (*hours(72), *hours(24, connected=0.5, first=72)), RECENTLY
    ) == ObservedUptime(87.5, 50.0)


def test_hours_weigh_as_much_as_was_observed_of_them() -> None:
    assert compute_reach(
        (*hours(24), *hours(4, connected=0.0, first=24, observed_ms=HOUR_MS // 2)), RECENTLY
    ) == ObservedUptime(100 * 24 / 26, 100 * 22 / 24)
