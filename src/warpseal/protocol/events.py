"""Events that `PeerProtocol` returns."""

from __future__ import annotations

from dataclasses import dataclass

from warpseal.protocol.addresses import ClaimedIpPort
from warpseal.protocol.errors import CloseReason
from warpseal.protocol.handshake import PeerHandshake
from warpseal.protocol.requests import PeerRequest


@dataclass(frozen=True, slots=True)
class HandshakeCompleted:
    """Both sides have accepted each other: requests may be sent."""

    handshake: PeerHandshake


@dataclass(frozen=True, slots=True)
class PeersGossiped:
    """The peer sent a peer list. The entries are well-formed, not verified, and may be of unknown nodes."""

    addresses: tuple[ClaimedIpPort, ...]


class ResponseReceived:
    """The response to a request: app bytes (body), or the code and text of an application error.

    This is not a frozen dataclass: a round makes a thousand of them, and a frozen dataclass takes three times as long.
    """

    __slots__ = ("body", "error_code", "error_message", "request")

    def __init__(self, request: PeerRequest, body: bytes | None, error_code: int | None, error_message: str) -> None:
        self.request = request
        self.body = body
        self.error_code = error_code
        self.error_message = error_message

    def __repr__(self) -> str:
        return f"ResponseReceived({self.request.request_id}, {self.body!r}, {self.error_code}, {self.error_message!r})"


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    """The caller must close the connection; the protocol ignores all further input and writes nothing."""

    reason: CloseReason
    detail: str


Event = HandshakeCompleted | PeersGossiped | ResponseReceived | ConnectionClosed
