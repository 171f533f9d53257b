"""Handshakes: ours, and the checks that a peer's has to pass.

Source of truth: avalanchego `network/peer/peer.go` and `ip.go`. The checks are those of a node, in its order, but
for two: we refuse no peer for its version, and its support of or objection to proposals is not read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Final

from warpseal import bls
from warpseal.pb import p2p_pb2
from warpseal.protocol.addresses import (
    MAX_CLOCK_SKEW_S,
    ClaimedAddress,
    IPAddress,
    MalformedAddress,
    parse_ip,
    parse_port,
    signed_bytes,
)
from warpseal.protocol.bloom import BloomFilter, MalformedFilter, check_filter
from warpseal.protocol.certificate import Certificate
from warpseal.protocol.errors import CloseReason, ConnectionFault
from warpseal.protocol.messages import encode_handshake, readable
from warpseal.warp.ids import ID_BYTES, SubnetID

# Major, minor, patch.
Version = tuple[int, int, int]

DEFAULT_VERSION: Final[Version] = (1, 15, 0)
MAX_TRACKED_SUBNETS: Final = 16
# We do not listen: the unspecified address with a port that nodes accept, like the reference aggregator.
_NOWHERE: Final = IPv4Address("0.0.0.0")
_NOWHERE_PORT: Final = 1
_CLIENT_NAME: Final = "avalanchego"
_CLIENT_NAME_CHARACTERS: Final = 64


@dataclass(frozen=True, slots=True)
class OwnClaim:
    """Our own signed address. timestamp: unix seconds; one signature of the TLS key and one of a BLS key."""

    ip: IPAddress
    port: int
    timestamp: int
    tls_signature: bytes
    bls_signature: bytes


def sign_claim(
    tls_sign: Callable[[bytes], bytes],
    bls_secret: bls.SecretKey,
    timestamp: int,
    ip: IPAddress = _NOWHERE,
    port: int = _NOWHERE_PORT,
) -> OwnClaim:
    """Return a claim signed now, good for as long as the identity.

    tls_sign: returns the TLS key's signature over SHA-256 of its argument (RSA PKCS#1 v1.5, or ECDSA in DER).
    """
    signed = signed_bytes(ip, port, timestamp)
    return OwnClaim(ip, port, timestamp, tls_sign(signed), bls.sign_possession(bls_secret, signed))


@dataclass(frozen=True, slots=True)
class OwnHandshake:
    """What every one of our handshakes says. version: the avalanchego release that we keep up with."""

    network_id: int
    claim: OwnClaim
    version: Version = DEFAULT_VERSION

    def encode(self, unix_s: float, known_peers: BloomFilter) -> bytes:
        """Return the frame to send at `unix_s`: no tracked subnets, and addresses of all subnets wanted."""
        major, minor, patch = self.version
        return encode_handshake(
            p2p_pb2.Handshake(
                network_id=self.network_id,
                my_time=int(unix_s),
                ip_addr=self.claim.ip.packed,
                ip_port=self.claim.port,
                ip_signing_time=self.claim.timestamp,
                ip_node_id_sig=self.claim.tls_signature,
                client=p2p_pb2.Client(name=_CLIENT_NAME, major=major, minor=minor, patch=patch),
                known_peers=p2p_pb2.BloomFilter(filter=known_peers.encode(), salt=known_peers.salt),
                ip_bls_sig=self.claim.bls_signature,
                all_subnets=True,
            )
        )


@dataclass(frozen=True, slots=True)
class PeerHandshake:
    """A peer's handshake that passed the checks.

    claim: signed by the certificate that answered. bls_signature: a point of the right group, no more than that
    until `proves_possession`. clock_offset_s: their clock less ours, whole seconds, the way of the bytes included.
    """

    version: Version
    client_name: str
    claim: ClaimedAddress
    bls_signature: bytes
    tracked_subnets: frozenset[SubnetID]
    all_subnets: bool
    clock_offset_s: int

    def proves_possession(self, public_key: bytes) -> bool:
        """Tell whether the holder of a BLS key (48 bytes) signed the claimed address; about a millisecond.

        Raises bls.MalformedKey.
        """
        claim = self.claim
        signed = signed_bytes(claim.ip, claim.port, claim.timestamp)
        return bls.verify_possession(bls.parse_public_key(public_key), signed, self.bls_signature)


def check_handshake(
    theirs: p2p_pb2.Handshake, certificate: Certificate, network_id: int, unix_s: float
) -> PeerHandshake:
    """Return what a peer's handshake says. Raises ConnectionFault; about 200 microseconds."""
    if theirs.network_id != network_id:
        raise ConnectionFault(CloseReason.WRONG_NETWORK, f"network {theirs.network_id}, ours is {network_id}")
    offset_s = theirs.my_time - int(unix_s)
    if abs(offset_s) > MAX_CLOCK_SKEW_S:
        raise ConnectionFault(CloseReason.CLOCK_SKEW, f"their clock is {offset_s} s from ours")
    tracked_subnets = _tracked_subnets(theirs)
    _check_known_peers(theirs)
    claim = _checked_claim(theirs, certificate, unix_s)
    if not bls.is_signature(theirs.ip_bls_sig):
        raise ConnectionFault(CloseReason.MALFORMED_BLS_PROOF, f"{len(theirs.ip_bls_sig)} bytes")
    client = theirs.client
    return PeerHandshake(
        version=(client.major, client.minor, client.patch),
        client_name=readable(client.name[:_CLIENT_NAME_CHARACTERS].encode()),
        claim=claim,
        bls_signature=theirs.ip_bls_sig,
        tracked_subnets=tracked_subnets,
        all_subnets=theirs.all_subnets,
        clock_offset_s=offset_s,
    )


def _tracked_subnets(theirs: p2p_pb2.Handshake) -> frozenset[SubnetID]:
    subnets = theirs.tracked_subnets
    if len(subnets) > MAX_TRACKED_SUBNETS:
        raise ConnectionFault(CloseReason.TOO_MANY_SUBNETS, f"{len(subnets)} tracked subnets")
    for subnet in subnets:
        if len(subnet) != ID_BYTES:
            raise ConnectionFault(CloseReason.MALFORMED_SUBNET_ID, f"{len(subnet)} bytes")
    return frozenset(map(SubnetID, subnets))


def _check_known_peers(theirs: p2p_pb2.Handshake) -> None:
    if not theirs.HasField("known_peers"):
        return
    try:
        check_filter(theirs.known_peers.filter, theirs.known_peers.salt)
    except MalformedFilter as error:
        raise ConnectionFault(CloseReason.MALFORMED_FILTER, str(error)) from None


def _checked_claim(theirs: p2p_pb2.Handshake, certificate: Certificate, unix_s: float) -> ClaimedAddress:
    try:
        ip, port = parse_ip(theirs.ip_addr), parse_port(theirs.ip_port)
    except MalformedAddress as error:
        raise ConnectionFault(CloseReason.MALFORMED_ADDRESS, str(error)) from None
    ahead_s = theirs.ip_signing_time - unix_s
    if ahead_s > MAX_CLOCK_SKEW_S:
        raise ConnectionFault(CloseReason.ADDRESS_FROM_THE_FUTURE, f"signed in {ahead_s:.0f} s")
    claim = ClaimedAddress(certificate.der, ip, port, theirs.ip_signing_time, theirs.ip_node_id_sig)
    if not certificate.verifies(signed_bytes(ip, port, claim.timestamp), claim.signature):
        raise ConnectionFault(CloseReason.WRONG_ADDRESS_SIGNATURE, f"of {ip} port {port}")
    return claim
