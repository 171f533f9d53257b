"""Signed addresses: their bytes, who signed them, and which of them may be dialled.

Source of truth: avalanchego `network/peer/ip.go` (what is signed) and `utils/ips/ip.go` (forms, public ones).
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

from warpseal.pb import p2p_pb2
from warpseal.protocol.certificate import MAX_CERTIFICATE_BYTES, MalformedCertificate, node_id_of, parse_certificate
from warpseal.protocol.errors import ProtocolFault
from warpseal.warp.ids import NodeID

IPAddress = IPv4Address | IPv6Address

MAX_CLOCK_SKEW_S: Final = 60
# RSA with 4,096 bits.
_MAX_SIGNATURE_BYTES: Final = 512
_MASK_16: Final = 0xFFFF
_IPV4_IN_IPV6: Final = bytes(10) + b"\xff\xff"
_BROADCAST: Final = IPv4Address("255.255.255.255")
_PRIVATE_IPV4: Final = tuple(map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))
_PRIVATE_IPV6: Final = IPv6Network("fc00::/7")


class MalformedAddress(ProtocolFault):
    """An address that is none: not 4 or 16 bytes, port 0, or a certificate or signature too long to be one."""


@dataclass(frozen=True, slots=True)
class ClaimedAddress:
    """Where the owner of a certificate says to listen. Nothing is verified before `verified` said so.

    certificate_der: as received, up to 2,048 bytes. port: 1 to 65,535. timestamp: when it was signed, unix seconds.
    """

    certificate_der: bytes
    ip: IPAddress
    port: int
    timestamp: int
    signature: bytes

    @property
    def node_id(self) -> NodeID:
        """Whose address it claims to be; cheap, so that those of strangers go before anything is verified."""
        return node_id_of(self.certificate_der)

    def verified(self, unix_s: float) -> bool:
        """Tell whether the certificate is acceptable and its key signed this, at most 60 s in the future.

        Takes about 100 microseconds.
        """
        if self.timestamp > unix_s + MAX_CLOCK_SKEW_S:
            return False
        try:
            certificate = parse_certificate(self.certificate_der)
        except MalformedCertificate:
            return False
        return certificate.verifies(signed_bytes(self.ip, self.port, self.timestamp), self.signature)


def signed_bytes(ip: IPAddress, port: int, timestamp: int) -> bytes:
    """Return the 26 bytes that are signed: the address in its IPv6 form, port, unix seconds."""
    address = _IPV4_IN_IPV6 + ip.packed if isinstance(ip, IPv4Address) else ip.packed
    return address + port.to_bytes(2, "big") + timestamp.to_bytes(8, "big")


def parse_ip(raw: bytes) -> IPAddress:
    """Return the address behind 4 or 16 bytes; IPv4 inside IPv6 is IPv4. Raises MalformedAddress."""
    if len(raw) == 4:
        return IPv4Address(raw)
    if len(raw) != 16:
        raise MalformedAddress(f"an address of {len(raw)} bytes")
    return IPv4Address(raw[12:]) if raw.startswith(_IPV4_IN_IPV6) else IPv6Address(raw)


def parse_port(value: int) -> int:
    """Return the low 16 bits, as nodes do. Raises MalformedAddress when they are 0."""
    port = value & _MASK_16
    if not port:
        raise MalformedAddress("port 0")
    return port


def parse_claim(entry: p2p_pb2.ClaimedIpPort) -> ClaimedAddress:
    """Return the address of one entry of a peer list. Raises MalformedAddress."""
    if len(entry.x509_certificate) > MAX_CERTIFICATE_BYTES or len(entry.signature) > _MAX_SIGNATURE_BYTES:
        raise MalformedAddress("a certificate or signature longer than any that is accepted")
    return ClaimedAddress(
        entry.x509_certificate,
        parse_ip(entry.ip_addr),
        parse_port(entry.ip_port),
        entry.timestamp,
        entry.signature,
    )


def is_public(ip: IPAddress) -> bool:
    """Tell whether nodes take an address for public: carrier-grade NAT and documentation networks are."""
    if ip.is_unspecified or ip.is_loopback or ip.is_multicast or ip.is_link_local:
        return False
    if isinstance(ip, IPv6Address):
        return ip not in _PRIVATE_IPV6
    return ip != _BROADCAST and not any(ip in network for network in _PRIVATE_IPV4)
