"""Access to the administration endpoint of the node API."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from warpseal.api.http.access import has_token
from warpseal.api.http.middleware import is_from_this_machine
from warpseal.api.http.responses import not_found_response, text_response


class AdminGuard:
    """Wraps the administration endpoint.

    With a token, only requests that carry it are allowed. Without a token (None), only requests
    from this machine are allowed, and none that a proxy forwarded.
    """

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._token is None:
            app = self._app if is_from_this_machine(scope) else not_found_response()
        elif has_token(scope, self._token):
            app = self._app
        else:
            app = denial = text_response(401, "unauthorized")
            denial.headers["www-authenticate"] = "Bearer"
        await app(scope, receive, send)
