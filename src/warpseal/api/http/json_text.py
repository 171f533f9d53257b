"""The first JSON value of a body as node interfaces take it, with bounded nesting."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

import msgspec

MAX_NESTING: Final = 64
BLANK: Final = b" \t\r\n"
# No step of a check takes longer than this many bytes do: other threads run in between.
_PIECE_BYTES: Final = 65_536
_BRACKETS: Final = b"[]{}"
_NOT_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in _BRACKETS)
_OPENS: Final = b"\x01"
_LEVEL_CHANGES: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_TRAILING: Final = re.compile(r"trailing characters \(byte (\d+)\)")


class InvalidJson(ValueError):
    """Text that is no JSON value. The message is a short reason."""


def first_value(body: bytes) -> bytes:
    """Return the first JSON value of a body without the text after it.

    U+FFFD replaces bytes that are not UTF-8. Raises InvalidJson.
    """
    text = body.strip(BLANK)
    if not text:
        raise InvalidJson("EOF")
    _check_nesting(text)
    end = end_of_first_value(text)
    value = text if end == len(text) else text[:end].rstrip(BLANK)
    return as_utf8(value)


def as_utf8(text: bytes) -> bytes:
    """Return a text in which U+FFFD replaces bytes that are not UTF-8, as Go's decoder does."""
    return text if text.isascii() else text.decode(errors="replace").encode()


def end_of_first_value(text: bytes | memoryview) -> int:
    """Return the position after the first JSON value of a text, and the blanks after it.

    Raises InvalidJson.
    """
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except msgspec.DecodeError as error:
        text_of_error = str(error)
        trailing = _TRAILING.search(text_of_error)
        if trailing is not None:
            # The error names the second trailing byte.
            return int(trailing[1]) - 1
        reason = "unexpected EOF" if "truncated" in text_of_error else text_of_error
        raise InvalidJson(reason) from None
    except RecursionError:
        raise InvalidJson(f"nesting is deeper than {MAX_NESTING}") from None
    return len(text)


def kind_of(value: bytes) -> str:
    """Return the kind of a JSON value by its first byte.

    Kinds are object, array, string, number, bool and null.
    """
    kinds = {
        b"{": "object",
        b"[": "array",
        b'"': "string",
        b"t": "bool",
        b"f": "bool",
        b"n": "null",
    }
    return kinds.get(value[:1], "number")


def count_brackets(text: bytes) -> int:
    """Return how many brackets a text opens outside strings."""
    return sum(changes.count(_OPENS) for changes in _level_changes(text))


def _check_nesting(text: bytes) -> None:
    """Check that brackets of the first value do not nest too deeply.

    The decoder refuses unbalanced brackets. Raises InvalidJson.
    """
    if text.count(b"[") + text.count(b"{") <= MAX_NESTING:
        return
    level = 0
    for changes in _level_changes(text):
        levels = tuple(accumulate(memoryview(changes).cast("b"), initial=level))
        if max(levels) > MAX_NESTING:
            raise InvalidJson(f"nesting is deeper than {MAX_NESTING}")
        level = levels[-1]
        if level <= 0 and changes:
            return


def _level_changes(text: bytes) -> Iterator[bytes]:
    """Yield the brackets outside strings, piece by piece, as signed bytes.

    1 is an opening bracket, -1 a closing bracket.
    """
    in_string, held = False, b""
    for start in range(0, len(text), _PIECE_BYTES):
        piece = held + text[start : start + _PIECE_BYTES]
        # A backslash at the end may escape the first byte of the next piece.
        is_escaping = (len(piece) - len(piece.rstrip(b"\\"))) % 2
        held = b"\\" if is_escaping else b""
        complete = piece[: len(piece) - is_escaping]
        parts = complete.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')
        yield b"".join(parts[in_string::2]).translate(_LEVEL_CHANGES, _NOT_BRACKETS)
        in_string ^= len(parts) % 2 == 0
