"""The aggregations of the last hour by minute: bounded, whatever the clock does."""

from __future__ import annotations

import pytest

from warpseal.aggregation.last_hour import MINUTES, LastHour
from warpseal.usage.response_times import percentile_ms

START_S = 1_795_226_760


def test_a_minute_counts_outcomes_and_the_times_of_successful_ones() -> None:
    hour = LastHour()
    for milliseconds in range(1, 101):
        hour.add(START_S + 0.59 * milliseconds, "ok", milliseconds / 1_000, has_succeeded=True)
    hour.add(START_S + 59.9, "quorum_not_reached", 15.0, has_succeeded=False)
    (minute,) = hour.minutes(START_S + 60)
    assert (minute.start_s, minute.outcomes) == (START_S, {"ok": 100, "quorum_not_reached": 1})
    assert [percentile_ms(minute.times, percent) for percent in (50, 95, 100)] == pytest.approx(
        [50, 95, 100], rel=0.01
    )


def test_no_more_than_an_hour_is_kept_and_returned() -> None:
    hour = LastHour()
    for number in range(3 * MINUTES):
        hour.add(START_S + 60.0 * number, "ok", 0.001, has_succeeded=True)
    now = START_S + 60 * 3 * MINUTES - 1
    assert [minute.start_s for minute in hour.minutes(now)] == [
        START_S + 60 * n for n in range(2 * MINUTES, 3 * MINUTES)
    ]
    assert len(hour.minutes(now + 60 * 10)) == MINUTES - 10
    assert hour.minutes(now + 3_600) == []


def test_minutes_after_a_clock_that_was_set_back_are_dropped() -> None:
    hour = LastHour()
    for moment in (START_S, START_S + 600, START_S + 30):
        hour.add(moment, "ok", 0.001, has_succeeded=True)
    assert [(minute.start_s, minute.outcomes) for minute in hour.minutes(START_S + 700)] == [
        (START_S, {"ok": 2})
    ]
