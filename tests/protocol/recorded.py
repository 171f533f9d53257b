"""The recorded peer sessions of a local network: what a client and seven real nodes wrote to each
other.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from tests import paths
from warpseal.pb import p2p_pb2
from warpseal.protocol.certificate import Certificate, parse_certificate
from warpseal.warp.ids import NodeID, parse_node_id

VECTORS = paths.VECTORS
NETWORK_ID = 88888
LINES: list[dict[str, Any]] = [
    json.loads(line) for line in (VECTORS / "localnet" / "wire.jsonl").read_text().splitlines()
]
CLIENT = parse_certificate(bytes.fromhex(LINES[0]["client_certificate_der"]))


@dataclass(slots=True)
class Session:
    """One connection: whole frames in the order they were written."""

    node_id: NodeID
    certificate: Certificate
    sent_frames: list[bytes] = field(default_factory=list)
    received_frames: list[bytes] = field(default_factory=list)
    # The messages inside `received_frames`, inflated.
    inner: list[p2p_pb2.Message] = field(default_factory=list)

    @property
    def handshake(self) -> p2p_pb2.Handshake:
        return self.inner[0].handshake

    @property
    def client_handshake(self) -> p2p_pb2.Handshake:
        return p2p_pb2.Message.FromString(self.sent_frames[0][4:]).handshake

    @property
    def requests(self) -> list[tuple[p2p_pb2.AppRequest, bytes]]:
        return [
            (p2p_pb2.Message.FromString(frame[4:]).app_request, frame)
            for frame in self.sent_frames[2:]
        ]


def _sessions() -> list[Session]:
    sessions: dict[str, Session] = {}
    for line in LINES[1:]:
        if "certificate_der" in line:
            certificate = parse_certificate(bytes.fromhex(line["certificate_der"]))
            sessions[line["node"]] = Session(parse_node_id(line["node"]), certificate)
            continue
        session, frame = sessions[line["node"]], bytes.fromhex(line["frame"])
        if line["direction"] == "sent":
            session.sent_frames.append(frame)
            continue
        session.received_frames.append(frame)
        session.inner.append(
            p2p_pb2.Message.FromString(bytes.fromhex(line.get("inner", frame[4:].hex())))
        )
    return list(sessions.values())


SESSIONS = _sessions()
FRAMES = [bytes.fromhex(line["frame"]) for line in LINES if "frame" in line]
