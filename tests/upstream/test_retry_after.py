"""The follower pauses as long as a node asks, or increasingly long without a given time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpseal.upstream.limits import MAX_PAUSE_S, RetryAfter, parse_retry_after

NOON_S = 784_111_777.0


@pytest.mark.parametrize(
    ("text", "wait_s"),
    [
        ("0", 0.0),
        (" 120 ", 120.0),
        ("99999999", MAX_PAUSE_S),
        ("Sun, 06 Nov 1994 08:50:37 GMT", 60.0),
        ("Sunday, 06-Nov-94 08:50:37 GMT", 60.0),
        ("Sun, 06 Nov 1994 08:49:36 GMT", 0.0),
        ("Fri, 31 Dec 2100 23:59:59 GMT", MAX_PAUSE_S),
        ("1.5", None),
        ("-3", None),
        ("soon", None),
        ("", None),
        ("٣", None),
        ("9" * 65, None),
        (None, None),
    ],
)
def test_a_retry_after_is_seconds_or_a_date(text: str | None, wait_s: float | None) -> None:
    assert parse_retry_after(text, NOON_S) == wait_s


@given(st.text(max_size=80))
def test_no_retry_after_makes_trouble(text: str) -> None:
    wait_s = parse_retry_after(text, NOON_S)
    assert wait_s is None or 0 <= wait_s <= MAX_PAUSE_S


def test_the_requested_pause_is_respected() -> None:
    pause = RetryAfter()
    assert pause.remaining_s(100.0) == 0
    pause.record_request(100.0, 7.0)
    assert (pause.remaining_s(100.0), pause.remaining_s(106.0), pause.remaining_s(107.0)) == (
        7.0,
        1.0,
        0.0,
    )


def test_a_shorter_pause_never_ends_a_longer_one() -> None:
    pause = RetryAfter()
    pause.record_request(0.0, 30.0)
    pause.record_request(1.0, 2.0)
    pause.record_request(1.0, None)
    assert pause.remaining_s(1.0) == 29.0


def test_without_a_time_pauses_double_up_to_a_minute_until_a_call_works() -> None:
    pause, now, lengths = RetryAfter(), 0.0, list[float]()
    for _ in range(7):
        pause.record_request(now, None)
        pause.record_request(now, None)
        lengths.append(pause.remaining_s(now))
        now += lengths[-1]
    assert lengths == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    pause.record_success(now)
    pause.record_request(now, None)
    assert pause.remaining_s(now) == 2.0


def test_a_reply_within_the_pause_does_not_end_it() -> None:
    pause = RetryAfter()
    pause.record_request(0.0, None)
    pause.record_success(0.5)
    pause.record_request(2.0, None)
    assert pause.remaining_s(2.0) == 4.0
