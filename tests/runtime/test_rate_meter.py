"""The rate of the last minute, which falls as soon as the work does."""

from __future__ import annotations

import pytest

from warpseal.runtime.rate_meter import RateMeter


def test_the_rate_counts_the_last_minute_only() -> None:
    meter = RateMeter()
    meter.start(0.0)
    for second in range(1, 101):
        meter.add(float(second), 10)
    assert meter.rate(100.0) == pytest.approx(10.0)
    for second in range(101, 201):
        meter.add(float(second), 50)
    assert meter.rate(200.0) == pytest.approx(50.0)


def test_the_rate_falls_while_nothing_is_done_and_is_unknown_after_a_minute() -> None:
    meter = RateMeter()
    meter.start(0.0)
    for second in range(1, 11):
        meter.add(float(second), 10)
    assert meter.rate(10.0) == pytest.approx(10.0)
    assert meter.rate(20.0) == pytest.approx(5.0)
    assert meter.rate(71.0) is None
    meter.add(75.0, 60)
    assert meter.rate(75.0) == pytest.approx(60 / 64)


def test_there_is_no_rate_before_anything_was_done() -> None:
    meter = RateMeter()
    assert meter.rate(5.0) is None
    meter.start(5.0)
    assert meter.rate(9.0) is None
    meter.add(10.0, 5)
    assert meter.rate(10.0) == pytest.approx(1.0)
    meter.start(11.0)
    assert meter.rate(12.0) is None


def test_after_a_reset_the_first_items_only_begin_the_count() -> None:
    meter = RateMeter()
    meter.reset()
    assert meter.rate(9.0) is None
    meter.add(10.0, 500)
    assert meter.rate(11.0) is None
    meter.add(12.0, 30)
    assert meter.rate(12.0) == pytest.approx(15.0)
