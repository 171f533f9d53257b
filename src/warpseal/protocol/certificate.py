"""Leaf certificates of peers: what the network accepts, whose they are, and what their key signed.

Source of truth: avalanchego `staking/parse.go`, `staking/verify.go` and `ids/node_id.go`. Only the public key
is read; dates, names, extensions and the certificate's own signature are nobody's concern.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

from warpseal.protocol.der import INTEGER, OBJECT_IDENTIFIER, SEQUENCE, VERSION, DerReader, MalformedDer
from warpseal.protocol.errors import ProtocolFault
from warpseal.warp.ids import NodeID, node_id_from_certificate

MAX_CERTIFICATE_BYTES: Final = 2048
_RSA_OID: Final = bytes.fromhex("2a864886f70d010101")
_EC_OID: Final = bytes.fromhex("2a8648ce3d0201")
_RSA_MODULUS_BITS: Final = (2048, 4096)
_RSA_EXPONENT: Final = 65537
_UNCOMPRESSED_POINT: Final = 0x04
_COORDINATE_BYTES: Final = 32
# Peer lists repeat the same few thousand certificates; 2 KiB of DER and a key each.
_REMEMBERED: Final = 2048


class MalformedCertificate(ProtocolFault):
    """A leaf certificate that the network does not accept."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A leaf certificate that passed the rules. der: as received, up to 2,048 bytes; equality goes by it."""

    der: bytes
    node_id: NodeID
    public_key: rsa.RSAPublicKey | ec.EllipticCurvePublicKey = field(compare=False, repr=False)

    def verifies(self, message: bytes, signature: bytes) -> bool:
        """Tell whether this key signed SHA-256 of `message`: by RSA PKCS#1 v1.5, or by ECDSA in DER."""
        try:
            if isinstance(self.public_key, rsa.RSAPublicKey):
                self.public_key.verify(signature, message, padding.PKCS1v15(), hashes.SHA256())
            else:
                self.public_key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True


@lru_cache(maxsize=_REMEMBERED)
def node_id_of(der: bytes) -> NodeID:
    """Return the NodeID, 20 bytes, of a certificate's DER, be the certificate acceptable or not."""
    return node_id_from_certificate(der)


def parse_certificate(der: bytes) -> Certificate:
    """Return the certificate behind DER bytes. Raises MalformedCertificate."""
    if len(der) > MAX_CERTIFICATE_BYTES:
        raise MalformedCertificate(f"{len(der)} bytes, of at most {MAX_CERTIFICATE_BYTES}")
    return _parse(der)


@lru_cache(maxsize=_REMEMBERED)
def _parse(der: bytes) -> Certificate:
    try:
        oid, key = _subject_public_key(der)
        if oid == _RSA_OID:
            return Certificate(der, node_id_of(der), _rsa_key(key))
        if oid == _EC_OID:
            return Certificate(der, node_id_of(der), _ec_key(key))
    except MalformedDer as error:
        raise MalformedCertificate(str(error)) from None
    raise MalformedCertificate(f"unknown key algorithm {oid.hex()}")


def _subject_public_key(der: bytes) -> tuple[bytes, bytes]:
    """Return (algorithm identifier, key bytes). Neither what follows the key is read nor trailing data."""
    signed_part = DerReader(DerReader(der).read(SEQUENCE)).read(SEQUENCE)
    reader = DerReader(signed_part)
    reader.skip_optional(VERSION)
    for serial_algorithm_issuer_validity_subject in (INTEGER, SEQUENCE, SEQUENCE, SEQUENCE, SEQUENCE):
        reader.read(serial_algorithm_issuer_validity_subject)
    key_info = DerReader(reader.read(SEQUENCE))
    oid = DerReader(key_info.read(SEQUENCE)).read(OBJECT_IDENTIFIER)
    return oid, key_info.read_bits()


def _rsa_key(raw: bytes) -> rsa.RSAPublicKey:
    numbers = DerReader(DerReader(raw).read(SEQUENCE))
    modulus, exponent = numbers.read_integer(), numbers.read_integer()
    if modulus <= 0 or modulus.bit_length() not in _RSA_MODULUS_BITS or modulus % 2 == 0:
        raise MalformedCertificate(f"an RSA modulus of {modulus.bit_length()} bits")
    if exponent != _RSA_EXPONENT:
        raise MalformedCertificate("an RSA exponent other than 65537")
    return rsa.RSAPublicNumbers(exponent, modulus).public_key()


def _ec_key(raw: bytes) -> ec.EllipticCurvePublicKey:
    """Return the P-256 key; the curve that the certificate names is not looked at."""
    if len(raw) != 1 + 2 * _COORDINATE_BYTES or raw[0] != _UNCOMPRESSED_POINT:
        raise MalformedCertificate("not an uncompressed P-256 point")
    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), raw)
    except ValueError:
        raise MalformedCertificate("not a point of P-256") from None
