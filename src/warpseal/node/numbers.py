"""Integers as nodes write them in JSON: decimal strings or plain numbers, always exact.

Source of truth: avalanchego `utils/json`.
"""

from __future__ import annotations

_U32_END = 1 << 32
_U64_END = 1 << 64
_MAX_DIGITS = 20


def u64(value: int | str) -> int:
    """Return a number of 0..2^64-1. Raises ValueError."""
    return _bounded(value, _U64_END)


def u32(value: int | str) -> int:
    """Return a number of 0..2^32-1. Raises ValueError."""
    return _bounded(value, _U32_END)


def _bounded(value: int | str, end: int) -> int:
    if isinstance(value, str):
        if not (value.isascii() and value.isdigit() and len(value) <= _MAX_DIGITS):
            raise ValueError(f"no decimal number: {value[:32]!r}")
        value = int(value)
    if not 0 <= value < end:
        raise ValueError("a number is out of range")
    return value
