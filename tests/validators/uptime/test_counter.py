"""A node's tally credits what is proven by bytes that came, and nothing else."""

from __future__ import annotations

from warpseal.validators.uptime.counter import Observation, Uptime, UptimeCounter


def connected_at(now_ms: int) -> UptimeCounter:
    tally = UptimeCounter(now_ms)
    tally.see(Observation.CONNECTED, now_ms)
    return tally


def test_a_connected_node_is_credited_up_to_when_it_was_last_heard() -> None:
    tally = connected_at(1_000)
    tally.settle(30_000, 21_000)
    assert tally.total() == Uptime(20_000, 20_000)
    tally.settle(40_000, 41_000)
    assert tally.total() == Uptime(39_000, 39_000)


def test_silence_before_the_end_of_a_connection_counts_as_not_connected() -> None:
    tally = connected_at(0)
    tally.settle(50_000, 20_000)
    tally.see(Observation.SOUGHT, 60_000)
    assert tally.total() == Uptime(60_000, 20_000)


def test_a_node_that_is_sought_is_observed_and_one_that_is_not_is_not() -> None:
    tally = UptimeCounter(0)
    tally.settle(10_000, None)
    assert tally.total() == Uptime()
    tally.see(Observation.SOUGHT, 10_000)
    tally.settle(25_000, None)
    assert tally.total() == Uptime(15_000, 0)


def test_time_in_which_nobody_looked_is_left_out_and_what_is_undecided_before_it_is_decided_after() -> None:
    tally = connected_at(0)
    tally.settle(10_000, 4_000)
    tally.skip(10_000, 100_000)
    assert tally.total() == Uptime(4_000, 4_000)
    still_there, gone = tally, UptimeCounter(tally.since_ms, tally.sight, 4_000, 4_000, tally.undecided_ms)
    still_there.settle(103_000, 102_000)
    assert still_there.total() == Uptime(12_000, 12_000)
    gone.see(Observation.SOUGHT, 103_000)
    assert gone.total() == Uptime(13_000, 4_000)


def test_a_clock_that_stands_still_credits_nothing() -> None:
    tally = connected_at(5_000)
    for _ in range(3):
        tally.settle(5_000, 5_000)
    assert tally.total() == Uptime()


def test_the_most_that_may_be_decided_is_told_ahead() -> None:
    tally = connected_at(0)
    tally.settle(10_000, 4_000)
    assert tally.ahead(10_000) == Uptime(10_000, 10_000)
    tally.see(Observation.SOUGHT, 10_000)
    assert tally.ahead(12_000) == Uptime(10_000, 4_000)


def test_what_was_undecided_is_credited_once() -> None:
    tally = connected_at(0)
    tally.skip(10_000, 20_000)
    tally.settle(25_000, 21_000)
    tally.settle(30_000, 30_000)
    assert tally.total() == Uptime(20_000, 20_000)
