"""Prices from a CSV file: one line a day and currency.

Source of truth: the file itself: a header `date,currency,price`, dates as 2026-11-21 (UTC), prices as plain decimals.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Final

from warpseal.errors import StartupError

HEADER: Final = ("date", "currency", "price")

Key = tuple[str, date]


class PriceTable:
    """Prices by currency (three lower-case letters) and day."""

    def __init__(self, prices: Mapping[Key, str]) -> None:
        self._prices = prices

    def __len__(self) -> int:
        return len(self._prices)

    async def price(self, currency: str, day: date) -> str | None:
        """Return the price of a day; None if the file has none."""
        return self._prices.get((currency, day))


def read_table(path: Path) -> PriceTable:
    """Return the prices of a file. Raises StartupError naming the line."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return PriceTable(dict(_entries(path, csv.reader(file))))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise StartupError(f"price-file {path} cannot be read: {error}") from error


def _entries(path: Path, rows: Iterable[list[str]]) -> Iterator[tuple[Key, str]]:
    lines = enumerate(rows, 1)
    _, header = next(lines, (1, []))
    if tuple(cell.strip().lower() for cell in header) != HEADER:
        raise StartupError(f"price-file {path}, line 1: expected {','.join(HEADER)}")
    for number, row in lines:
        if not row:
            continue
        try:
            day, currency, price = (cell.strip() for cell in row)
            yield (_currency(currency), date.fromisoformat(day)), format_price(price)
        except ValueError as error:
            raise StartupError(f"price-file {path}, line {number}: {error}") from None


def _currency(text: str) -> str:
    if not (len(text) == 3 and text.isascii() and text.isalpha()):
        raise ValueError(f"{text[:16]!r} is no currency of three letters")
    return text.lower()


_MAX_CHARACTERS: Final = 40


def format_price(value: str | int | Decimal) -> str:
    """Return a price as plain decimal text, without exponent and never through a float.

    Raises ValueError unless it is a positive, finite number of at most 40 characters.
    """
    try:
        number = Decimal(value) if len(str(value)) <= _MAX_CHARACTERS else None
    except InvalidOperation:
        number = None
    if number is None or not number.is_finite() or number <= 0 or abs(number.adjusted()) > _MAX_CHARACTERS:
        raise ValueError(f"{str(value)[:_MAX_CHARACTERS]!r} is no price")
    return format(number, "f")
