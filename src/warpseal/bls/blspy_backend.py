"""BLS by blspy 2.0.3, which has packages for Python 3.11 and 3.12."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from blspy import G1Element, G2Element, GTElement, PopSchemeMPL, PrivateKey

from warpseal.bls.common import POSSESSION_DST

_G1: Final = G1Element.generator()
_MINUS_G1: Final = _G1.negate()
_FIELD_ORDER: Final = int(
    "1a0111ea397fe69a4b1ba7b6434bacd764774b84f38512bf6730d2a0f6b0f6241eabfffeb153ffffb9feffffffffaaab",
    16,
)
G1_INFINITY: Final = G1Element()
# The pairing of nothing: blspy's own unity is not initialised.
NO_DEVIATION: Final = _G1.pair(G2Element())

decode_public_key = G1Element.from_bytes
public_key_bytes = G1Element.__bytes__
decode_share = G2Element.from_bytes_unchecked
decode_signature = G2Element.from_bytes
verify = PopSchemeMPL.verify
hash_to_curve = PopSchemeMPL.g2_from_message
decode_secret = PrivateKey.from_bytes
secret_bytes = PrivateKey.__bytes__
derive_public_key = PopSchemeMPL.sk_to_g1


def subtract_public_keys(left: G1Element, right: G1Element) -> G1Element:
    return left + right.negate()


def sum_shares(shares: Sequence[G2Element]) -> bytes:
    return bytes(PopSchemeMPL.aggregate(list(shares)))


def subtract_shares(left: G2Element, right: G2Element) -> G2Element:
    return left + right.negate()


def is_in_subgroup(share: G2Element) -> bool:
    try:
        G2Element.from_bytes(bytes(share))
    except ValueError:
        return False
    return True


def compute_deviation(key: G1Element, share: G2Element, hashed: G2Element) -> GTElement:
    return key.pair(hashed) * _MINUS_G1.pair(share)


def divide_deviations(left: GTElement, right: GTElement) -> GTElement:
    # The inverse is the conjugate, but blspy offers neither; so the second half of the twelve field
    # elements is negated in their bytes (48 each, little-endian, in Montgomery form, which negation
    # leaves as it is).
    raw = bytes(right)
    elements = (raw[start : start + 48] for start in range(len(raw) // 2, len(raw), 48))
    negated = (
        (-int.from_bytes(element, "little") % _FIELD_ORDER).to_bytes(48, "little")
        for element in elements
    )
    return left * GTElement.from_bytes_unchecked(raw[: len(raw) // 2] + b"".join(negated))


def sign(secret: PrivateKey, message: bytes) -> bytes:
    return bytes(PopSchemeMPL.sign(secret, message))


def sign_possession(secret: PrivateKey, message: bytes) -> bytes:
    # Double-and-add of the hashed point, since blspy has no scalar multiplication.
    point, total = G2Element.from_message(message, POSSESSION_DST), G2Element()
    for bit in bin(int.from_bytes(bytes(secret), "big"))[2:]:
        total = total + total
        if bit == "1":
            total = total + point
    return bytes(total)


def verify_possession(key: G1Element, message: bytes, point: G2Element) -> bool:
    return bool(G2Element.from_message(message, POSSESSION_DST).pair(key) == point.pair(_G1))
