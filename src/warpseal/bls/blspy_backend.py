"""The BLS interface by blspy 2.0.3, which has packages for Python 3.11 and 3.12."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from blspy import G1Element, G2Element, GTElement, PopSchemeMPL, PrivateKey

from warpseal.bls.common import (
    POSSESSION_DST,
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

_G1: Final = G1Element.generator()
_MINUS_G1: Final = _G1.negate()
_G1_INFINITY: Final = G1Element()
_FIELD_ORDER: Final = int(
    "1a0111ea397fe69a4b1ba7b6434bacd764774b84f38512bf6730d2a0f6b0f6241eabfffeb153ffffb9feffffffffaaab", 16
)

# The pairing of nothing: blspy's own unity is not initialised.
NO_DEVIATION: Final = Deviation(_G1.pair(G2Element()))


def parse_public_key(raw: bytes) -> PublicKey:
    """Return the key of 48 compressed bytes: on the curve, in the subgroup, not infinity.

    Raises MalformedKey.
    """
    check_public_key(raw)
    try:
        return PublicKey(G1Element.from_bytes(raw))
    except ValueError as error:
        raise MalformedKey(f"no public key: {error}") from None


def public_key_bytes(key: PublicKey) -> bytes:
    """Return the 48 compressed bytes of a key."""
    return bytes(key)  # type: ignore[call-overload, no-any-return]


def decode_share(raw: bytes) -> Share:
    """Return the point of 96 compressed bytes: on the curve, not infinity, the subgroup NOT checked.

    Raises MalformedShare. Callers check the sum that the share enters, with `verify`.
    """
    check_share(raw)
    try:
        return Share(G2Element.from_bytes_unchecked(raw))
    except ValueError as error:
        raise MalformedShare(f"no point of the curve: {error}") from None


def sum_shares(shares: Sequence[Share]) -> bytes:
    """Return the sum of at least one share as 96 compressed bytes."""
    return bytes(PopSchemeMPL.aggregate(list(shares)))


def sum_public_keys(keys: Iterable[PublicKey]) -> PublicKey:
    """Return the sum of keys, each of them checked by `parse_public_key` before."""
    total = _G1_INFINITY
    for key in keys:
        total = total + key
    return PublicKey(total)


def verify(key: PublicKey, message: bytes, signature: bytes) -> bool:
    """Return whether 96 bytes are `key`'s signature over `message`: subgroup check, then one pairing check."""
    point = _checked_signature(signature)
    if point is None or key == _G1_INFINITY:
        return False
    return bool(PopSchemeMPL.verify(key, message, point))


def add_public_keys(left: PublicKey, right: PublicKey) -> PublicKey:
    """Return the sum of two keys, or of sums of keys; it may be the point at infinity."""
    return PublicKey(left + right)  # type: ignore[operator]


def subtract_public_keys(left: PublicKey, right: PublicKey) -> PublicKey:
    """Return the difference of two keys, or of sums of keys; it may be the point at infinity."""
    return PublicKey(left + right.negate())  # type: ignore[attr-defined]


def add_shares(left: Share, right: Share) -> Share:
    """Return the sum of two shares, or of sums of shares; it may be the point at infinity."""
    return Share(left + right)  # type: ignore[operator]


def subtract_shares(left: Share, right: Share) -> Share:
    """Return the difference of two shares, or of sums of shares; it may be the point at infinity."""
    return Share(left + right.negate())  # type: ignore[attr-defined]


def is_in_subgroup(share: Share) -> bool:
    """Return whether a share, or a sum of shares, lies in the subgroup; pairings prove nothing otherwise."""
    try:
        G2Element.from_bytes(bytes(share))  # type: ignore[call-overload]
    except ValueError:
        return False
    return True


def hash_to_curve(message: bytes) -> HashedMessage:
    """Return the point that a message is hashed to; a key signs the message by multiplying it."""
    return HashedMessage(PopSchemeMPL.g2_from_message(message))


def compute_deviation(key: PublicKey, share: Share, hashed: HashedMessage) -> Deviation:
    """Return the deviation of a share from its key's signature over a hashed message; NO_DEVIATION for a good share.

    Keys and shares may be sums; the share must be in the subgroup. Multiplicative: the deviation of a sum of
    shares against the sum of their keys is the product of the deviations.
    """
    return Deviation(key.pair(hashed) * _MINUS_G1.pair(share))  # type: ignore[attr-defined]


def divide_deviations(left: Deviation, right: Deviation) -> Deviation:
    """Return the quotient of two deviations.

    The inverse is the conjugate, but blspy offers neither; so the second half of the twelve field elements is
    negated in their bytes (48 each, little-endian, in Montgomery form, which negation leaves as it is).
    """
    raw = bytes(right)  # type: ignore[call-overload]
    elements = (raw[start : start + 48] for start in range(len(raw) // 2, len(raw), 48))
    negated = ((-int.from_bytes(element, "little") % _FIELD_ORDER).to_bytes(48, "little") for element in elements)
    inverse = GTElement.from_bytes_unchecked(raw[: len(raw) // 2] + b"".join(negated))
    return Deviation(left * inverse)


def secret_from_bytes(raw: bytes) -> SecretKey:
    """Return the secret key of 32 big-endian bytes, from 1 to the group order less 1. Raises MalformedKey."""
    check_secret(raw)
    return SecretKey(PrivateKey.from_bytes(raw))


def secret_bytes(secret: SecretKey) -> bytes:
    """Return the 32 big-endian bytes of a secret key."""
    return bytes(secret)  # type: ignore[call-overload, no-any-return]


def derive_public_key(secret: SecretKey) -> PublicKey:
    """Return the public key of a secret key."""
    return PublicKey(PopSchemeMPL.sk_to_g1(secret))


def sign(secret: SecretKey, message: bytes) -> bytes:
    """Return the 96-byte signature over `message` that enters aggregates (message DST)."""
    return bytes(PopSchemeMPL.sign(secret, message))


def sign_possession(secret: SecretKey, message: bytes) -> bytes:
    """Return the 96-byte signature over `message` under the proof-of-possession DST (signed IPs, key proofs).

    Double-and-add of the hashed point, since blspy has no scalar multiplication. NOT constant time:
    use it for temporary keys and simulated validators only.
    """
    point = G2Element.from_message(message, POSSESSION_DST)
    total = G2Element()
    for bit in bin(int.from_bytes(secret_bytes(secret), "big"))[2:]:
        total = total + total
        if bit == "1":
            total = total + point
    return bytes(total)


def verify_possession(key: PublicKey, message: bytes, signature: bytes) -> bool:
    """Return whether 96 bytes are the signature of `key` over `message` under the proof-of-possession DST."""
    point = _checked_signature(signature)
    if point is None or key == _G1_INFINITY:
        return False
    hashed = G2Element.from_message(message, POSSESSION_DST)
    return bool(hashed.pair(key) == point.pair(_G1))


def is_signature(raw: bytes) -> bool:
    """Return whether 96 bytes are a point of the signature group, not infinity; by any key, over any message."""
    return _checked_signature(raw) is not None


def _checked_signature(raw: bytes) -> G2Element | None:
    """Return the point, or None if it is malformed, infinity or outside the subgroup."""
    if not may_be_signature(raw):
        return None
    try:
        return G2Element.from_bytes(raw)
    except ValueError:
        return None
