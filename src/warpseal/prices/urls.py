"""The placeholders in braces of `price-url` and `price-path`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from typing import Final
from urllib.parse import urlsplit

_BRACES: Final = re.compile(r"\{([^{}]*)\}")
NAMES: Final = ("currency", "CURRENCY", "date", "year", "month", "day", "timestamp")
PATH_NAMES: Final = ("currency", "CURRENCY")


def unknown_placeholders(template: str, known: tuple[str, ...]) -> Iterator[str]:
    """Return the placeholders that are not known."""
    return (name for name in _BRACES.findall(template) if name not in known)


def fill_template(template: str, currency: str, day: date) -> str:
    """Return the template with its placeholders replaced. timestamp: unix seconds of the day's beginning (UTC)."""
    values = {
        "currency": currency,
        "CURRENCY": currency.upper(),
        "date": day.isoformat(),
        "year": f"{day.year:04}",
        "month": f"{day.month:02}",
        "day": f"{day.day:02}",
        "timestamp": str(int(datetime.combine(day, time(), UTC).timestamp())),
    }
    return _BRACES.sub(lambda found: values.get(found[1], found[0]), template)


def display_host(template: str) -> str:
    """Return the scheme and host of a URL: path and query may hold a key."""
    parts = urlsplit(template)
    return f"{parts.scheme}://{parts.hostname}" if parts.hostname else ""
