"""Prices as plain decimal text, never through a float."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Final

_MAX_CHARACTERS: Final = 40


def decimal_text(value: str | int | Decimal) -> str:
    """Return a price without exponent. Raises ValueError for what is no positive, finite number of sane length."""
    try:
        number = Decimal(value) if len(str(value)) <= _MAX_CHARACTERS else None
    except InvalidOperation:
        number = None
    if number is None or not number.is_finite() or number <= 0 or abs(number.adjusted()) > _MAX_CHARACTERS:
        raise ValueError(f"{str(value)[:_MAX_CHARACTERS]!r} is no price")
    return format(number, "f")
