"""Counters of the peer client, for each node and in total, and the reasons of failures."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from math import inf
from typing import Final, NamedTuple

from msgspec import Struct, field

# The weight of one response in the moving average.
_LATENCY_WEIGHT: Final = 0.1


class ConnectionFailure(StrEnum):
    """Why a connection ended or was never made, in addition to the protocol's CloseReason.

    The values are stable: they label logs and metrics.
    """

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


class UnreachableReason(StrEnum):
    """Why a node cannot be reached. The values are stable: they appear in error responses."""

    NOT_CONNECTED = "not_connected"
    PRIVATE_ADDRESS = "private_address"
    NO_ADDRESS = "no_address"
    WRONG_IDENTITY = "wrong_identity"


class Unreachable(NamedTuple):
    """A node that cannot be reached now.

    retry_at: time of its next dial, on the loop's clock; inf if none is scheduled.
    """

    reason: str
    retry_at: float = inf


class PeerStatistics(Struct, eq=False):
    """Counters of one node since it became tracked.

    requests: number of requests that were written or queued.
    responses: number of responses with app bytes.
    errors: number of application errors.
    refused: number of requests for which the node's queue was full.
    latency_s: exponentially weighted average, None before the first response.
    responded_at: time of the last response or error, on the loop's clock.
    """

    requests: int = 0
    responses: int = 0
    errors: int = 0
    refused: int = 0
    latency_s: float | None = None
    responded_at: float | None = None

    def count_response(self, latency_s: float, now: float, *, is_error: bool) -> None:
        """Count one response to a request that was made `latency_s` ago."""
        self.responded_at = now
        if is_error:
            self.errors += 1
        else:
            self.responses += 1
        if self.latency_s is None:
            self.latency_s = latency_s
        else:
            self.latency_s += _LATENCY_WEIGHT * (latency_s - self.latency_s)


class NetworkStatistics(Struct, eq=False):
    """Totals of the peer client since its start.

    dials: number of attempts.
    requests: number of requests, counted for each peer.
    timeouts: number of requests without a response in time, even if it comes later.
    dial_failures: attempts without a connection, by reason.
    disconnects: ends of connections with a completed handshake, by reason.
    addresses_learned: number of gossiped addresses with a valid signature.
    forged_addresses: number of gossiped addresses with another signature.
    """

    dials: int = 0
    requests: int = 0
    responses: int = 0
    errors: int = 0
    timeouts: int = 0
    dial_failures: Counter[str] = field(default_factory=Counter)
    disconnects: Counter[str] = field(default_factory=Counter)
    addresses_learned: int = 0
    forged_addresses: int = 0


class PeerStatus(Struct, frozen=True):
    """The connection to one tracked node, up or down, for the status page.

    Times are on the loop's clock; None means that a value is not known. Error responses have
    `DisconnectedNode` for a connection that is down.

    stage: connected, dialing, waiting (for the next dial), no_address.
    address: address of the connection, else the address to dial next.
    failure: reason why the last dial failed, or that there was none.
    detail: the same in words of the system or the library.
    next_dial_at: time of the next dial, while waiting.
    version: release in the node's handshake.
    """

    stage: str
    address: str | None = None
    connected_at: float | None = None
    failure: str | None = None
    detail: str | None = None
    disconnected_at: float | None = None
    next_dial_at: float | None = None
    version: str | None = None
    latency_s: float | None = None
    responded_at: float | None = None
