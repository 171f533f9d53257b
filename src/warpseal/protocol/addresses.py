"""Signed IP addresses of nodes: encoding, verification, and which addresses are public.

Source of truth: avalanchego `network/peer/ip.go` (signed bytes) and `utils/ips/ip.go` (encodings,
public addresses).
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

from msgspec import Struct

from warpseal.pb import p2p_pb2
from warpseal.protocol.certificate import MalformedCertificate, node_id_of, parse_certificate
from warpseal.protocol.limits import MAX_CERTIFICATE_BYTES, MAX_CLOCK_SKEW_S
from warpseal.warp.ids import NodeID

IPAddress = IPv4Address | IPv6Address

# RSA with 4,096 bits.
_MAX_SIGNATURE_BYTES: Final = 512
_MASK_16: Final = 0xFFFF
_IPV4_IN_IPV6: Final = bytes(10) + b"\xff\xff"
_BROADCAST: Final = IPv4Address("255.255.255.255")
_PRIVATE_IPV4: Final = tuple(map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))
_PRIVATE_IPV6: Final = IPv6Network("fc00::/7")


class MalformedAddress(ValueError):
    """The entry is no signed address.

    The address has other than 4 or 16 bytes, the port is 0, or the certificate or the signature is
    too long.
    """


class ClaimedIpPort(Struct, frozen=True):
    """The address at which the owner of a certificate claims to listen.

    It is unverified until `verify` returns True.

    certificate_der: certificate as received, up to 2,048 bytes.
    port: 1 to 65,535.
    timestamp: time of the signature, unix seconds.
    """

    certificate_der: bytes
    ip: IPAddress
    port: int
    timestamp: int
    signature: bytes

    @property
    def node_id(self) -> NodeID:
        """The node ID of the certificate.

        It is cheap: claims of unknown nodes are dropped before any verification.
        """
        return node_id_of(self.certificate_der)

    def verify(self, unix_s: float) -> bool:
        """Return whether the certificate is acceptable and its key signed this.

        The signature may be from up to 60 s in the future.

        It takes about 100 microseconds.
        """
        # ip.go, SignedIP.Verify: first the time, which costs nothing.
        if self.timestamp > unix_s + MAX_CLOCK_SKEW_S:
            return False
        try:
            certificate = parse_certificate(self.certificate_der)
        except MalformedCertificate:
            return False
        signed = signed_bytes(self.ip, self.port, self.timestamp)
        return certificate.verify_signature(signed, self.signature)


def signed_bytes(ip: IPAddress, port: int, timestamp: int) -> bytes:
    """Return the 26 signed bytes: the address in IPv6 form, the port, unix seconds."""
    address = _IPV4_IN_IPV6 + ip.packed if isinstance(ip, IPv4Address) else ip.packed
    return address + port.to_bytes(2, "big") + timestamp.to_bytes(8, "big")


def parse_ip(raw: bytes) -> IPAddress:
    """Return the address of 4 or 16 bytes; an IPv4-mapped IPv6 address becomes IPv4.

    Raises MalformedAddress.
    """
    # ips.AddrFromSlice and Addr.Unmap.
    if len(raw) == 4:
        return IPv4Address(raw)
    if len(raw) != 16:
        raise MalformedAddress(f"an address of {len(raw)} bytes")
    return IPv4Address(raw[12:]) if raw.startswith(_IPV4_IN_IPV6) else IPv6Address(raw)


def parse_port(value: int) -> int:
    """Return the low 16 bits, as nodes do. Raises MalformedAddress if they are 0."""
    port = value & _MASK_16
    if not port:
        raise MalformedAddress("port 0")
    return port


def parse_claimed_ip_port(entry: p2p_pb2.ClaimedIpPort) -> ClaimedIpPort:
    """Return one entry of a peer list. Raises MalformedAddress."""
    if (
        len(entry.x509_certificate) > MAX_CERTIFICATE_BYTES
        or len(entry.signature) > _MAX_SIGNATURE_BYTES
    ):
        raise MalformedAddress("the certificate or signature is too long")
    return ClaimedIpPort(
        entry.x509_certificate,
        parse_ip(entry.ip_addr),
        parse_port(entry.ip_port),
        entry.timestamp,
        entry.signature,
    )


def is_public(ip: IPAddress) -> bool:
    """Return whether nodes treat an address as public.

    Carrier-grade NAT and documentation networks are public.
    """
    # ips.IsPublic: Go's global unicast and not private, which differs from Python's `is_global`.
    if ip.is_unspecified or ip.is_loopback or ip.is_multicast or ip.is_link_local:
        return False
    if isinstance(ip, IPv6Address):
        return ip not in _PRIVATE_IPV6
    return ip != _BROADCAST and not any(ip in network for network in _PRIVATE_IPV4)
