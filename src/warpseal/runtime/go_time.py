"""Times and durations as text, as Go prints them.

Source of truth: RFC 3339; Go's `time.RFC3339`, `time.RFC3339Nano` and `time.Duration.String`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

_NS: Final = 1_000_000_000
_SMALL_UNITS: Final = ((1_000_000, "ms"), (1_000, "µs"), (1, "ns"))


def rfc3339(unix_s: float) -> str:
    """Return a time in UTC, in whole seconds. Raises ValueError, OverflowError or OSError beyond
    the year 9999.
    """
    return datetime.fromtimestamp(int(unix_s), UTC).isoformat().replace("+00:00", "Z")


def rfc3339_nano(unix_ns: int) -> str:
    """Return a time in UTC with nanoseconds, without trailing zeros."""
    seconds, nanoseconds = divmod(unix_ns, _NS)
    fraction = f".{nanoseconds:09d}".rstrip("0").rstrip(".")
    return rfc3339(seconds).removesuffix("Z") + fraction + "Z"


def go_duration(seconds: float) -> str:
    """Return a duration: 1.5s, 2m3.4s, 729.191965ms; negative ones as 0s."""
    total_ns = max(0, round(seconds * _NS))
    if total_ns == 0:
        return "0s"
    if total_ns < _NS:
        unit_ns, name = next(unit for unit in _SMALL_UNITS if total_ns >= unit[0])
        return f"{_decimal(total_ns, unit_ns)}{name}"
    minutes, rest_ns = divmod(total_ns, 60 * _NS)
    hours, minutes = divmod(minutes, 60)
    text = f"{_decimal(rest_ns, _NS)}s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text


def _decimal(amount_ns: int, unit_ns: int) -> str:
    return f"{amount_ns / unit_ns:.9f}".rstrip("0").rstrip(".")
