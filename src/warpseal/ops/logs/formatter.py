"""One line per event: time, level, logger, message, key=value fields, the request id on each line of a request."""

from __future__ import annotations

import json
import logging
import time
from functools import lru_cache

from warpseal.runtime.request_id import request_id

_STANDARD_FIELDS = frozenset(vars(logging.LogRecord("", 0, "", 0, "", None, None))) | {
    "message",
    "asctime",
    "request_id",
}


class LineFormatter(logging.Formatter):
    """Formats `time LEVEL logger message key=value …`; values with spaces or control characters are JSON-quoted."""

    def format(self, record: logging.LogRecord) -> str:
        level = "FATAL" if record.levelno >= logging.CRITICAL else record.levelname
        moment = f"{_second(int(record.created))}.{int(record.msecs):03d}Z"
        line = f"{moment} {level:5} {record.name} {escape_controls(record.getMessage())}"
        fields = "".join([f" {key}={_shown(value)}" for key, value in _fields_of(record).items()])
        trace = "\n" + self.formatException(record.exc_info) if record.exc_info else ""
        return line + fields + trace


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


def _shown(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    plain = text.isprintable() and text != "" and not (" " in text or "=" in text or '"' in text)
    return text if plain else json.dumps(text)


@lru_cache(1)
def _second(created_s: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created_s))
