"""Settings of the prices of AVAX, with placeholders in braces; docs/data-api.md shows sources."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time
from typing import Any, Final
from urllib.parse import urlsplit

from warpseal.runtime.settings import Group, Settings, invalid_setting, setting, text, url

_BRACES: Final = re.compile(r"\{([^{}]*)\}")
NAMES: Final = ("currency", "CURRENCY", "date", "year", "month", "day", "timestamp")
PATH_NAMES: Final = ("currency", "CURRENCY")


def price_url(value: Any, path: str) -> str:
    """Accept the URL of a JSON document; its fragment is the place of the price."""
    template = text(value, path)
    if template:
        url("http", "https")(template, path)
        document, _, place = template.partition("#")
        _check_braces(document, NAMES, path)
        _check_braces(place, PATH_NAMES, path)
    return template


def _check_braces(template: str, allowed_names: tuple[str, ...], path: str) -> None:
    unknown = next((name for name in _BRACES.findall(template) if name not in allowed_names), None)
    if unknown is not None:
        raise invalid_setting(
            path,
            f"{{{unknown[:32]}}} means nothing; known are "
            + ", ".join(f"{{{name}}}" for name in allowed_names),
        )


def display_host(template: str) -> str:
    """Return the scheme and host of a URL: path and query may hold a key."""
    parts = urlsplit(template)
    return f"{parts.scheme}://{parts.hostname}" if parts.hostname else ""


class PriceSettings(Settings, frozen=True):
    """The URL of prices, which is asked after the file; without either, no price is ever reported.

    url: URL with placeholders in braces. Its fragment has the keys, and the positions in lists,
        that lead to the price in the JSON document, with dots between them.
    """

    url: str = setting(
        "",
        "price-url",
        price_url,
        "prices of AVAX: URL of a JSON document, #place of the price in it: https://HOST/{date}#market.0.{currency}",
        "URL",
        group=Group.INDEX,
        display=display_host,
    )
    timeout_s: float = 3.0
    max_answer_bytes: int = 1024 * 1024
    retry_failed_after_s: float = 60.0
    max_remembered: int = 50_000


def fill_template(template: str, currency: str, day: date) -> str:
    """Return the template with its placeholders replaced.

    timestamp: Unix seconds of the day's beginning (UTC).
    """
    values = {
        "currency": currency,
        "CURRENCY": currency.upper(),
        "date": day.isoformat(),
        "year": f"{day.year:04}",
        "month": f"{day.month:02}",
        "day": f"{day.day:02}",
        "timestamp": str(int(datetime.combine(day, time(), UTC).timestamp())),
    }
    return _BRACES.sub(lambda match: values.get(match[1], match[0]), template)
