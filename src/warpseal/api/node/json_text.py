"""JSON as the node interfaces take it: the first value of a body, with bounded nesting, its parts kept as they came."""

from __future__ import annotations

import json
import re
from typing import Final

import msgspec

MAX_NESTING: Final = 64
_BLANK: Final = b" \t\r\n"
# One that is not closed ends with the text: so each quote is looked at once.
_STRINGS: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_BRACKETS: Final = b"[]{}"
_NOT_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in _BRACKETS)
_SQUARE: Final = bytes.maketrans(b"{}", b"[]")
_DECODER: Final = json.JSONDecoder()


class InvalidJson(ValueError):
    """Text that is no JSON value. The message is a short reason."""


def first_value(body: bytes) -> bytes:
    """Return the first JSON value of a body without the text after it. Raises InvalidJson."""
    text = body.strip(_BLANK)
    if not text:
        raise InvalidJson("EOF")
    _check_nesting(text)
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return _first_of_several(text)
    return text


def kind_of(value: bytes) -> str:
    """Return the kind of a JSON value by its first byte: object, array, string, number, bool or null."""
    kinds = {b"{": "object", b"[": "array", b'"': "string", b"t": "bool", b"f": "bool", b"n": "null"}
    return kinds.get(value[:1], "number")


def _first_of_several(text: bytes) -> bytes:
    try:
        decoded = text.decode()
        _, end = _DECODER.raw_decode(decoded)
        value = decoded[:end].encode()
        msgspec.json.decode(value, type=msgspec.Raw)
    except RecursionError:
        raise InvalidJson(f"nesting is deeper than {MAX_NESTING}") from None
    except UnicodeDecodeError:
        raise InvalidJson("not UTF-8") from None
    except json.JSONDecodeError as error:
        raise InvalidJson(_describe(error, len(text))) from None
    except msgspec.DecodeError as error:
        raise InvalidJson(str(error)) from None
    return value


def _describe(error: json.JSONDecodeError, length: int) -> str:
    if error.pos >= length or error.msg.startswith("Unterminated"):
        return "unexpected EOF"
    return f"{error.msg} at character {error.pos}"


def _check_nesting(text: bytes) -> None:
    """Raise InvalidJson if brackets nest too deeply. The decoder refuses unbalanced brackets.

    Each pass removes the innermost brackets, so there is one pass per level, and each runs in C.
    """
    if text.count(b"[") + text.count(b"{") <= MAX_NESTING:
        return
    left = _STRINGS.sub(b"", text).translate(_SQUARE, _NOT_BRACKETS)
    for _ in range(MAX_NESTING):
        left = left.replace(b"[]", b"")
        if not left:
            return
    if b"[" in left:
        raise InvalidJson(f"nesting is deeper than {MAX_NESTING}")
