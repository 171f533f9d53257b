"""Plain-text responses of a node to requests that do not reach a JSON-RPC method."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

TEXT: Final = "text/plain; charset=utf-8"
NOT_FOUND: Final = "404 page not found"
WRONG_HOST: Final = "invalid host specified"
WRONG_ORIGIN: Final = "origin not allowed"


def text_response(status: int, text: str) -> Response:
    """Return a response of one line with its newline. Browsers must not guess its type."""
    return Response(text + "\n", status, {"content-type": TEXT, "x-content-type-options": "nosniff"})


def unterminated_text_response(status: int, text: str) -> Response:
    """Return a response of one line without a newline, as dialect A refuses requests."""
    return Response(text, status, {"content-type": TEXT})


def empty_response(status: int, content_type: str | None = None) -> Response:
    """Return a response without a body."""
    return Response(b"", status, {"content-type": content_type} if content_type else None)


def not_found_response() -> Response:
    """Return the response for a path that does not exist or must not be revealed."""
    return text_response(404, NOT_FOUND)
