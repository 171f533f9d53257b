"""The counter of a node credits only time that received bytes prove."""

from __future__ import annotations

from warpseal.validators.uptime.node_uptime import Observation, Uptime, UptimeCounter


def connected_at(now_ms: int) -> UptimeCounter:
    counter = UptimeCounter(now_ms)
    counter.observe(Observation.CONNECTED, now_ms)
    return counter


def test_a_connected_node_is_credited_until_its_last_message() -> None:
    counter = connected_at(1_000)
    counter.advance(30_000, 21_000)
    assert counter.total() == Uptime(20_000, 20_000)
    counter.advance(40_000, 41_000)
    assert counter.total() == Uptime(39_000, 39_000)


def test_silence_before_the_end_of_a_connection_counts_as_not_connected() -> None:
    counter = connected_at(0)
    counter.advance(50_000, 20_000)
    counter.observe(Observation.SOUGHT, 60_000)
    assert counter.total() == Uptime(60_000, 20_000)


def test_only_wanted_nodes_are_observed() -> None:
    counter = UptimeCounter(0)
    counter.advance(10_000, None)
    assert counter.total() == Uptime()
    counter.observe(Observation.SOUGHT, 10_000)
    counter.advance(25_000, None)
    assert counter.total() == Uptime(15_000, 0)


def test_unobserved_time_is_left_out_and_undecided_time_before_it_is_decided_later() -> None:
    counter = connected_at(0)
    counter.advance(10_000, 4_000)
    counter.skip_gap(10_000, 100_000)
    assert counter.total() == Uptime(4_000, 4_000)
    still_there, gone = (
        counter,
        UptimeCounter(counter.since_ms, counter.observation, 4_000, 4_000, counter.undecided_ms),
    )
    still_there.advance(103_000, 102_000)
    assert still_there.total() == Uptime(12_000, 12_000)
    gone.observe(Observation.SOUGHT, 103_000)
    assert gone.total() == Uptime(13_000, 4_000)


def test_a_stopped_clock_credits_no_time() -> None:
    counter = connected_at(5_000)
    for _ in range(3):
        counter.advance(5_000, 5_000)
    assert counter.total() == Uptime()


def test_the_upper_bound_counts_undecided_time_as_connected() -> None:
    counter = connected_at(0)
    counter.advance(10_000, 4_000)
    assert counter.upper_bound(10_000) == Uptime(10_000, 10_000)
    counter.observe(Observation.SOUGHT, 10_000)
    assert counter.upper_bound(12_000) == Uptime(10_000, 4_000)


def test_undecided_time_is_credited_once() -> None:
    counter = connected_at(0)
    counter.skip_gap(10_000, 20_000)
    counter.advance(25_000, 21_000)
    counter.advance(30_000, 30_000)
    assert counter.total() == Uptime(20_000, 20_000)
