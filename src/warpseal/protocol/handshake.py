"""The handshake message of this daemon, and the checks of a peer's handshake.

Source of truth: avalanchego `network/peer/peer.go` (handleHandshake) and `ip.go`. The checks and
their order are those of a node, with two exceptions: no version is refused, and supported and
objected ACPs are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from ipaddress import IPv4Address
from types import MappingProxyType
from typing import Final, TypeVar

from msgspec import Struct

from warpseal import bls
from warpseal.pb import p2p_pb2
from warpseal.protocol.addresses import (
    ClaimedIpPort,
    MalformedAddress,
    parse_ip,
    parse_port,
    signed_bytes,
)
from warpseal.protocol.bloom import BloomFilter, MalformedFilter, check_filter
from warpseal.protocol.certificate import Certificate
from warpseal.protocol.limits import MAX_CLOCK_SKEW_S, MAX_TRACKED_SUBNETS
from warpseal.protocol.messages import encode_handshake
from warpseal.warp.ids import ID_BYTES, NodeID

# Major, minor, patch.
Version = tuple[int, int, int]

ReportT = TypeVar("ReportT", int, Version)

TESTED_VERSION: Final[Version] = (1, 15, 3)
"""The newest release of avalanchego that this version of Warpseal was tested with."""
# The daemon does not listen. Like the reference aggregator it claims the unspecified address and a
# port nodes accept.
_UNSPECIFIED_IP: Final = IPv4Address("0.0.0.0")
_UNUSED_PORT: Final = 1
_CLIENT_NAME: Final = "avalanchego"


class OwnHandshake:
    """The constant part of this daemon's handshakes.

    tls_sign: returns the TLS key's signature over SHA-256 of its argument (RSA PKCS#1 v1.5, or
        ECDSA in DER).
    version: release of avalanchego that is advertised.
    upgrade_time: Unix seconds of the latest upgrade that is scheduled; 0 if none is known.
    """

    def __init__(
        self,
        network_id: int,
        tls_sign: Callable[[bytes], bytes],
        bls_secret: bls.SecretKey,
        version: Version = TESTED_VERSION,
    ) -> None:
        self.network_id: Final = network_id
        self.version = version
        self.upgrade_time = 0
        self._tls_sign = tls_sign
        self._bls_secret = bls_secret
        self._signed_at: int | None = None
        self._signatures = (b"", b"")

    def encode(self, unix_s: float, known_peers: BloomFilter) -> bytes:
        """Return the frame to send at `unix_s`.

        It tracks no subnet and asks for addresses of all subnets.

        The claimed address is signed once (two milliseconds), and again only if the clock was ahead
        at that time: nodes disconnect from a peer whose claim is from the future, so a corrected
        clock would cost every connection.
        """
        if self._signed_at is None or self._signed_at > unix_s:
            self._signed_at = int(unix_s)
            signed = signed_bytes(_UNSPECIFIED_IP, _UNUSED_PORT, self._signed_at)
            self._signatures = self._tls_sign(signed), bls.sign_possession(self._bls_secret, signed)
        tls_signature, bls_signature = self._signatures
        major, minor, patch = self.version
        return encode_handshake(
            p2p_pb2.Handshake(
                network_id=self.network_id,
                my_time=int(unix_s),
                upgrade_time=self.upgrade_time,
                ip_addr=_UNSPECIFIED_IP.packed,
                ip_port=_UNUSED_PORT,
                ip_signing_time=self._signed_at,
                ip_node_id_sig=tls_signature,
                client=p2p_pb2.Client(name=_CLIENT_NAME, major=major, minor=minor, patch=patch),
                known_peers=p2p_pb2.BloomFilter(filter=known_peers.encode(), salt=known_peers.salt),
                ip_bls_sig=bls_signature,
                all_subnets=True,
            )
        )


class PeerWeights:
    """The weights of the Primary Network's validators, by which their claims count.

    Liars may be the first peers and may be many, but they cannot have a third of the weight.
    """

    def __init__(self) -> None:
        self.by_node: Mapping[NodeID, int] = MappingProxyType({})
        self.total = 0

    def replace(self, weights: Mapping[NodeID, int]) -> None:
        """Set the weights of all validators."""
        self.by_node, self.total = weights, sum(weights.values())

    def find_shared(self, reports: Iterable[tuple[NodeID, ReportT]]) -> ReportT | None:
        """Return the highest value that more than a third of all weight reports or exceeds."""
        weighed = ((value, self.by_node.get(node_id, 0)) for node_id, value in reports)
        return _find_exceeded(weighed, self.total // 3)


class _PeerRelease(Struct, frozen=True):
    """The release of a peer.

    refuses: the peer hung up because an older release was advertised, knows an upgrade whose time
        has come since it accepted one, or accepts a newer one and may refuse an older one.
    refuses_from: Unix seconds of an upgrade that the peer knows and that is ahead; None without
        one.
    """

    version: Version
    refuses: bool
    refuses_from: int | None = None


class AdvertisedVersion:
    """The release that handshakes advertise.

    It is that of the setting, else the newest tested release, unless peers refuse that.

    Source of truth: avalanchego `version/compatibility.go`. A node refuses a peer whose release is
    older than the lowest compatible one, which an upgrade raises, or has a newer major number; any
    other newer release it only logs. A node sends its own handshake before it reads ours, so that
    the release of one that refuses is known, as is the time at which it may begin to refuse.

    is_setting: the release is that of the setting, which nothing changes.
    """

    def __init__(self, setting: Version | None, weights: PeerWeights) -> None:
        self.current = setting or TESTED_VERSION
        self.is_setting: Final = setting is not None
        self._weights = weights
        self._peers: dict[NodeID, _PeerRelease] = {}

    def record_accepted(
        self, node_id: NodeID, version: Version, refuses_from: int | None = None
    ) -> None:
        """Record the release of a peer that accepted our handshake.

        refuses_from: Unix seconds of an upgrade that the peer knows and that is ahead; None without
            one.
        """
        # A peer that accepts a raised release would refuse the tested one as before, or because its
        # upgrade has come since it accepted that: its connection proves nothing else.
        refuses = self.current > TESTED_VERSION and (
            self._refuses(node_id) or may_refuse(version, TESTED_VERSION)
        )
        self._record(node_id, _PeerRelease(version, refuses, refuses_from))

    def record_refused(self, node_id: NodeID, version: Version) -> None:
        """Record the release of a peer that hung up when it had read our handshake."""
        refuses = version > self.current or self._refuses(node_id)
        self._record(node_id, _PeerRelease(version, refuses))

    def forget(self, node_ids: Iterable[NodeID]) -> None:
        """Forget the releases of nodes that are not dialed any more."""
        for node_id in node_ids:
            self._peers.pop(node_id, None)

    def update(self, unix_s: float) -> bool:
        """Choose the release that peers accept; return whether it has changed."""
        self._let_pass(unix_s)
        version = self.current if self.is_setting else self._find_demanded() or TESTED_VERSION
        has_changed = version != self.current
        self.current = version
        return has_changed

    def _refuses(self, node_id: NodeID) -> bool:
        return node_id in self._peers and self._peers[node_id].refuses

    def _record(self, node_id: NodeID, release: _PeerRelease) -> None:
        # A peer that runs no newer release than the tested one cannot refuse that for its age.
        refuses = release.refuses and release.version > TESTED_VERSION
        refuses_from = release.refuses_from
        if not may_refuse(release.version, TESTED_VERSION):
            refuses_from = None
        self._peers[node_id] = _PeerRelease(release.version, refuses, refuses_from)

    def _let_pass(self, unix_s: float) -> None:
        """Count the peers as refusing whose upgrade has come since they accepted our release.

        They check the release of connected peers again at their next ping. To wait for the refusals
        would cost the connections to more than a third of the weight, each for the 10 s that a node
        permits no second dial.
        """
        for node_id, release in self._peers.items():
            if release.refuses_from is not None and release.refuses_from <= unix_s:
                self._peers[node_id] = _PeerRelease(release.version, refuses=True)

    def _find_demanded(self) -> Version | None:
        """Return the release that most of the refusing weight runs or exceeds.

        The refusing peers need more than a third of all weight, which liars do not have. For a new
        major number they also need more than half of the weight whose releases are known, since it
        costs the connections to the others, which only log any other newer release.
        """
        weights = self._weights.by_node
        peers = [(release, weights.get(node_id, 0)) for node_id, release in self._peers.items()]
        refusing = [(release.version, weight) for release, weight in peers if release.refuses]
        refusing_weight = sum(weight for _, weight in refusing)
        if 3 * refusing_weight <= self._weights.total:
            return None
        demanded = _find_exceeded(refusing, refusing_weight // 2)
        release_weight = sum(weight for _, weight in peers)
        has_new_major = demanded is not None and demanded[0] > TESTED_VERSION[0]
        if has_new_major and 2 * refusing_weight <= release_weight:
            return None
        return demanded


def may_refuse(release: Version, older: Version) -> bool:
    """Return whether an upgrade may let peers of a release refuse an older one.

    Releases of one minor number accept each other: avalanchego `RELEASES.md` calls each one
    compatible to the first of its number, and `version/constants.go` has no other lowest one.
    """
    return release[:2] > older[:2]


def _find_exceeded(weighed: Iterable[tuple[ReportT, int]], limit: int) -> ReportT | None:
    """Return the highest value that more weight than `limit` has or exceeds."""
    reached = 0
    for value, weight in sorted(weighed, reverse=True):
        reached += weight
        if reached > limit:
            return value
    return None


class PeerHandshake(Struct, frozen=True):
    """A peer's handshake that passed the checks.

    claim: address of the peer, signed by the certificate of the connection.
    clock_offset_s: the peer's clock minus ours, in whole seconds, including the time that the
        message travelled.
    upgrade_time: Unix seconds of the latest upgrade that its release knows.
    """

    version: Version
    claim: ClaimedIpPort
    clock_offset_s: int
    upgrade_time: int = 0


def check_handshake(
    message: p2p_pb2.Handshake, certificate: Certificate, network_id: int, unix_s: float
) -> PeerHandshake:
    """Return a peer's checked handshake, in about 200 microseconds. Raises ProtocolError."""
    # handleHandshake has the same order: the first rule that a peer breaks is the reason that both
    # sides log.
    if message.network_id != network_id:
        raise ProtocolError(
            CloseReason.WRONG_NETWORK, f"network {message.network_id}, ours is {network_id}"
        )
    # network-max-clock-difference: more than 60 s apart, in either direction.
    offset_s = message.my_time - int(unix_s)
    if abs(offset_s) > MAX_CLOCK_SKEW_S:
        raise ProtocolError(CloseReason.CLOCK_SKEW, f"their clock is {offset_s} s from ours")
    # maxNumTrackedSubnets, and ids.ToID of each.
    if len(message.tracked_subnets) > MAX_TRACKED_SUBNETS:
        raise ProtocolError(
            CloseReason.TOO_MANY_SUBNETS, f"{len(message.tracked_subnets)} tracked subnets"
        )
    for subnet_id in message.tracked_subnets:
        if len(subnet_id) != ID_BYTES:
            raise ProtocolError(CloseReason.MALFORMED_SUBNET_ID, f"{len(subnet_id)} bytes")
    # utils/bloom.Parse and maxBloomSaltLen; a handshake without a filter means an empty one.
    if message.HasField("known_peers"):
        try:
            check_filter(message.known_peers.filter, message.known_peers.salt)
        except MalformedFilter as error:
            raise ProtocolError(CloseReason.MALFORMED_FILTER, str(error)) from None
    claim = _check_claim(message, certificate, unix_s)
    # signature.go, SignatureFromBytes: a point of the subgroup, for peers that are no validators as
    # well. Whether the validator's key signed it is not checked: TLS and the certificate prove the
    # node.
    if not bls.is_signature(message.ip_bls_sig):
        raise ProtocolError(CloseReason.MALFORMED_BLS_PROOF, f"{len(message.ip_bls_sig)} bytes")
    client = message.client
    return PeerHandshake(
        (client.major, client.minor, client.patch), claim, offset_s, message.upgrade_time
    )


def _check_claim(
    message: p2p_pb2.Handshake, certificate: Certificate, unix_s: float
) -> ClaimedIpPort:
    # ips.AddrFromSlice, then a port whose low 16 bits are not 0.
    try:
        ip, port = parse_ip(message.ip_addr), parse_port(message.ip_port)
    except MalformedAddress as error:
        raise ProtocolError(CloseReason.MALFORMED_ADDRESS, str(error)) from None
    # ip.go, SignedIP.Verify: at most 60 s from the future, then the signature of the TLS key; old
    # claims are valid.
    ahead_s = message.ip_signing_time - unix_s
    if ahead_s > MAX_CLOCK_SKEW_S:
        raise ProtocolError(CloseReason.ADDRESS_FROM_THE_FUTURE, f"signed in {ahead_s:.0f} s")
    claim = ClaimedIpPort(
        certificate.der, ip, port, message.ip_signing_time, message.ip_node_id_sig
    )
    if not certificate.verify_signature(signed_bytes(ip, port, claim.timestamp), claim.signature):
        raise ProtocolError(CloseReason.WRONG_ADDRESS_SIGNATURE, f"of {ip} port {port}")
    return claim


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
    """The peer broke the protocol in a way that ends the connection.

    `PeerProtocol` turns it into an event.
    """

    def __init__(self, reason: CloseReason, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason.value)
        self.reason = reason
        self.detail = detail
