"""The times that excuse a request: as long as needed, and no longer."""

from __future__ import annotations

from tests.world.periods import Delays, Disturbances, Periods


def test_a_period_ends_with_the_last_of_its_causes() -> None:
    periods = Periods()
    periods.begin("outage", 10)
    periods.begin("lag", 12)
    periods.end("outage", 14)
    assert periods.meet(15, 16)
    periods.end("lag", 20)
    assert periods.meet(0, 10)
    assert periods.meet(20, 30)
    assert not periods.meet(0, 9)
    assert not periods.meet(21, 30)


def test_the_end_of_a_cause_that_did_not_begin_changes_nothing() -> None:
    periods = Periods()
    periods.begin("outage", 10)
    periods.end("outage", 11)
    periods.end("outage", 50)
    periods.end("lag", 50)
    assert not periods.meet(12, 60)


def test_a_disturbance_lasts_until_the_next_dial_that_the_backoff_allows() -> None:
    disturbances = Disturbances()
    disturbances.begin("stop", 100)
    disturbances.end("stop", 108)
    # The delay is at most twice the time for which dials have failed; then comes a handshake.
    assert disturbances.meet(108 + 16 + 5, 200)
    assert not disturbances.meet(108 + 16 + 5.1, 200)
    disturbances.begin("stop", 1000)
    disturbances.end("stop", 2000)
    assert not disturbances.meet(2000 + 65.1, 2100)


def test_a_disturbance_before_the_next_dial_prolongs_the_one_before() -> None:
    disturbances = Disturbances()
    disturbances.begin("stop", 100)
    disturbances.end("stop", 105)
    disturbances.begin("disconnect", 110)
    disturbances.end("disconnect", 110)
    # Dials may have failed for ten seconds.
    assert disturbances.meet(110 + 20 + 5, 200)
    assert not disturbances.meet(110 + 20 + 5.1, 200)


def test_a_cause_that_ends_at_once_leaves_the_effects_of_the_others() -> None:
    disturbances = Disturbances()
    disturbances.begin("upgrade", 100)
    disturbances.begin("fork", 100)
    disturbances.end("upgrade", 108)
    disturbances.end_at_once("fork", 110)
    assert disturbances.meet(108 + 16 + 5, 200)
    assert not disturbances.meet(108 + 16 + 5.1, 200)
    disturbances.begin("fork", 1000)
    disturbances.end_at_once("fork", 1037)
    assert not disturbances.meet(1037.1, 1100)


def test_the_longest_delay_of_a_time_includes_the_one_in_force_at_its_start() -> None:
    delays = Delays(0.1)
    delays.change(3.0, 50)
    delays.change(0.2, 60)
    assert delays.longest(0, 49) == 0.1
    assert delays.longest(0, 55) == 3.0
    assert delays.longest(59, 70) == 3.0
    assert delays.longest(61, 70) == 0.2
