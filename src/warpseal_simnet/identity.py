"""The identity of a simulated validator: TLS key, certificate and BLS key.

All are derived from a seed except RSA keys. Source of truth: avalanchego `staking/tls.go` (the
certificate's fields, serial number 0 included).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from warpseal import bls
from warpseal.warp.ids import NodeID
from warpseal_simnet.certificates import Leaf, parse_leaf

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey

_P256_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_ECDSA_WITH_SHA256: Final = bytes.fromhex("300a06082a8648ce3d040302")
_RSA_WITH_SHA256: Final = bytes.fromhex("300d06092a864886f70d01010b0500")
_VERSION_3: Final = bytes.fromhex("a003020102")
_SERIAL_0: Final = bytes.fromhex("020100")
_NO_NAME: Final = bytes.fromhex("3000")
_VALIDITY: Final = b"\x30\x20" + b"\x17\x0d991231000000Z" + b"\x18\x0f21260101000000Z"
# Key usage digitalSignature and basic constraints (no CA), both critical.
_EXTENSIONS: Final = bytes.fromhex(
    "a320301e300e0603551d0f0101ff040403020780300c0603551d130101ff04023000"
)


@dataclass(frozen=True, slots=True)
class Identity:
    """A node's keys.

    bls_public_key: 48 bytes, compressed; bls_proof: 96 bytes, its proof of possession.
    """

    leaf: Leaf
    tls_key: PrivateKey
    bls_secret: bls.SecretKey
    bls_public_key: bytes
    bls_proof: bytes

    @property
    def node_id(self) -> NodeID:
        """The 20 bytes that name this node."""
        return self.leaf.node_id

    def sign(self, data: bytes) -> bytes:
        """Return the TLS key's signature over SHA-256 of `data`, as signed addresses carry it."""
        return sign_with(self.tls_key, data)


def make_identity(seed: bytes, *, rsa_key: bool = False) -> Identity:
    """Return the identity that `seed` determines; an RSA-2048 key is fresh every time."""
    if rsa_key:
        return _build_identity(seed, rsa.generate_private_key(65537, 2048))
    return _derive_identity(seed)


@lru_cache(1024)
def _derive_identity(seed: bytes) -> Identity:
    return _build_identity(seed, _p256_key(seed))


def _build_identity(seed: bytes, tls_key: PrivateKey) -> Identity:
    secret = bls.generate_secret(sha256(b"bls" + seed).digest())
    public_key = bls.public_key_bytes(bls.derive_public_key(secret))
    leaf = parse_leaf(make_certificate(tls_key))
    return Identity(leaf, tls_key, secret, public_key, bls.prove_possession(secret))


def replace_bls_key(identity: Identity) -> Identity:
    """Return the same node with the BLS key that follows from its present one."""
    secret = bls.generate_secret(sha256(b"next" + identity.bls_public_key).digest())
    public_key = bls.public_key_bytes(bls.derive_public_key(secret))
    return Identity(
        identity.leaf, identity.tls_key, secret, public_key, bls.prove_possession(secret)
    )


def make_certificate(key: PrivateKey) -> bytes:
    """Return a self-signed certificate as DER, field for field like a node's."""
    algorithm = _RSA_WITH_SHA256 if isinstance(key, rsa.RSAPrivateKey) else _ECDSA_WITH_SHA256
    key_info = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    body = _sequence(
        _VERSION_3
        + _SERIAL_0
        + algorithm
        + _NO_NAME
        + _VALIDITY
        + _NO_NAME
        + key_info
        + _EXTENSIONS
    )
    signature = sign_with(key, body)
    return _sequence(body + algorithm + _tagged(0x03, b"\x00" + signature))


def sign_with(key: PrivateKey, data: bytes) -> bytes:
    """Return a key's signature over SHA-256 of `data`.

    RSA keys sign by PKCS#1 v1.5, EC keys by deterministic ECDSA.
    """
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(data, padding.PKCS1v15(), SHA256())
    return key.sign(data, ec.ECDSA(SHA256(), deterministic_signing=True))


def _p256_key(seed: bytes) -> ec.EllipticCurvePrivateKey:
    scalar = int.from_bytes(sha256(b"tls" + seed).digest() + sha256(b"tls+" + seed).digest(), "big")
    return ec.derive_private_key(scalar % (_P256_ORDER - 1) + 1, ec.SECP256R1())


def _sequence(content: bytes) -> bytes:
    return _tagged(0x30, content)


def _tagged(tag: int, content: bytes) -> bytes:
    length = len(content)
    if length < 0x80:
        return bytes([tag, length]) + content
    size = (length.bit_length() + 7) // 8
    return bytes([tag, 0x80 | size]) + length.to_bytes(size, "big") + content
