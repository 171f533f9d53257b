"""Answers in plain text, as a node gives them where no JSON-RPC is reached."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

TEXT: Final = "text/plain; charset=utf-8"
NOT_FOUND: Final = "404 page not found"
WRONG_HOST: Final = "invalid host specified"
WRONG_ORIGIN: Final = "origin not allowed"


def text_response(status: int, text: str) -> Response:
    """Return an answer of one line, its end included; a browser must not guess what it is."""
    return Response(text + "\n", status, {"content-type": TEXT, "x-content-type-options": "nosniff"})


def unterminated_text_response(status: int, text: str) -> Response:
    """Return an answer of one line without its end: dialect A's refusals have none."""
    return Response(text, status, {"content-type": TEXT})


def empty_response(status: int, content_type: str | None = None) -> Response:
    """Return an answer without a body."""
    return Response(b"", status, {"content-type": content_type} if content_type else None)


def not_found_response() -> Response:
    """Return what is said of a path that is not there, or must seem so."""
    return text_response(404, NOT_FOUND)
