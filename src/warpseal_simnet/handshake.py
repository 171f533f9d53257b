"""The checks of a node for Handshake, GetPeerList and PeerList, in the order of a node.

Source of truth: avalanchego `network/peer/peer.go` (handleHandshake, handleGetPeerList,
handlePeerList).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from warpseal import bls
from warpseal.pb import p2p_pb2 as p2p
from warpseal.warp.ids import ID_BYTES, NodeID, SubnetID
from warpseal_simnet import bloom
from warpseal_simnet.addresses import IPAddress, address_preimage, is_signed_by, parse_wire_ip
from warpseal_simnet.certificates import Leaf, RefusedCertificate, parse_leaf
from warpseal_simnet.settings import NodeSettings
from warpseal_simnet.versions import Version
from warpseal_simnet.violations import ViolationKind

MAX_TRACKED_SUBNETS: Final = 16
_PORT_MASK: Final = 0xFFFF
# The proposals that nodes of version 1.15.0 collect votes for; others do not count.
_CURRENT_ACPS: Final = frozenset((194, 224, 236, 247, 267, 273, 283, 285))
_INFINITY: Final = bytes([0xC0]) + bytes(95)


class MessageRejected(Exception):
    """A message for which a node closes the connection."""

    def __init__(self, kind: ViolationKind, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


@dataclass(frozen=True, slots=True)
class AcceptedHandshake:
    """The content of an accepted Handshake."""

    version: Version
    tracked_subnets: frozenset[SubnetID]
    all_subnets: bool
    known_peers: bloom.Filter
    salt: bytes
    endpoint: tuple[IPAddress, int]


@dataclass(frozen=True, slots=True)
class HandshakePolicy:
    """The expected values of a Handshake.

    bls_key: the peer's key if it validates the Primary Network.
    major: the major number of the receiving node's own version.
    minimum: the oldest version that the receiving node accepts.
    """

    network_id: int
    settings: NodeSettings
    bls_key: bls.PublicKey | None
    major: int
    minimum: Version


def check_handshake(
    message: p2p.Handshake, leaf: Leaf, expected: HandshakePolicy
) -> AcceptedHandshake:
    """Return the content of the Handshake. Raises MessageRejected with the first failed check."""
    now = expected.settings.clock()
    if message.network_id != expected.network_id:
        raise MessageRejected(
            ViolationKind.NETWORK_ID, f"network {message.network_id}, not {expected.network_id}"
        )
    if abs(message.my_time - int(now)) > expected.settings.max_clock_difference_s:
        raise MessageRejected(ViolationKind.CLOCK, f"clock {message.my_time}, here {int(now)}")
    tracked = _tracked_subnets(message.tracked_subnets)
    _check_acps(message)
    known_peers, salt = _known_peers(message)
    ip, port = _endpoint(message.ip_addr, message.ip_port, ViolationKind.IP, ViolationKind.PORT)
    preimage = _check_ip_signature(
        message, leaf, (ip, port), now + expected.settings.max_clock_difference_s
    )
    if not _is_signature_point(message.ip_bls_sig):
        raise MessageRejected(
            ViolationKind.BLS_SIGNATURE, "ip_bls_sig is not a point of the signature group"
        )
    version = (message.client.major, message.client.minor, message.client.patch)
    check_version(version, expected.major, expected.minimum)
    if expected.bls_key and not bls.verify_possession(
        expected.bls_key, preimage, message.ip_bls_sig
    ):
        raise MessageRejected(
            ViolationKind.BLS_PROOF, "ip_bls_sig is not by the validator's BLS key"
        )
    return AcceptedHandshake(version, tracked, message.all_subnets, known_peers, salt, (ip, port))


def check_version(version: Version, major: int, minimum: Version) -> None:
    """Raise MessageRejected for a version that is too old or of a later major release."""
    if version[0] > major or version < minimum:
        raise MessageRejected(ViolationKind.VERSION, "version " + ".".join(map(str, version)))


def check_get_peer_list(message: p2p.GetPeerList) -> tuple[bloom.Filter, bytes]:
    """Return the filter and its salt.

    Raises MessageRejected; unlike in a Handshake, the filter is required.
    """
    return _parse_filter(
        message.known_peers, ViolationKind.GET_PEER_LIST_FILTER, ViolationKind.GET_PEER_LIST_SALT
    )


def check_peer_list(
    claims: Iterable[p2p.ClaimedIpPort],
    settings: NodeSettings,
    wants: Callable[[NodeID, int], bool],
) -> list[MessageRejected]:
    """Return the invalid claims that a node ignores because it does not need them.

    wants: a function of a node and a signing time (unix seconds). It returns whether the receiving
        node needs an address of that node that was signed at that time.
    Raises MessageRejected for the first malformed claim, and then for the first needed one with an
    invalid time or signature.
    """
    checked = [(claim, *_claim_form(claim)) for claim in claims]
    latest = settings.clock() + settings.max_clock_difference_s
    ignored = []
    for claim, leaf, ip, port in checked:
        refused = _claim_refusal(claim, leaf, (ip, port), latest)
        if refused and wants(leaf.node_id, claim.timestamp):
            raise refused
        ignored += [refused] if refused else []
    return ignored


def _tracked_subnets(raw_ids: Iterable[bytes]) -> frozenset[SubnetID]:
    tracked = tuple(raw_ids)
    if len(tracked) > MAX_TRACKED_SUBNETS:
        raise MessageRejected(ViolationKind.TOO_MANY_SUBNETS, f"{len(tracked)} tracked subnets")
    for raw in tracked:
        if len(raw) != ID_BYTES:
            raise MessageRejected(ViolationKind.SUBNET_ID, f"a subnet id of {len(raw)} bytes")
    return frozenset(SubnetID(raw) for raw in tracked)


def _check_acps(message: p2p.Handshake) -> None:
    both = _CURRENT_ACPS.intersection(message.supported_acps, message.objected_acps)
    if both:
        raise MessageRejected(ViolationKind.ACPS, f"both for and against {sorted(both)}")


def _known_peers(message: p2p.Handshake) -> tuple[bloom.Filter, bytes]:
    if not message.HasField("known_peers"):
        return bloom.EMPTY, b""
    return _parse_filter(message.known_peers, ViolationKind.KNOWN_PEERS, ViolationKind.SALT)


def _parse_filter(
    known_peers: p2p.BloomFilter, filter_kind: ViolationKind, salt_kind: ViolationKind
) -> tuple[bloom.Filter, bytes]:
    try:
        parsed = bloom.Filter.parse(known_peers.filter)
    except bloom.MalformedFilter as error:
        raise MessageRejected(filter_kind, str(error)) from None
    if len(known_peers.salt) > bloom.MAX_SALT_BYTES:
        raise MessageRejected(salt_kind, f"a salt of {len(known_peers.salt)} bytes")
    return parsed, known_peers.salt


def _endpoint(
    raw_ip: bytes, raw_port: int, ip_kind: ViolationKind, port_kind: ViolationKind
) -> tuple[IPAddress, int]:
    ip = parse_wire_ip(raw_ip)
    if ip is None:
        raise MessageRejected(ip_kind, f"an address of {len(raw_ip)} bytes")
    port = raw_port & _PORT_MASK
    if port == 0:
        raise MessageRejected(port_kind, f"port {raw_port}")
    return ip, port


def _check_ip_signature(
    message: p2p.Handshake, leaf: Leaf, endpoint: tuple[IPAddress, int], latest: float
) -> bytes:
    if message.ip_signing_time > latest:
        raise MessageRejected(ViolationKind.SIGNING_TIME, f"signed at {message.ip_signing_time}")
    preimage = address_preimage(*endpoint, message.ip_signing_time)
    if not is_signed_by(leaf, preimage, message.ip_node_id_sig):
        raise MessageRejected(
            ViolationKind.IP_SIGNATURE, "the address is not signed by the TLS key"
        )
    return preimage


def _claim_form(claim: p2p.ClaimedIpPort) -> tuple[Leaf, IPAddress, int]:
    try:
        leaf = parse_leaf(claim.x509_certificate)
    except RefusedCertificate as error:
        raise MessageRejected(ViolationKind.PEER_LIST_CERTIFICATE, str(error)) from None
    return leaf, *_endpoint(
        claim.ip_addr, claim.ip_port, ViolationKind.PEER_LIST_IP, ViolationKind.PEER_LIST_PORT
    )


def _claim_refusal(
    claim: p2p.ClaimedIpPort, leaf: Leaf, endpoint: tuple[IPAddress, int], latest: float
) -> MessageRejected | None:
    if claim.timestamp > latest:
        return MessageRejected(ViolationKind.PEER_LIST_TIME, f"signed at {claim.timestamp}")
    if not is_signed_by(leaf, address_preimage(*endpoint, claim.timestamp), claim.signature):
        return MessageRejected(
            ViolationKind.PEER_LIST_SIGNATURE, "the claim is not by the certificate's key"
        )
    return None


@lru_cache(maxsize=256)
def _is_signature_point(raw: bytes) -> bool:
    # Nodes accept the point at infinity.
    return raw == _INFINITY or bls.is_signature(raw)
