"""Errors of a request before it is understood: its HTTP, its limits, its key, and a daemon that
starts or stops.
"""

from __future__ import annotations

from collections.abc import Sequence

from warpseal.errors import DAY_S, RETRY_SOON_S, InvalidRequest, WarpsealError


class ShuttingDown(WarpsealError):
    """The daemon is stopping and takes no new work."""

    code = "shutting_down"
    http_status = 503
    retry_after_s: float = RETRY_SOON_S


class StillStarting(WarpsealError):
    """The daemon is starting, or its start left a request too little time."""

    code = "starting"
    http_status = 503
    retry_after_s: float = RETRY_SOON_S
    default_text = "the daemon is starting; no node has reported the network id yet"


class BodyTooLarge(WarpsealError):
    """The request body is longer than this daemon takes."""

    code = "body_too_large"
    http_status = 413
    v1_status = 400

    def __init__(self, limit_bytes: int) -> None:
        text = f"the request body is longer than the {limit_bytes} bytes that are allowed"
        super().__init__(text, limit_bytes=limit_bytes)


class HeaderTooLarge(WarpsealError):
    """The request line and header fields are longer than this daemon takes."""

    code = "header_too_large"
    http_status = 400

    def __init__(self, limit_bytes: int) -> None:
        text = f"the request header is longer than the {limit_bytes} bytes that are allowed"
        super().__init__(text, limit_bytes=limit_bytes)


class ReceiveTimeout(WarpsealError):
    """The request did not arrive in full within the time that is allowed for it."""

    code = "receive_timeout"
    http_status = 400

    def __init__(self, allowed_s: float) -> None:
        super().__init__(
            f"the request did not arrive in full within {allowed_s:g} s", allowed_seconds=allowed_s
        )


class MalformedHTTP(WarpsealError):
    """The bytes on the connection are not HTTP/1.1."""

    code = "malformed_http"
    http_status = 400
    default_text = "the request is not valid HTTP/1.1"


class NotFound(WarpsealError):
    """There is no such path."""

    code = "not_found"
    http_status = 404


class MethodNotAllowed(WarpsealError):
    """The path exists, but not for this method."""

    code = "method_not_allowed"
    http_status = 405
    v1_status = 400

    def __init__(self, method: str, allowed: Sequence[str]) -> None:
        text = f"method {method[:32]} is not allowed here; use {' or '.join(allowed)}"
        self.allowed = tuple(allowed)
        super().__init__(text, allowed=self.allowed)


class UnknownTransferCoding(WarpsealError):
    """A body has another transfer coding than chunked."""

    code = "unknown_transfer_coding"
    http_status = 501

    def __init__(self, coding: str) -> None:
        super().__init__(
            f"expected the transfer coding chunked, or a Content-Length, got {coding!r}"
        )


class UnknownField(InvalidRequest):
    """The body holds a key that no dialect knows."""

    code = "unknown_field"


class TooManyConnections(WarpsealError):
    """Too many connections to this port are open."""

    code = "too_many_connections"
    http_status = 429
    retry_after_s: float = RETRY_SOON_S
    default_text = "too many connections are open; try again later"


class NetworkNotServed(WarpsealError):
    """The path names a network that this daemon does not serve."""

    code = "network_not_served"
    http_status = 404

    def __init__(self, name: str, served: Sequence[str], network_id: int) -> None:
        names = ", ".join(served)
        text = (
            f"network {name[:64]!r} is not served here; this daemon serves {names} (network id"
            f" {network_id})"
        )
        super().__init__(text, served=tuple(served))


class TooManyRequests(WarpsealError):
    """Too many requests are in flight, from everybody or from this client."""

    code = "too_many_requests"
    http_status = 429
    retry_after_s: float = RETRY_SOON_S

    def __init__(self, limit: int, *, per_client: bool) -> None:
        whose, scope = "in all", "daemon"
        if per_client:
            whose, scope = "from this client's network", "client"
        text = f"{limit} requests are in flight {whose}, which is the limit; try again shortly"
        super().__init__(text, limit=limit, scope=scope)


class ApiKeyRequired(WarpsealError):
    """This daemon serves callers with an API key only."""

    code = "api_key_required"
    http_status = 401
    default_text = (
        "an API key is required: send it as x-service-api-key, x-glacier-api-key or ?apikey="
    )


class ApiKeyRefused(WarpsealError):
    """The API key is unknown or revoked."""

    code = "api_key_refused"
    http_status = 403
    default_text = "this API key is unknown or revoked"


class RateLimited(WarpsealError):
    """The caller has used up its compute units for now.

    limit_units: number of units in window_s seconds.
    retry_after_s: seconds until there are enough units again.
    """

    code = "rate_limited"
    http_status = 429
    retry_after_s: float = RETRY_SOON_S
    max_retry_after_s = DAY_S

    def __init__(self, limit_units: int, window_s: int, retry_after_s: float) -> None:
        text = f"rate limit exceeded: {limit_units} compute units in {window_s} s"
        super().__init__(text, limit_units=limit_units, window_seconds=window_s)
        self.retry_after_s = retry_after_s


class AdminTokenRequired(WarpsealError):
    """The request needs the admin token, and has none."""

    code = "admin_token_required"
    http_status = 401
    default_text = "the admin token is required: send it as Authorization: Bearer"


class AdminTokenRefused(WarpsealError):
    """The admin token is wrong; or the daemon has none, and the path needs one, or the caller is on
    another machine.
    """

    code = "admin_token_refused"
    http_status = 403
    default_text = "only the administrator may do this: admin-token names the token"
