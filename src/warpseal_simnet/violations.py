"""Counts every protocol violation of the peers of simulated validators, also the tolerated ones.

A test of a correct client ends with zero. Source of truth: the reasons for which a node closes a
connection (avalanchego `network/peer/peer.go`), and the messages that it skips or leaves
unanswered.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from warpseal.warp.ids import NodeID, node_id_text

_MAX_LATEST: Final = 200
UNKNOWN_PEER: Final = "unknown"


class ViolationKind(StrEnum):
    """The kind of a violation. The comments say how a node reacts to each group."""

    # TLS: no connection is established.
    TLS_FAILED = "tls_failed"
    TLS_TIMEOUT = "tls_timeout"
    CERTIFICATE = "certificate"
    # Admission: closed without a byte.
    SELF = "self"
    DUPLICATE_NODE_ID = "duplicate_node_id"
    # Framing: closed.
    OVERSIZED_FRAME = "oversized_frame"
    TRUNCATED_FRAME = "truncated_frame"
    READ_TIMEOUT = "read_timeout"
    WRITE_TIMEOUT = "write_timeout"
    # Skipped.
    UNPARSABLE_MESSAGE = "unparsable_message"
    UNKNOWN_MESSAGE = "unknown_message"
    EARLY_MESSAGE = "early_message"
    EARLY_PEER_LIST = "early_peer_list"
    UNSOLICITED_RESPONSE = "unsolicited_answer"
    UNWANTED_MESSAGE = "unwanted_message"
    # Handshake: closed, in the order in which a node looks.
    SECOND_HANDSHAKE = "second_handshake"
    NETWORK_ID = "handshake_network_id"
    CLOCK = "handshake_clock"
    TOO_MANY_SUBNETS = "handshake_too_many_subnets"
    SUBNET_ID = "handshake_subnet_id"
    ACPS = "handshake_acps"
    KNOWN_PEERS = "handshake_known_peers"
    SALT = "handshake_salt"
    IP = "handshake_ip"
    PORT = "handshake_port"
    SIGNING_TIME = "handshake_signing_time"
    IP_SIGNATURE = "handshake_ip_signature"
    BLS_SIGNATURE = "handshake_bls_signature"
    VERSION = "handshake_version"
    BLS_PROOF = "handshake_bls_proof"
    # Later messages: closed.
    PING_UPTIME = "ping_uptime"
    UNEXPECTED_PONG = "unexpected_pong"
    GET_PEER_LIST_FILTER = "get_peer_list_filter"
    GET_PEER_LIST_SALT = "get_peer_list_salt"
    PEER_LIST_CERTIFICATE = "peer_list_certificate"
    PEER_LIST_IP = "peer_list_ip"
    PEER_LIST_PORT = "peer_list_port"
    PEER_LIST_TIME = "peer_list_time"
    PEER_LIST_SIGNATURE = "peer_list_signature"
    # Nodes do not check this: pings without a pong.
    UNANSWERED_PINGS = "unanswered_pings"
    # Application requests: silence.
    CHAIN_ID_LENGTH = "chain_id_length"
    DEADLINE = "deadline"
    EVEN_REQUEST_ID = "even_request_id"
    REUSED_REQUEST_ID = "reused_request_id"
    # Application requests: answered with an error.
    UNREGISTERED_HANDLER = "unregistered_handler"
    BAD_REQUEST = "bad_request"
    # Above the limits of a node, which stops reading for a while.
    TOO_MANY_OUTSTANDING = "too_many_outstanding"
    OVER_BANDWIDTH = "over_bandwidth"


@dataclass(frozen=True, slots=True)
class Violation:
    """One violation.

    peer and validator: NodeID texts; at: unix seconds.
    """

    kind: ViolationKind
    peer: str
    validator: str
    detail: str
    at: float


class Violations:
    """Counts by kind and peer, and the latest violations in full."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, ViolationKind]] = Counter()
        self._latest: list[Violation] = []

    def add(
        self, kind: ViolationKind, peer: NodeID | None, validator: NodeID, detail: str, at: float
    ) -> None:
        """Count one violation; peer is None if no certificate arrived."""
        name = UNKNOWN_PEER if peer is None else node_id_text(peer)
        self._counts[name, kind] += 1
        self._latest.append(Violation(kind, name, node_id_text(validator), detail[:200], at))
        del self._latest[:-_MAX_LATEST]

    @property
    def total(self) -> int:
        """The number of violations."""
        return self._counts.total()

    @property
    def latest(self) -> tuple[Violation, ...]:
        """The latest 200 violations, oldest first."""
        return tuple(self._latest)

    def by_kind(self) -> dict[str, int]:
        """Return the number of violations by kind."""
        kinds: Counter[str] = Counter()
        for (_, kind), count in self._counts.items():
            kinds[kind.value] += count
        return dict(kinds)

    def by_peer(self) -> dict[str, dict[str, int]]:
        """Return the counts by kind by the peer's NodeID."""
        peers: dict[str, dict[str, int]] = {}
        for (name, kind), count in self._counts.items():
            peers.setdefault(name, {})[kind.value] = count
        return peers

    def clear(self) -> None:
        """Forget everything."""
        self._counts.clear()
        self._latest.clear()

    def as_json(self) -> dict[str, Any]:
        """Return the report as the simulated node serves it."""
        latest = list(map(asdict, self._latest))
        return {
            "total": self.total,
            "byKind": self.by_kind(),
            "byPeer": self.by_peer(),
            "latest": latest,
        }
