"""Signed IP addresses: encoding, signing and verification.

Source of truth: avalanchego `network/peer/ip.go`, `utils/ips/claimed_ip_port.go`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256
from ipaddress import IPv4Address, IPv6Address, ip_address

from warpseal import bls
from warpseal.pb import p2p_pb2 as p2p
from warpseal.warp.ids import NodeID
from warpseal_simnet.certificates import Leaf
from warpseal_simnet.identity import Identity

IPAddress = IPv4Address | IPv6Address


@dataclass(frozen=True)
class SignedAddress:
    """A node's claim.

    wire_ip: 4 or 16 bytes; signed_at: unix seconds.
    """

    leaf: Leaf
    host: str
    port: int
    signed_at: int
    signature: bytes
    bls_signature: bytes

    @property
    def endpoint(self) -> str:
        """Host and port as nodes print them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @cached_property
    def wire_ip(self) -> bytes:
        """The address as messages carry it."""
        return ip_address(self.host).packed

    @cached_property
    def gossip_id(self) -> bytes:
        """The key of this claim in known-peers filters."""
        return gossip_id(self.leaf.node_id, self.signed_at)

    @cached_property
    def claim(self) -> p2p.ClaimedIpPort:
        """The claim as peer lists carry it."""
        return p2p.ClaimedIpPort(
            x509_certificate=self.leaf.der,
            ip_addr=self.wire_ip,
            ip_port=self.port,
            timestamp=self.signed_at,
            signature=self.signature,
            tx_id=bytes(32),
        )


def sign_address(identity: Identity, host: str, port: int, signed_at: int) -> SignedAddress:
    """Return the address of a node, signed by its TLS and BLS keys.

    host: IPv4 or IPv6 text.
    signed_at: unix seconds.
    """
    preimage = address_preimage(ip_address(host), port, signed_at)
    bls_signature = bls.sign_possession(identity.bls_secret, preimage)
    return SignedAddress(
        identity.leaf, host, port, signed_at, identity.sign(preimage), bls_signature
    )


def address_preimage(ip: IPAddress, port: int, signed_at: int) -> bytes:
    """Return the 26 signed bytes: address in IPv6 form, uint16 port, uint64 unix seconds."""
    packed = ip.packed if len(ip.packed) == 16 else bytes(10) + b"\xff\xff" + ip.packed
    return packed + port.to_bytes(2, "big") + signed_at.to_bytes(8, "big")


def parse_wire_ip(raw: bytes) -> IPAddress | None:
    """Return the address of 4 or 16 bytes (an IPv4 address in IPv6 form is unmapped), else None."""
    if len(raw) not in (4, 16):
        return None
    ip = ip_address(raw)
    return (ip.ipv4_mapped or ip) if isinstance(ip, IPv6Address) else ip


def gossip_id(node_id: NodeID, signed_at: int) -> bytes:
    """Return the 32-byte id of a node's claim in known-peers filters."""
    # The preimage has room for a 32-byte id; a NodeID leaves twelve zeros at the end.
    return sha256(node_id + signed_at.to_bytes(8, "big") + bytes(12)).digest()


@lru_cache(maxsize=4096)
def is_signed_by(leaf: Leaf, preimage: bytes, signature: bytes) -> bool:
    """Return whether a leaf's key signed an address.

    Results are cached, since a client sends every node the same address.
    """
    return leaf.has_signed(preimage, signature)
