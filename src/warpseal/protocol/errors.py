"""Why this side closes a connection with a peer."""

from __future__ import annotations

from enum import StrEnum


class CloseReason(StrEnum):
    """The values are stable: they label logs and metrics."""

    FRAME_TOO_LONG = "frame_too_long"
    SECOND_HANDSHAKE = "second_handshake"
    WRONG_NETWORK = "wrong_network"
    CLOCK_SKEW = "clock_skew"
    TOO_MANY_SUBNETS = "too_many_subnets"
    MALFORMED_SUBNET_ID = "malformed_subnet_id"
    MALFORMED_FILTER = "malformed_filter"
    MALFORMED_ADDRESS = "malformed_address"
    ADDRESS_FROM_THE_FUTURE = "address_from_the_future"
    WRONG_ADDRESS_SIGNATURE = "wrong_address_signature"
    MALFORMED_BLS_PROOF = "malformed_bls_proof"
    HANDSHAKE_TIMEOUT = "handshake_timeout"
    SILENT = "silent"
    FLOOD = "flood"


class ProtocolError(Exception):
    """The peer broke the protocol in a way that ends the connection; the protocol turns it into an event."""

    def __init__(self, reason: CloseReason, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason.value)
        self.reason = reason
        self.detail = detail
