"""The BLS interface by py_arkworks_bls12381, for machines that the packages of `blst_backend` are not built for.

Those are Python 3.14 on macOS and on Linux other than x86-64, and Python 3.15. The functions do what
those of `blspy_backend` do, whose docstrings hold here. No signature is made in constant time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, cast

from py_arkworks_bls12381 import GT, G1Point, G2Point, Scalar

from warpseal.bls.common import (
    GROUP_ORDER,
    POSSESSION_DST,
    SIGNATURE_DST,
    Deviation,
    HashedMessage,
    MalformedKey,
    MalformedShare,
    PublicKey,
    SecretKey,
    Share,
    check_public_key,
    check_secret,
    check_share,
    may_be_signature,
)

_G1: Final = G1Point()
_MINUS_G1: Final = -_G1
_G1_INFINITY: Final = G1Point.identity()
_INVERSE_BITS: Final = bin(GROUP_ORDER - 1)[3:]

NO_DEVIATION: Final = Deviation(GT.one())


def parse_public_key(raw: bytes) -> PublicKey:
    check_public_key(raw)
    try:
        return PublicKey(G1Point.from_compressed_bytes(raw))
    except ValueError as error:
        raise MalformedKey(f"no public key, invalid point: {error}") from None


def public_key_bytes(key: PublicKey) -> bytes:
    return cast(G1Point, key).to_compressed_bytes()


def decode_share(raw: bytes) -> Share:
    check_share(raw)
    try:
        return Share(G2Point.from_compressed_bytes_unchecked(raw))
    except ValueError as error:
        raise MalformedShare(f"no point of the curve: {error}") from None


def sum_shares(shares: Sequence[Share]) -> bytes:
    total = G2Point.identity()
    for share in shares:
        total = total + cast(G2Point, share)
    return total.to_compressed_bytes()


def sum_public_keys(keys: Iterable[PublicKey]) -> PublicKey:
    total = _G1_INFINITY
    for key in keys:
        total = total + cast(G1Point, key)
    return PublicKey(total)


def verify(key: PublicKey, message: bytes, signature: bytes) -> bool:
    return _verify(key, message, signature, SIGNATURE_DST)


def add_public_keys(left: PublicKey, right: PublicKey) -> PublicKey:
    return PublicKey(cast(G1Point, left) + cast(G1Point, right))


def subtract_public_keys(left: PublicKey, right: PublicKey) -> PublicKey:
    return PublicKey(cast(G1Point, left) - cast(G1Point, right))


def add_shares(left: Share, right: Share) -> Share:
    return Share(cast(G2Point, left) + cast(G2Point, right))


def subtract_shares(left: Share, right: Share) -> Share:
    return Share(cast(G2Point, left) - cast(G2Point, right))


def is_in_subgroup(share: Share) -> bool:
    return cast(G2Point, share).is_in_subgroup()


def hash_to_curve(message: bytes) -> HashedMessage:
    return HashedMessage(G2Point.hash_to_curve(message, SIGNATURE_DST))


def compute_deviation(key: PublicKey, share: Share, hashed: HashedMessage) -> Deviation:
    return Deviation(GT.multi_pairing([cast(G1Point, key), _MINUS_G1], [cast(G2Point, hashed), cast(G2Point, share)]))


def divide_deviations(left: Deviation, right: Deviation) -> Deviation:
    # By the inverse, which is the power of the group order less 1: negation in this library is the field's.
    base = cast(GT, right)
    inverse = base
    for bit in _INVERSE_BITS:
        inverse = inverse * inverse
        if bit == "1":
            inverse = inverse * base
    return Deviation(cast(GT, left) * inverse)


def secret_from_bytes(raw: bytes) -> SecretKey:
    check_secret(raw)
    return SecretKey(Scalar.from_be_bytes(raw))


def secret_bytes(secret: SecretKey) -> bytes:
    return cast(Scalar, secret).to_be_bytes()


def derive_public_key(secret: SecretKey) -> PublicKey:
    return PublicKey(_G1 * cast(Scalar, secret))


def sign(secret: SecretKey, message: bytes) -> bytes:
    return _sign(secret, message, SIGNATURE_DST)


def sign_possession(secret: SecretKey, message: bytes) -> bytes:
    return _sign(secret, message, POSSESSION_DST)


def verify_possession(key: PublicKey, message: bytes, signature: bytes) -> bool:
    return _verify(key, message, signature, POSSESSION_DST)


def is_signature(raw: bytes) -> bool:
    return _checked_signature(raw) is not None


def _sign(secret: SecretKey, message: bytes, dst: bytes) -> bytes:
    return (G2Point.hash_to_curve(message, dst) * cast(Scalar, secret)).to_compressed_bytes()


def _verify(key: PublicKey, message: bytes, signature: bytes, dst: bytes) -> bool:
    point = _checked_signature(signature)
    if point is None or key == _G1_INFINITY:
        return False
    return GT.pairing_check([cast(G1Point, key), _MINUS_G1], [G2Point.hash_to_curve(message, dst), point])


def _checked_signature(raw: bytes) -> G2Point | None:
    """Return the point, or None if it is malformed, infinity or outside the subgroup."""
    if not may_be_signature(raw):
        return None
    try:
        return G2Point.from_compressed_bytes(raw)
    except ValueError:
        return None
