"""What a peer core tells its shell."""

from __future__ import annotations

from dataclasses import dataclass

from warpseal.protocol.addresses import ClaimedAddress
from warpseal.protocol.errors import CloseReason
from warpseal.protocol.handshake import PeerHandshake
from warpseal.protocol.requests import PeerRequest


@dataclass(frozen=True, slots=True)
class Connected:
    """Both sides have accepted each other: requests may be sent."""

    handshake: PeerHandshake


@dataclass(frozen=True, slots=True)
class AddressesClaimed:
    """A peer list came: well-formed entries, none of them verified, those of nodes nobody asked for included."""

    addresses: tuple[ClaimedAddress, ...]


class Answered:
    """The answer to a request of ours: app bytes, or a refusal's code and text.

    Not a frozen dataclass: a round makes a thousand of them, and those take three times as long to make.
    """

    __slots__ = ("body", "error_code", "error_message", "request")

    def __init__(self, request: PeerRequest, body: bytes | None, error_code: int | None, error_message: str) -> None:
        self.request = request
        self.body = body
        self.error_code = error_code
        self.error_message = error_message

    def __repr__(self) -> str:
        return f"Answered({self.request.request_id}, {self.body!r}, {self.error_code}, {self.error_message!r})"


@dataclass(frozen=True, slots=True)
class Closed:
    """The connection has to be closed; the core takes and gives nothing any more."""

    reason: CloseReason
    detail: str


Event = Connected | AddressesClaimed | Answered | Closed
