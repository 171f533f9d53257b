"""Access to the node API: the token of the administration endpoint, and the host names that
requests may use.

Source of truth: avalanchego `api/server/allowed_hosts.go` for host names. The check of host names
keeps web pages of foreign names away from the daemon (DNS rebinding).
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from warpseal.api.http.middleware import is_from_this_machine
from warpseal.api.node.router import not_found_response, text_response

ANY_HOST: Final = "*"
_MAX_CACHED_HOSTS: Final = 256
_SCHEME: Final = "bearer "


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


class AllowedHosts:
    """The allowed host names, compared without case and port.

    An IP address or an empty name is always allowed.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(name.lower() for name in names)

    def allow(self, host: str) -> bool:
        """Return whether a request with this Host header is allowed."""
        name = _without_port(host)
        return (
            not name or ANY_HOST in self._names or name.lower() in self._names or _is_address(name)
        )


def has_token(scope: Scope, token: str) -> bool:
    """Return whether a request carries the bearer token."""
    credentials = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(credentials) != 1 or credentials[0][: len(_SCHEME)].decode("latin-1").lower() != _SCHEME:
        return False
    return hmac.compare_digest(credentials[0][len(_SCHEME) :].strip(), token.encode())


def _without_port(host: str) -> str:
    if host.startswith("["):
        name, _, port = host[1:].partition("]")
        return name if not port or (port[0] == ":" and port[1:].isdigit()) else host
    name, colon, port = host.rpartition(":")
    return name if colon and ":" not in name and port.isdigit() else host


@lru_cache(_MAX_CACHED_HOSTS)
def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
