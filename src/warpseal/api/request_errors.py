"""Errors of a request before it reaches a service: its HTTP, size, timing and spelling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from warpseal.errors import InvalidRequest, WarpsealError


class ConflictingSpellings(InvalidRequest):
    """Two spellings of one field, or the same spelling twice, carry different values."""

    code = "conflicting_spellings"


class FieldTooLarge(InvalidRequest):
    """A message or justification is longer than this daemon takes."""

    code = "field_too_large"

    def __init__(self, field: str, limit_bytes: int) -> None:
        super().__init__(field, f"longer than the {limit_bytes} bytes that are allowed")
        self.limit_bytes = limit_bytes

    def detail(self) -> Mapping[str, Any]:
        return {**InvalidRequest.detail(self), "limitBytes": self.limit_bytes}


class AllZeroes(InvalidRequest):
    """The message consists of zero bytes only, and so does the justification."""

    code = "only_zeroes"


class BodyTooLarge(WarpsealError):
    """The request body is longer than this daemon takes."""

    code = "body_too_large"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"the request body is longer than the {limit_bytes} bytes that are allowed")
        self.limit_bytes = limit_bytes

    def detail(self) -> Mapping[str, Any]:
        return {"limitBytes": self.limit_bytes}


class HeaderTooLarge(WarpsealError):
    """The request line and header fields are longer than this daemon takes."""

    code = "header_too_large"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"the request header is longer than the {limit_bytes} bytes that are allowed")
        self.limit_bytes = limit_bytes

    def detail(self) -> Mapping[str, Any]:
        return {"limitBytes": self.limit_bytes}


class ReceiveTimeout(WarpsealError):
    """The request did not arrive in full within the time that is allowed for it."""

    code = "receive_timeout"

    def __init__(self, allowed_s: float) -> None:
        super().__init__(f"the request did not arrive in full within {allowed_s:g} s")
        self.allowed_s = allowed_s

    def detail(self) -> Mapping[str, Any]:
        return {"allowedSeconds": self.allowed_s}


class MalformedHTTP(WarpsealError):
    """The bytes on the connection are not HTTP/1.1."""

    code = "malformed_http"

    def __init__(self) -> None:
        super().__init__("the request is not valid HTTP/1.1")


class MethodNotAllowed(WarpsealError):
    """The path exists, but not for this method."""

    code = "method_not_allowed"

    def __init__(self, method: str, allowed: Sequence[str]) -> None:
        super().__init__(f"method {method[:32]} is not allowed here; use {' or '.join(allowed)}")
        self.allowed = tuple(allowed)

    def detail(self) -> Mapping[str, Any]:
        return {"allowed": list(self.allowed)}


class TooManyConnections(WarpsealError):
    """Too many connections to this port are open."""

    code = "too_many_connections"

    def __init__(self) -> None:
        super().__init__("too many connections are open; try again later")


class ClientDisconnected(Exception):
    """The client closed its connection before the response."""
