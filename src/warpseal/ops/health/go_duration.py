"""Durations in the text form of Go, which health messages use: 1.5s, 2m3.4s, 729.191965ms."""

from __future__ import annotations

from typing import Final

_SMALL: Final = ((1_000_000, "ms"), (1_000, "µs"), (1, "ns"))
_NS: Final = 1_000_000_000


def go_duration(seconds: float) -> str:
    """Return a duration as Go's `time.Duration.String` writes it; negative ones do not occur and count as 0."""
    total = max(0, round(seconds * _NS))
    if total == 0:
        return "0s"
    if total < _NS:
        return next(f"{_decimal(total, unit)}{name}" for unit, name in _SMALL if total >= unit)
    minutes, rest = divmod(total, 60 * _NS)
    hours, minutes = divmod(minutes, 60)
    shown = f"{_decimal(rest, _NS)}s"
    if hours:
        return f"{hours}h{minutes}m{shown}"
    return f"{minutes}m{shown}" if minutes else shown


def _decimal(amount: int, unit: int) -> str:
    whole, rest = divmod(amount, unit)
    fraction = f"{rest:0{len(str(unit)) - 1}d}".rstrip("0") if rest else ""
    return f"{whole}.{fraction}" if fraction else str(whole)
