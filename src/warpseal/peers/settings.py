"""Settings of the peer client; docs/protocol.md names the limits of nodes that they respect."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any

from msgspec import Struct

from warpseal.protocol.limits import MIN_REDIAL_S, PING_INTERVAL_S, SILENCE_TIMEOUT_S
from warpseal.runtime.settings import (
    REQUIRED,
    Group,
    Settings,
    boolean,
    invalid_setting,
    json_object,
    list_of,
    optional_path,
    path_value,
    setting,
    text,
)
from warpseal.warp.ids import MalformedID, NodeID, parse_node_id


class ManualPeer(Struct, frozen=True):
    """A node whose address the operator gives: connected for as long as the daemon runs."""

    node_id: NodeID
    host: str
    port: int


def manual_peer(value: Any, path: str) -> ManualPeer:
    """Accept {id: "NodeID-…", ip: "a.b.c.d:port"}."""
    fields = json_object(value, path, {"id": _node_id, "ip": _host_and_port}, required={"id", "ip"})
    return ManualPeer(fields["id"], *fields["ip"])


def version(value: Any, path: str) -> tuple[int, int, int]:
    """Accept "major.minor.patch"."""
    parts = text(value, path).split(".")
    if len(parts) != 3 or not all(part.isdecimal() and len(part) < 6 for part in parts):
        raise invalid_setting(path, 'expected a version such as "1.15.0"')
    return int(parts[0]), int(parts[1]), int(parts[2])


def _node_id(value: Any, path: str) -> NodeID:
    try:
        return parse_node_id(text(value, path))
    except MalformedID as error:
        reason = (
            f"expected NodeID- and its base58-check text, found {text(value, path)[:80]!r}"
            f" ({error})"
        )
        raise invalid_setting(path, f"{reason}; a node shows its own by info.getNodeID") from error


def _host_and_port(value: Any, path: str) -> tuple[str, int]:
    host, separator, port = text(value, path).rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        ipaddress.ip_address(host)
        number = int(port)
    except ValueError as error:
        raise invalid_setting(path, 'expected an address such as "203.0.113.7:9651"') from error
    if not separator or not 0 < number < 65536:
        raise invalid_setting(path, "expected a port of 1..65535")
    return host, number


class PeerSettings(Settings, frozen=True):
    """Durations in seconds.

    data_dir: holds one folder per network id.
    tls_cert_path, tls_key_path: both or none; they win over data_dir.
    max_connections: None is as many as the limit of open files allows.
    """

    data_dir: Path = setting(
        REQUIRED,
        "data-dir",
        path_value,
        "folder of the identity, the store and the index",
        "DIR",
        group=Group.STORE,
    )
    tls_cert_path: Path | None = setting(
        None,
        "tls-cert-path",
        optional_path,
        "TLS certificate to use instead of the one in data-dir",
        "FILE",
        group=Group.NETWORK,
        is_reference=True,
    )
    tls_key_path: Path | None = setting(
        None,
        "tls-key-path",
        optional_path,
        "key of tls-cert-path",
        "FILE",
        group=Group.NETWORK,
        is_reference=True,
    )
    manual_peers: tuple[ManualPeer, ...] = setting(
        (),
        "manually-tracked-peers",
        list_of(manual_peer),
        "nodes with a known address",
        "JSON",
        group=Group.NETWORK,
        is_reference=True,
    )
    allow_private_ips: bool = setting(
        False,
        "allow-private-ips",
        boolean,
        "connections to validators at private addresses",
        "BOOL",
        group=Group.NETWORK,
        is_reference=True,
    )
    advertised_version: tuple[int, int, int] | None = setting(
        None,
        "advertised-version",
        version,
        "node version that the handshake advertises; unset: 1.15.3, or a newer one if a third of"
        " the weight refuses it",
        "X.Y.Z",
        group=Group.NETWORK,
    )

    # Of one peer. A node handles the requests of a chain two at a time; sixteen keep it busy for a
    # round trip.
    max_outstanding: int = 16
    max_sent_per_s: int = 500
    max_queued: int = 1_000
    slot_timeout_s: float = 3.0
    request_deadline_s: float = 10.0

    max_connections: int | None = None
    dial_concurrency: int = 128
    dials_per_s: float = 500.0
    min_redial_s: float = MIN_REDIAL_S
    redial_cap_s: float = 60.0
    connect_timeout_s: float = 5.0
    tls_timeout_s: float = 15.0
    handshake_timeout_s: float = 30.0

    ping_interval_s: float = PING_INTERVAL_S
    silence_timeout_s: float = SILENCE_TIMEOUT_S
    unread_timeout_s: float = 30.0
    pong_delay_s: float = 0.005

    gossip_interval_s: float = 2.0
    address_timeout_s: float = 30.0
    address_save_interval_s: float = 30.0
    max_stored_nodes: int = 20_000
    clock_tolerance_s: float = 30.0

    @property
    def is_configured_identity_missing(self) -> bool:
        """Whether neither file of tls-cert-path and tls-key-path exists.

        The daemon then creates both.
        """
        paths = (self.tls_cert_path, self.tls_key_path)
        return all(path is not None and not path.exists() for path in paths)
