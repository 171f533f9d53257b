"""What a peer can do wrong: faults inside the room, and the reasons for which a connection is closed."""

from __future__ import annotations

from enum import StrEnum


class CloseReason(StrEnum):
    """Why our side gives a connection up. The values are stable: they label logs and metrics."""

    FRAME_TOO_LONG = "frame_too_long"
    SECOND_HANDSHAKE = "second_handshake"
    MALFORMED_HANDSHAKE = "malformed_handshake"
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


class ProtocolFault(Exception):
    """Base of what a peer can do wrong. None of them leaves the room: the core turns them into events."""


class Undecodable(ProtocolFault):
    """Bytes that are no message: counted and skipped, as nodes do."""


class ConnectionFault(ProtocolFault):
    """A fault that ends the connection."""

    def __init__(self, reason: CloseReason, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason.value)
        self.reason = reason
        self.detail = detail
