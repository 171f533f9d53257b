"""The guard of the administration endpoint: callers with the token, or without a token this machine only."""

from __future__ import annotations

import hmac
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from warpseal.api.data.access import client_network
from warpseal.api.in_flight import client_address
from warpseal.api.node.text_responses import not_found_response, text_response

_FORWARDED: Final = b"forwarded"
_X_FORWARDED: Final = b"x-forwarded-"
_SCHEME: Final = "bearer "


class AdminGuard:
    """Wraps the endpoint. token: None where there is none; then a request that came through a proxy is not of here."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._token is None:
            app = self._app if _is_local(scope) else not_found_response()
        else:
            app = self._app if _has_token(scope, self._token) else _unauthorized()
        await app(scope, receive, send)


def _is_local(scope: Scope) -> bool:
    names = (name.replace(b"_", b"-") for name, _ in scope["headers"])
    is_forwarded = any(name == _FORWARDED or name.startswith(_X_FORWARDED) for name in names)
    return not is_forwarded and client_network(client_address(scope))[1]


def _has_token(scope: Scope, token: str) -> bool:
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(given) != 1 or given[0][: len(_SCHEME)].decode("latin-1").lower() != _SCHEME:
        return False
    return hmac.compare_digest(given[0][len(_SCHEME) :].strip(), token.encode())


def _unauthorized() -> ASGIApp:
    response = text_response(401, "unauthorized")
    response.headers["www-authenticate"] = "Bearer"
    return response
