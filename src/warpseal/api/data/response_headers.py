"""Headers that belong on an answer whatever becomes of it: they are noted on the way in and sent by the edge."""

from __future__ import annotations

from typing import Final

from starlette.types import Scope

_NOTED: Final = "warpseal.headers"


def noted_headers(scope: Scope) -> dict[str, str]:
    """Return the headers that the answer to this request will carry, lower case; callers add to them."""
    headers: dict[str, str] = scope.setdefault(_NOTED, {})
    return headers
