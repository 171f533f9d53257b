"""Periods of usage: hours, days, weeks from Monday and calendar months, all in UTC.

Times are unix seconds. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from enum import IntEnum
from typing import Final

MINUTE_S: Final = 60
HOUR_S: Final = 3_600
DAY_S: Final = 86_400
_WEEK_S: Final = 7 * DAY_S
# 1970-01-05 was a Monday.
_FIRST_MONDAY: Final = 4 * DAY_S


class Level(IntEnum):
    """Length of the buckets to which usage is added; the numbers are stored."""

    HOUR = 0
    DAY = 1
    WEEK = 2
    MONTH = 3


def bucket_start(level: Level, time: int) -> int:
    """Return the start of the bucket that has a time."""
    if level is Level.HOUR:
        return time - time % HOUR_S
    if level is Level.DAY:
        return time - time % DAY_S
    if level is Level.WEEK:
        return time - (time - _FIRST_MONDAY) % _WEEK_S
    moment = datetime.fromtimestamp(time, UTC)
    return int(moment.replace(day=1, hour=0, minute=0, second=0).timestamp())


def bucket_end(level: Level, start: int) -> int:
    """Return the end of the bucket that begins at `start`: the start of the next bucket."""
    if level is Level.HOUR:
        return start + HOUR_S
    if level is Level.DAY:
        return start + DAY_S
    if level is Level.WEEK:
        return start + _WEEK_S
    # Any month is over after 31 days, and the next one is not.
    return bucket_start(level, start + 31 * DAY_S)


def bucket_starts(level: Level, since: int, until: int) -> Iterator[int]:
    """Yield the starts of the buckets that overlap a range, oldest first.

    until: end of the range, which is not in it.
    """
    start = bucket_start(level, since)
    while start < until:
        yield start
        start = bucket_end(level, start)
