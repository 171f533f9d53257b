"""Log lines: the levels of an operator, the fields of a record, and the two formats, text and JSON."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from enum import Enum, StrEnum
from functools import lru_cache
from math import isfinite
from typing import Any, Final

from warpseal.runtime.request_id import request_id

TRACE: Final = 15
VERBO: Final = 1
OFF: Final = logging.CRITICAL + 10

LEVELS: Final[Mapping[str, int]] = {
    "off": OFF,
    "fatal": logging.CRITICAL,
    "error": logging.ERROR,
    "warn": logging.WARNING,
    "info": logging.INFO,
    "trace": TRACE,
    "debug": logging.DEBUG,
    "verbo": VERBO,
}
"""From the most silent level to the most verbose one."""

_SCALARS: Final = (str, int, float)
_LEVEL_NAMES: Final = {number: name for name, number in LEVELS.items()}
_STANDARD_FIELDS: Final = frozenset(vars(logging.LogRecord("", 0, "", 0, "", None, None))) | {
    "message",
    "asctime",
    "request_id",
}


class LogFormat(StrEnum):
    """The format of all log lines of a process."""

    TEXT = "text"
    JSON = "json"


class LineFormatter(logging.Formatter):
    """Formats `time LEVEL logger message key=value …`; values with spaces or control characters are JSON-quoted.

    The fields of a mapping are named `key.name`, items of a list are joined by commas, and None is left out.
    """

    def format(self, record: logging.LogRecord) -> str:
        level = "FATAL" if record.levelno >= logging.CRITICAL else record.levelname
        line = f"{_moment(record)} {level:5} {record.name} {escape_controls(record.getMessage())}"
        fields = "".join([_pairs(key, value) for key, value in _fields_of(record).items()])
        trace = "\n" + self.formatException(record.exc_info) if record.exc_info else ""
        return line + fields + trace


class JsonFormatter(logging.Formatter):
    """Formats one JSON object: `time`, `level`, `logger`, `message`, the fields, and `trace` with a traceback.

    Its ASCII text escapes control characters, so that no peer or client can forge a log line.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _moment(record),
            "level": _LEVEL_NAMES.get(record.levelno) or record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for key, value in _fields_of(record).items():
            line.setdefault(key, plain_value(value))
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, separators=(",", ":"))


def plain_value(value: object) -> Any:
    """Return a value as JSON has it, so that none shows the notation of Python; bytes are hex."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(plain_value(key)): plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain_value(item) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    return plain_value(value.value) if isinstance(value, Enum) else str(value)


def escape_controls(message: str) -> str:
    """Return the message with control characters escaped, so that no peer or client can forge a log line."""
    if message.isprintable():
        return message
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in message)


def add_request_id(record: logging.LogRecord) -> bool:
    """Note the request that is being served; a filter that lets every record pass."""
    record.request_id = request_id.get()
    return True


def _fields_of(record: logging.LogRecord) -> dict[str, object]:
    fields = {key: value for key, value in vars(record).items() if key not in _STANDARD_FIELDS}
    current = getattr(record, "request_id", "")
    return {**fields, "request_id": current} if current else fields


def _pairs(key: str, value: object) -> str:
    """Return ` key=value`, or the pairs of the items of a value that has some."""
    if isinstance(value, _SCALARS):
        return f" {key}={_quoted(_text(value))}"
    plain = plain_value(value)
    if isinstance(plain, list):
        texts = [_text(item) for item in plain if isinstance(item, _SCALARS)]
        if len(texts) == len(plain) and all(_is_plain(text) and "," not in text for text in texts):
            return _pairs(key, ",".join(texts))
        plain = {str(position): item for position, item in enumerate(plain)}
    if isinstance(plain, dict):
        return "".join([_pairs(f"{key}.{_quoted(name)}", item) for name, item in plain.items()])
    return "" if plain is None else _pairs(key, plain)


def _text(value: str | int | float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _quoted(text: str) -> str:
    return text if _is_plain(text) else json.dumps(text)


def _is_plain(text: str) -> bool:
    return text.isprintable() and text != "" and not (" " in text or "=" in text or '"' in text)


def _moment(record: logging.LogRecord) -> str:
    return f"{_second(int(record.created))}.{int(record.msecs):03d}Z"


@lru_cache(1)
def _second(created_s: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created_s))
