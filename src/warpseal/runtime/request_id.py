"""The id of the request that the current task serves; every log line of the request carries it.

A caller may choose the id (`X-Request-Id`); without a usable one, the daemon makes an id.
"""

from __future__ import annotations

import secrets
from contextvars import ContextVar
from typing import Final

MAX_REQUEST_ID_LENGTH: Final = 128

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Empty outside of requests. Tasks inherit the id of the task that started them."""


def parse_request_id(header: bytes) -> str | None:
    """Return the id that a caller chose; None if it is empty, too long or not printable ASCII."""
    if not 0 < len(header) <= MAX_REQUEST_ID_LENGTH:
        return None
    text = header.decode("latin-1").strip()
    return text if text and text.isascii() and text.isprintable() else None


def new_request_id() -> str:
    """Return an unpredictable id of 16 hex digits."""
    return secrets.token_hex(8)
