"""Times and durations are the text that Go prints."""

from __future__ import annotations

import pytest

from warpseal.runtime.go_time import go_duration, rfc3339, rfc3339_nano


@pytest.mark.parametrize(
    ("unix_ns", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1_795_226_880_729_236_283, "2026-11-21T02:08:00.729236283Z"),
        (1_795_226_880_730_000_000, "2026-11-21T02:08:00.73Z"),
    ],
)
def test_timestamps_have_nanoseconds_like_those_of_avalanchego(unix_ns: int, text: str) -> None:
    assert rfc3339_nano(unix_ns) == text


def test_times_in_whole_seconds_have_no_fraction() -> None:
    assert rfc3339(1_795_226_880.9) == "2026-11-21T02:08:00Z"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (1.5, "1.5s"),
        (0.729191965, "729.191965ms"),
        (123.4, "2m3.4s"),
        (3600, "1h0m0s"),
        (90061.001, "25h1m1.001s"),
        (0.0000015, "1.5µs"),
        (2e-9, "2ns"),
        (59.9999999999, "1m0s"),
        (-1, "0s"),
    ],
)
def test_durations_are_formatted_like_those_of_go(seconds: float, text: str) -> None:
    assert go_duration(seconds) == text
