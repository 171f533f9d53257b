"""The fields of an aggregation request body: their spellings and their JSON values.

Source of truth: the spellings found in published clients (camelCase, kebab-case, four of the height); the
reference aggregator's decoder for what counts as not given (null, an empty text) and for names in any case.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from warpseal.api.request_errors import ConflictingSpellings
from warpseal.errors import InvalidTimeout, UndecodableBody, UnknownField

MAX_UINT64: Final = 2**64 - 1
_MAX_DIGITS: Final = 40
_SHOWN_CHARACTERS: Final = 64

Converter = Callable[[str, Any], Any]
"""Takes a field's name and a JSON value that is given; returns the plain value. Raises InvalidRequest."""


@dataclass(frozen=True, slots=True)
class RequestFields:
    """The fields of a request in plain types. A missing field is empty, 0 or None.

    message, justification: lower-case digits without 0x, not yet known to be hex. height: None means the
    proposed height. timeout_s: None means the daemon's default.
    """

    message: str = ""
    justification: str = ""
    signing_subnet_id: str = ""
    quorum: int = 0
    buffer: int = 0
    height: int | None = None
    timeout_s: float | None = None


# No request nests. The recursion limit of the interpreter is no protection: a library may have raised it too far.
_MAX_BRACKETS: Final = 256


def read_fields(body: bytes, *, ignore_unknown: bool) -> RequestFields:
    """Return the fields of a JSON object. Raises UndecodableBody, UnknownField or ConflictingSpellings."""
    given: dict[str, Any] = {}
    for key, value in _decode(body):
        field = _FIELDS.get(key.casefold())
        if field is None:
            if ignore_unknown:
                continue
            raise unknown_field(key, tuple(_SPELLINGS.values()))
        if value is None or value == "":
            continue
        plain = field.convert(field.name, value)
        if given.setdefault(field.attribute, plain) != plain:
            raise ConflictingSpellings(field.name, "given more than once, with different values")
    return RequestFields(**given)


class _Pairs(list[tuple[str, Any]]):
    """A decoded JSON object that still knows its duplicate keys."""


def _decode(body: bytes) -> _Pairs:
    """Return the top object of a body; null is an object without fields, as the reference takes it."""
    if body.count(b"[") + body.count(b"{") > _MAX_BRACKETS:
        raise UndecodableBody("body", "nested too deeply")
    try:
        decoded = _DECODER.decode(body.decode("utf-8"))
    except (ValueError, ArithmeticError, RecursionError):
        raise UndecodableBody("body", "not a JSON object") from None
    if decoded is None:
        return _Pairs()
    if not isinstance(decoded, _Pairs):
        raise UndecodableBody("body", "not a JSON object")
    return decoded


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_Pairs, parse_float=Decimal, parse_constant=_refuse_constant)


def unknown_field(key: str, known: Iterable[str]) -> UnknownField:
    """Return the refusal of a name that is none of the `known` ones; it shows the nearest of them."""
    displayed = key[:_SHOWN_CHARACTERS]
    spellings = {name.casefold(): name for name in known}
    near = difflib.get_close_matches(displayed.casefold(), spellings, n=1, cutoff=0.5)
    hint = f"; did you mean {spellings[near[0]]}?" if near else ""
    return UnknownField(ascii(displayed)[1:-1], f"no such field{hint}")


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise UndecodableBody(name, "not a text")
    return value


def plain_hex(name: str, value: Any) -> str:
    """Return the digits of hex with or without 0x, in one case, so that equal values compare equal."""
    return _text(name, value).removeprefix("0x").lower()


def plain_uint64(name: str, value: Any) -> int:
    """Return an exact integer of 0..2^64-1. Raises UndecodableBody."""
    number = _number(name, value)
    if number != number.to_integral_value() or not 0 <= number <= MAX_UINT64:
        raise UndecodableBody(name, "not an integer of 0..2^64-1")
    return int(number)


def plain_height(name: str, value: Any) -> int | None:
    """Return a height, or None if it means the proposed height. Raises UndecodableBody."""
    number = plain_uint64(name, value)
    return None if number in (0, MAX_UINT64) else number


def plain_seconds(name: str, value: Any) -> float | None:
    """Return seconds, or None if 0 means the default. Raises UndecodableBody, InvalidTimeout."""
    number = _number(name, value)
    if number < 0:
        raise InvalidTimeout(name, "not a positive number of seconds")
    return float(number) or None


def _number(name: str, value: Any) -> Decimal:
    """Return an exact number of sane size, from a JSON number or a text of one."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal | str):
        raise UndecodableBody(name, "not a number")
    if isinstance(value, str) and not (value.isascii() and value.isdigit() and len(value) <= _MAX_DIGITS):
        raise UndecodableBody(name, "neither a number nor a text of digits")
    number = Decimal(value)
    if abs(number.adjusted()) > _MAX_DIGITS:
        raise UndecodableBody(name, "out of range")
    return number


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    attribute: str
    convert: Converter


_NAMES: Final[Mapping[_Field, tuple[str, ...]]] = {
    _Field("message", "message", plain_hex): ("message",),
    _Field("justification", "justification", plain_hex): ("justification",),
    _Field("signingSubnetId", "signing_subnet_id", _text): (
        "signingSubnetId",
        "signing-subnet-id",
        "signingSubnet",
        "signing-subnet",
    ),
    _Field("quorumPercentage", "quorum", plain_uint64): ("quorumPercentage", "quorum-percentage"),
    _Field("quorumPercentageBuffer", "buffer", plain_uint64): (
        "quorumPercentageBuffer",
        "quorum-percentage-buffer",
    ),
    _Field("pChainHeight", "height", plain_height): ("pChainHeight", "pchain-height", "p-chain-height"),
    _Field("timeoutSeconds", "timeout_s", plain_seconds): ("timeoutSeconds", "timeout-seconds"),
}

_FIELDS: Final = {name.casefold(): field for field, names in _NAMES.items() for name in names}
_SPELLINGS: Final = {name.casefold(): name for names in _NAMES.values() for name in names}
