"""Leaf certificates of peers: the acceptance rules of nodes, the key and the NodeID.

Source of truth: avalanchego `network/peer/tls_config.go`, `staking/parse.go`, `ids/node_id.go`.
The DER is parsed here, because libraries do not refuse exactly the certificates that a node
refuses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import Final

from Crypto.Hash import RIPEMD160
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

from warpseal.warp.ids import NodeID

MAX_CERTIFICATE_BYTES: Final = 2048
_RSA_OID: Final = bytes.fromhex("2a864886f70d010101")
_EC_OID: Final = bytes.fromhex("2a8648ce3d0201")
_RSA_BITS: Final = (2048, 4096)
_RSA_EXPONENT: Final = 65537
_POINT_BYTES: Final = 65
_SEQUENCE: Final = 0x30
_INTEGER: Final = 0x02
_BIT_STRING: Final = 0x03
_OBJECT_ID: Final = 0x06
_VERSION_TAG: Final = 0xA0

PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey


class RefusedCertificate(ValueError):
    """A certificate that a node refuses."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """The certificate of a peer: its bytes as presented, its key, and the NodeID that follows."""

    der: bytes
    public_key: PublicKey = field(compare=False, repr=False)
    node_id: NodeID = field(compare=False)

    def has_signed(self, data: bytes, signature: bytes) -> bool:
        """Return whether this key signed SHA-256 of `data`.

        signature: PKCS#1 v1.5 by an RSA key, ASN.1 by an EC key.
        """
        try:
            if isinstance(self.public_key, rsa.RSAPublicKey):
                self.public_key.verify(signature, data, padding.PKCS1v15(), SHA256())
            else:
                self.public_key.verify(signature, data, ec.ECDSA(SHA256()))
        except InvalidSignature:
            return False
        return True


def node_id_of(der: bytes) -> NodeID:
    """Return the NodeID of a certificate: RIPEMD-160 of SHA-256 of its whole DER."""
    return NodeID(RIPEMD160.new(sha256(der).digest()).digest())


@lru_cache(maxsize=4096)
def parse_leaf(der: bytes) -> Leaf:
    """Return the leaf of at most 2 KiB of DER.

    Raises RefusedCertificate if a node would refuse it.
    """
    if len(der) > MAX_CERTIFICATE_BYTES:
        raise RefusedCertificate(f"{len(der)} bytes are more than {MAX_CERTIFICATE_BYTES}")
    algorithm, key_bits = _public_key_info(der)
    if algorithm == _RSA_OID:
        return Leaf(der, _rsa_key(key_bits), node_id_of(der))
    if algorithm == _EC_OID:
        return Leaf(der, _p256_key(key_bits), node_id_of(der))
    raise RefusedCertificate("neither an RSA nor an EC key")


def _public_key_info(der: bytes) -> tuple[bytes, bytes]:
    """Return the algorithm's object id, and the key's bit string without its padding count."""
    certificate, _ = _element(der, _SEQUENCE)
    rest, _ = _element(certificate, _SEQUENCE)
    if rest[:1] == bytes([_VERSION_TAG]):
        _, rest = _element(rest, _VERSION_TAG)
    _, rest = _element(rest, _INTEGER)
    for _skipped in ("signature algorithm", "issuer", "validity", "subject"):
        _, rest = _element(rest, _SEQUENCE)
    key_info, _ = _element(rest, _SEQUENCE)
    algorithm, rest = _element(key_info, _SEQUENCE)
    key_bits, _ = _element(rest, _BIT_STRING)
    object_id, _ = _element(algorithm, _OBJECT_ID)
    if key_bits[:1] != b"\x00":
        raise RefusedCertificate("the key is not a whole number of bytes")
    return object_id, key_bits[1:]


def _element(raw: bytes, tag: int) -> tuple[bytes, bytes]:
    """Return the content of the first DER element and the bytes behind it.

    Raises RefusedCertificate if the element has another tag.
    """
    if len(raw) < 2 or raw[0] != tag:
        raise RefusedCertificate(f"an element with tag {tag:#x} is missing")
    length, start = raw[1], 2
    if length >= 0x80:
        start += length & 0x7F
        length = int.from_bytes(raw[2:start], "big")
        # DER: the shortest form, and never the indefinite one.
        if start == 2 or start > 6 or length < 0x80 or raw[2] == 0:
            raise RefusedCertificate("a length is not in its shortest form")
    if start + length > len(raw):
        raise RefusedCertificate("the certificate is cut short")
    return raw[start : start + length], raw[start + length :]


def _rsa_key(raw: bytes) -> rsa.RSAPublicKey:
    numbers, _ = _element(raw, _SEQUENCE)
    modulus_bytes, rest = _element(numbers, _INTEGER)
    exponent_bytes, _ = _element(rest, _INTEGER)
    modulus = int.from_bytes(modulus_bytes, "big", signed=True)
    exponent = int.from_bytes(exponent_bytes, "big", signed=True)
    if modulus <= 0 or modulus.bit_length() not in _RSA_BITS or modulus % 2 == 0:
        raise RefusedCertificate("the RSA modulus is not an odd number of 2048 or 4096 bits")
    if exponent != _RSA_EXPONENT:
        raise RefusedCertificate(f"the RSA exponent is not {_RSA_EXPONENT}")
    return rsa.RSAPublicNumbers(exponent, modulus).public_key()


def _p256_key(raw: bytes) -> ec.EllipticCurvePublicKey:
    if len(raw) != _POINT_BYTES or raw[0] != 4:
        raise RefusedCertificate("the EC key is not an uncompressed P-256 point")
    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), raw)
    except ValueError:
        raise RefusedCertificate("the EC key is not on P-256") from None
