"""Leaf certificates of peers: acceptance rules, node ID, and verification of signatures by the key.

Source of truth: avalanchego `staking/parse.go`, `staking/verify.go` and `ids/node_id.go`. Only the
public key is read; nodes ignore dates, names, extensions and the signature of the certificate. DER
is read as strictly as nodes read it (X.690, with lengths of at most four bytes).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

from warpseal.protocol.limits import MAX_CERTIFICATE_BYTES
from warpseal.warp.ids import NodeID, node_id_from_certificate

_RSA_OID: Final = bytes.fromhex("2a864886f70d010101")
_EC_OID: Final = bytes.fromhex("2a8648ce3d0201")
_RSA_MODULUS_BITS: Final = (2048, 4096)
_RSA_EXPONENT: Final = 65537
_UNCOMPRESSED_POINT: Final = 0x04
_COORDINATE_BYTES: Final = 32
# Peer lists repeat the same few thousand certificates; 2 KiB of DER and a key each.
_CACHE_SIZE: Final = 2048


class MalformedCertificate(ValueError):
    """A leaf certificate that the network does not accept."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A leaf certificate that passed the rules.

    der: bytes as received, up to 2,048; certificates with equal bytes are equal.
    """

    der: bytes
    node_id: NodeID
    public_key: rsa.RSAPublicKey | ec.EllipticCurvePublicKey = field(compare=False, repr=False)

    def verify_signature(self, message: bytes, signature: bytes) -> bool:
        """Return whether this key signed SHA-256 of `message`.

        signature: RSA PKCS#1 v1.5, or ECDSA in DER.
        """
        try:
            if isinstance(self.public_key, rsa.RSAPublicKey):
                self.public_key.verify(signature, message, padding.PKCS1v15(), hashes.SHA256())
            else:
                self.public_key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True


@lru_cache(maxsize=_CACHE_SIZE)
def node_id_of(der: bytes) -> NodeID:
    """Return the 20-byte NodeID of a certificate in DER, acceptable or not."""
    return node_id_from_certificate(der)


def parse_certificate(der: bytes) -> Certificate:
    """Return the certificate of DER bytes. Raises MalformedCertificate."""
    # parse.go, MaxCertificateLen.
    if len(der) > MAX_CERTIFICATE_BYTES:
        raise MalformedCertificate(f"{len(der)} bytes, of at most {MAX_CERTIFICATE_BYTES}")
    return _parse(der)


@lru_cache(maxsize=_CACHE_SIZE)
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
    """Return (algorithm identifier, key bytes). Bytes behind the key are not read."""
    # staking/parse.go: serial number, algorithm, issuer, validity and subject are skipped unread.
    signed_part = DerReader(DerReader(der).read(SEQUENCE)).read(SEQUENCE)
    reader = DerReader(signed_part)
    reader.skip_optional(VERSION)
    for tag in (INTEGER, SEQUENCE, SEQUENCE, SEQUENCE, SEQUENCE):
        reader.read(tag)
    key_info = DerReader(reader.read(SEQUENCE))
    oid = DerReader(key_info.read(SEQUENCE)).read(OBJECT_IDENTIFIER)
    return oid, key_info.read_bits()


def _rsa_key(raw: bytes) -> rsa.RSAPublicKey:
    numbers = DerReader(DerReader(raw).read(SEQUENCE))
    modulus, exponent = numbers.read_integer(), numbers.read_integer()
    # staking/parse.go: 2,048 or 4,096 bits, odd, and no other exponent.
    if modulus <= 0 or modulus.bit_length() not in _RSA_MODULUS_BITS or modulus % 2 == 0:
        raise MalformedCertificate(f"an RSA modulus of {modulus.bit_length()} bits")
    if exponent != _RSA_EXPONENT:
        raise MalformedCertificate("an RSA exponent other than 65537")
    return rsa.RSAPublicNumbers(exponent, modulus).public_key()


def _ec_key(raw: bytes) -> ec.EllipticCurvePublicKey:
    """Return the P-256 key; the curve named in the certificate is ignored, as nodes do."""
    if len(raw) != 1 + 2 * _COORDINATE_BYTES or raw[0] != _UNCOMPRESSED_POINT:
        raise MalformedCertificate("not an uncompressed P-256 point")
    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), raw)
    except ValueError:
        raise MalformedCertificate("not a point of P-256") from None


INTEGER: Final = 0x02
BIT_STRING: Final = 0x03
OBJECT_IDENTIFIER: Final = 0x06
SEQUENCE: Final = 0x30
# [0] of the version of a certificate: context-specific, constructed.
VERSION: Final = 0xA0

_LONG_FORM: Final = 0x80
_MAX_LENGTH_BYTES: Final = 4


class MalformedDer(ValueError):
    """The bytes are not the expected DER."""


class DerReader:
    """Reads the elements of a constructed element in order."""

    __slots__ = ("_offset", "_raw")

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._offset = 0

    def read(self, tag: int) -> bytes:
        """Return the content of the next element, which must have this tag. Raises MalformedDer."""
        if self._offset >= len(self._raw) or self._raw[self._offset] != tag:
            raise MalformedDer(f"no element of tag {tag:#04x} at offset {self._offset}")
        length, start = self._length(self._offset + 1)
        if start + length > len(self._raw):
            raise MalformedDer(f"the element at offset {self._offset} is cut off")
        self._offset = start + length
        return self._raw[start : self._offset]

    def skip_optional(self, tag: int) -> None:
        """Skip the next element if it has this tag. Raises MalformedDer."""
        if self._offset < len(self._raw) and self._raw[self._offset] == tag:
            self.read(tag)

    def read_integer(self) -> int:
        """Return the next element, a signed integer in its shortest form. Raises MalformedDer."""
        content = self.read(INTEGER)
        if not content:
            raise MalformedDer("an integer without bytes")
        # The first byte may not merely repeat the sign of the second.
        if len(content) > 1 and content[0] == (0xFF if content[1] & 0x80 else 0x00):
            raise MalformedDer("an integer that is not in its shortest form")
        return int.from_bytes(content, "big", signed=True)

    def read_bits(self) -> bytes:
        """Return the next element, a bit string, shifted right by its unused bits.

        Raises MalformedDer.
        """
        content = self.read(BIT_STRING)
        if not content or content[0] > 7 or (len(content) == 1 and content[0]):
            raise MalformedDer("a bit string with an impossible number of unused bits")
        unused, bits = content[0], int.from_bytes(content[1:], "big")
        if bits & (1 << unused) - 1:
            raise MalformedDer("a bit string whose unused bits are not 0")
        return (bits >> unused).to_bytes(len(content) - 1, "big")

    def _length(self, offset: int) -> tuple[int, int]:
        """Return the length at `offset`, in its shortest form, and the offset behind it."""
        if offset >= len(self._raw):
            raise MalformedDer("cut off before a length")
        first = self._raw[offset]
        if first < _LONG_FORM:
            return first, offset + 1
        count = first - _LONG_FORM
        encoded = self._raw[offset + 1 : offset + 1 + count]
        if not 1 <= count <= _MAX_LENGTH_BYTES or len(encoded) != count:
            raise MalformedDer(f"an impossible length at offset {offset}")
        length = int.from_bytes(encoded, "big")
        if length < _LONG_FORM or encoded[0] == 0:
            raise MalformedDer(f"a length that is not in its shortest form at offset {offset}")
        return length, offset + 1 + count
