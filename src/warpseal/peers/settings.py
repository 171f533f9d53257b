"""Every default, unit and bound of the peer client; docs/protocol.md names the limits that they respect."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from warpseal.warp.ids import NodeID


@dataclass(frozen=True, slots=True)
class ManualPeer:
    """A node whose address the operator gives: connected for as long as the daemon runs."""

    node_id: NodeID
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """What an operator may set about the peer client; durations in seconds.

    data_dir: one folder per network id in it. The two TLS paths: both or none; they win over data_dir.
    max_connections: None means as many as the limit of open files allows.
    """

    data_dir: Path
    tls_cert_path: Path | None = None
    tls_key_path: Path | None = None
    manual_peers: tuple[ManualPeer, ...] = ()
    allow_private_ips: bool = False
    advertised_version: tuple[int, int, int] = (1, 15, 0)

    max_outstanding: int = 16
    max_sent_per_s: int = 500
    max_queued: int = 1_000
    slot_timeout_s: float = 3.0
    request_deadline_s: float = 10.0

    max_connections: int | None = None
    dial_concurrency: int = 128
    dials_per_s: float = 500.0
    min_redial_s: float = 10.0
    redial_cap_s: float = 60.0
    connect_timeout_s: float = 5.0
    tls_timeout_s: float = 15.0
    handshake_timeout_s: float = 30.0

    ping_interval_s: float = 20.0
    silence_timeout_s: float = 30.0
    unread_timeout_s: float = 30.0
    pong_delay_s: float = 0.005

    gossip_interval_s: float = 2.0
    address_timeout_s: float = 30.0
    address_save_interval_s: float = 30.0
    max_stored_nodes: int = 20_000
    clock_tolerance_s: float = 30.0
