"""Numbers, dates and bytes as nodes write them in JSON, decoded exactly.

Source of truth: avalanchego `utils/json`, `utils/formatting/encoding.go`; the Ethereum JSON-RPC
specification. Functions raise ValueError for a value of another shape.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from hashlib import sha256
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T")

NUMBER: Final = int | str
"""The types in which nodes write a number."""

MAX_HEIGHT: Final = (1 << 40) - 1
"""The highest block that any chain is believed to have: at a block a millisecond, 34 years.

Keys of rows have three bits more, and a database the 63 bits of a signed number.
"""

_U32_END: Final = 1 << 32
_I64_END: Final = 1 << 63
_U64_END: Final = 1 << 64
# The first second after the year 9999, the last one that a date can name.
_DATES_END_S: Final = 253_402_300_800
_MAX_DIGITS: Final = 20
_CHECKSUM_BYTES: Final = 4


def field_decoder(
    name: str, kind: Any, parse: Callable[[Any], T], *, default: Any = msgspec.NODEFAULT
) -> Callable[[bytes], T]:
    """Return a decoder of an object of which only the field `name`, of type `kind`, is needed."""
    fields = [("value", kind, msgspec.field(name=name, default=default))]
    decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(msgspec.defstruct("Reply", fields))
    return lambda result: parse(decoder.decode(result).value)


def list_decoder(
    name: str, kind: Any, parse: Callable[[Any], T]
) -> Callable[[bytes], tuple[T, ...]]:
    """Return a decoder of an object of which only the list `name` is needed; it may be missing."""

    def parse_list(items: list[Any] | None) -> tuple[T, ...]:
        return tuple(map(parse, items or ()))

    return field_decoder(name, list[kind] | None, parse_list, default=None)


def u64(value: int | str) -> int:
    """Return a number of 0..2^64-1."""
    return _bounded(value, _U64_END)


def u32(value: int | str) -> int:
    """Return a number of 0..2^32-1."""
    return _bounded(value, _U32_END)


def block_height(value: int | str) -> int:
    """Return a height of 0..MAX_HEIGHT."""
    return _bounded(value, MAX_HEIGHT + 1)


def unix_s(value: int | str) -> int:
    """Return Unix seconds that a date can name: of the years 1970 to 9999."""
    return _bounded(value, _DATES_END_S)


def date_s(moment: datetime) -> int:
    """Return the Unix seconds of a date with its zone, of the years 1970 to 9999 in UTC."""
    if moment.tzinfo is None:
        raise ValueError("a time without its zone")
    return unix_s(int(moment.timestamp()))


def decode_quantity(text: str) -> int:
    """Return the number of at most 63 bits that an EVM node writes in hex with 0x."""
    if text[:2] != "0x":
        raise ValueError("a quantity starts with 0x")
    return _bounded(int(text, 16), _I64_END)


def decode_number(result: bytes) -> int:
    """Return the number that a result in JSON holds as a quantity; at most 63 bits."""
    return decode_quantity(msgspec.json.decode(result, type=str))


def decode_block_number(result: bytes) -> int:
    """Return the height that a result in JSON holds as a quantity of an EVM node."""
    return block_height(decode_number(result))


def height_or_none(value: object) -> int | None:
    """Return the height behind a quantity of an EVM node; None for anything else."""
    number = quantity_or_none(value)
    if number is None or number > MAX_HEIGHT:
        return None
    return number


def quantity_or_none(value: object) -> int | None:
    """Return the number behind a quantity of an EVM node; None for anything else."""
    try:
        return decode_quantity(value) if isinstance(value, str) else None
    except ValueError:
        return None


def decode_hex(text: str) -> bytes:
    """Return the bytes behind hex with 0x."""
    if text[:2] != "0x":
        raise ValueError("hex starts with 0x")
    raw = bytes.fromhex(text[2:])
    if len(text) != 2 + 2 * len(raw):
        raise ValueError("hex holds white space")
    return raw


def decode_bytes(result: bytes) -> bytes:
    """Return the bytes that a result in JSON holds as hex with 0x."""
    return decode_hex(msgspec.json.decode(result, type=str))


def decode_checked_hex(text: str) -> bytes:
    """Return the bytes of a node's `hex` encoding, which ends with 4 bytes of their SHA-256."""
    raw = decode_hex(text)
    body, checksum = raw[:-_CHECKSUM_BYTES], raw[-_CHECKSUM_BYTES:]
    if len(checksum) != _CHECKSUM_BYTES or sha256(body).digest()[-_CHECKSUM_BYTES:] != checksum:
        raise ValueError("hex with a wrong checksum")
    return body


def _bounded(value: int | str, end: int) -> int:
    if isinstance(value, str):
        if not (value.isascii() and value.isdigit() and len(value) <= _MAX_DIGITS):
            raise ValueError(f"no decimal number: {value[:32]!r}")
        value = int(value)
    if not 0 <= value < end:
        raise ValueError("a number is out of range")
    return value
