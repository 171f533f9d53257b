"""Peers made up for the tests: certificates, the frames of an honest node, chunks of a stream."""

from __future__ import annotations

import datetime
import random
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Address, ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from warpseal import bls
from warpseal.pb import p2p_pb2
from warpseal.protocol.addresses import signed_bytes
from warpseal.protocol.bloom import BloomFilter
from warpseal.protocol.certificate import Certificate, parse_certificate
from warpseal.protocol.framing import Zstd, encode_frame
from warpseal.protocol.handshake import OwnHandshake
from warpseal.protocol.messages import EMPTY_PEER_LIST_FRAME
from warpseal.protocol.peer import PeerProtocol, ProtocolSettings
from warpseal.protocol.requests import PeerRequest
from warpseal.warp.protobuf import encode_field

NETWORK_ID = 12345
UNIX_S = 1_700_000_000
CHAIN = bytes(range(32))
ZSTD = Zstd()
NO_PEERS = BloomFilter((0,), b"\x00", b"")


@dataclass(frozen=True, slots=True)
class Node:
    """A node with its keys."""

    key: ec.EllipticCurvePrivateKey
    certificate: Certificate
    bls_secret: bls.SecretKey

    def sign(self, message: bytes) -> bytes:
        return self.key.sign(message, ec.ECDSA(hashes.SHA256()))

    def handshake(self, ip: str = "127.0.0.1", port: int = 9651) -> p2p_pb2.Handshake:
        """Return what a node of release 1.15.0 says at UNIX_S."""
        address = ip_address(ip)
        signed = signed_bytes(address, port, UNIX_S)
        return p2p_pb2.Handshake(
            network_id=NETWORK_ID,
            my_time=UNIX_S,
            ip_addr=address.packed,
            ip_port=port,
            ip_signing_time=UNIX_S,
            ip_node_id_sig=self.sign(signed),
            client=p2p_pb2.Client(name="avalanchego", major=1, minor=15),
            known_peers=p2p_pb2.BloomFilter(filter=NO_PEERS.encode()),
            ip_bls_sig=bls.sign_possession(self.bls_secret, signed),
            all_subnets=True,
        )

    def claim(
        self, ip: str = "127.0.0.1", port: int = 9651, timestamp: int = UNIX_S
    ) -> p2p_pb2.ClaimedIpPort:
        """Return the entry of a peer list with the address of this node."""
        signature = self.sign(signed_bytes(IPv4Address(ip), port, timestamp))
        return p2p_pb2.ClaimedIpPort(
            x509_certificate=self.certificate.der,
            ip_addr=IPv4Address(ip).packed,
            ip_port=port,
            timestamp=timestamp,
            signature=signature,
            tx_id=bytes(32),
        )


def node(number: int = 0) -> Node:
    """Return a node; the same one for the same number."""
    return _node(number)


@cache
def _node(number: int) -> Node:
    key = ec.generate_private_key(ec.SECP256R1())
    start = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
    builder = x509.CertificateBuilder(
        x509.Name([]),
        x509.Name([]),
        key.public_key(),
        1,
        start,
        start + datetime.timedelta(days=36500),
    )
    der = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)
    return Node(key, parse_certificate(der), bls.generate_secret(number.to_bytes(32, "big")))


@cache
def own_handshake() -> OwnHandshake:
    """Return our side's handshake, with a claim that was signed at UNIX_S."""
    own = OwnHandshake(NETWORK_ID, node(1000).sign, node(1000).bls_secret)
    own.encode(UNIX_S, NO_PEERS)
    return own


@cache
def handshake_frame(number: int = 0) -> bytes:
    """Return the frame with which the node of this number begins."""
    return frame_of(p2p_pb2.Message(handshake=node(number).handshake()))


def frame_of(message: p2p_pb2.Message, *, compressed: bool = False) -> bytes:
    """Return a message's frame, plain or compressed."""
    raw = message.SerializeToString()
    return encode_frame(encode_field(2, ZSTD.compress(raw)) if compressed else raw)


def response_frame(
    request_id: int, body: bytes, *, compressed: bool = True, chain: bytes = CHAIN
) -> bytes:
    """Return the frame of a response."""
    response = p2p_pb2.AppResponse(chain_id=chain, request_id=request_id, app_bytes=body)
    return frame_of(p2p_pb2.Message(app_response=response), compressed=compressed)


def new_core(
    settings: ProtocolSettings | None = None,
    certificate: Certificate | None = None,
    now: float = 0.0,
) -> PeerProtocol:
    """Return the core of a connection whose first bytes are not written yet."""
    return PeerProtocol(
        own_handshake(),
        certificate or node().certificate,
        settings or ProtocolSettings(),
        ZSTD,
        NO_PEERS,
        now,
        UNIX_S,
    )


def started_core(settings: ProtocolSettings | None = None) -> PeerProtocol:
    """Return the core of a connection to node 0, started at 0.0."""
    core = new_core(settings)
    core.output()
    return core


def connected_core(settings: ProtocolSettings | None = None) -> PeerProtocol:
    """Return the core of a connection that has reached connected at 0.0."""
    core = started_core(settings)
    core.receive(handshake_frame() + EMPTY_PEER_LIST_FRAME, 0.0)
    return core


def request(request_id: int, deadline: float = 10.0, *, is_reask: bool = False) -> PeerRequest:
    """Return a request whose frame contains its ID."""
    frame = b"<%d>" % request_id
    return PeerRequest(
        CHAIN,
        request_id,
        frame,
        deadline,
        is_reask=is_reask,
        on_response=lambda response: None,
        requested_at=0.0,
    )


def random_chunks(data: bytes, rnd: random.Random, longest: int = 64) -> list[bytes]:
    """Return `data` in pieces of random length, some of them empty."""
    chunks = []
    while data:
        length = rnd.randint(0, rnd.choice((1, 3, longest, len(data))))
        chunks.append(data[:length])
        data = data[length:]
    return chunks
