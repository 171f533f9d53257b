"""Why a connection ends or never comes about, where the peer core does not say it."""

from __future__ import annotations

from enum import StrEnum


class Failure(StrEnum):
    """The values are stable, like those of protocol's CloseReason: both label logs and metrics."""

    UNREACHABLE = "unreachable"
    CONNECT_TIMEOUT = "connect_timeout"
    TLS_TIMEOUT = "tls_timeout"
    TLS_FAILED = "tls_failed"
    MALFORMED_CERTIFICATE = "malformed_certificate"
    WRONG_IDENTITY = "wrong_identity"
    HUNG_UP = "hung_up"
    NOT_READING = "not_reading"
    NOT_WANTED = "not_wanted"
    STOPPED = "stopped"
    INTERNAL = "internal"
