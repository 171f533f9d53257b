"""BLS by py_arkworks_bls12381, for machines that the packages of `blst_backend` are not built for.

Those are Python 3.14 on macOS and on Linux other than x86-64, and Python 3.15. No signature is made
in constant time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from py_arkworks_bls12381 import GT, G1Point, G2Point, Scalar

from warpseal.bls.common import GROUP_ORDER, POSSESSION_DST, SIGNATURE_DST

_G1: Final = G1Point()
_MINUS_G1: Final = -_G1
_INVERSE_BITS: Final = bin(GROUP_ORDER - 1)[3:]
G1_INFINITY: Final = G1Point.identity()
NO_DEVIATION: Final = GT.one()

decode_public_key = G1Point.from_compressed_bytes
public_key_bytes = G1Point.to_compressed_bytes
decode_share = G2Point.from_compressed_bytes_unchecked
decode_signature = G2Point.from_compressed_bytes
is_in_subgroup = G2Point.is_in_subgroup
decode_secret = Scalar.from_be_bytes
secret_bytes = Scalar.to_be_bytes


def subtract_public_keys(left: G1Point, right: G1Point) -> G1Point:
    return left - right


def sum_shares(shares: Sequence[G2Point]) -> bytes:
    return sum(shares, G2Point.identity()).to_compressed_bytes()


def subtract_shares(left: G2Point, right: G2Point) -> G2Point:
    return left - right


def hash_to_curve(message: bytes) -> G2Point:
    return G2Point.hash_to_curve(message, SIGNATURE_DST)


def compute_deviation(key: G1Point, share: G2Point, hashed: G2Point) -> GT:
    return GT.multi_pairing([key, _MINUS_G1], [hashed, share])


def divide_deviations(left: GT, right: GT) -> GT:
    # By the inverse, which is the power of the group order less 1: negation in this library is the
    # field's.
    inverse = right
    for bit in _INVERSE_BITS:
        inverse = inverse * inverse
        if bit == "1":
            inverse = inverse * right
    return left * inverse


def derive_public_key(secret: Scalar) -> G1Point:
    return _G1 * secret


def _sign(dst: bytes, secret: Scalar, message: bytes) -> bytes:
    return (G2Point.hash_to_curve(message, dst) * secret).to_compressed_bytes()


def _verify(dst: bytes, key: G1Point, message: bytes, point: G2Point) -> bool:
    return GT.pairing_check([key, _MINUS_G1], [G2Point.hash_to_curve(message, dst), point])


sign = partial(_sign, SIGNATURE_DST)
sign_possession = partial(_sign, POSSESSION_DST)
verify = partial(_verify, SIGNATURE_DST)
verify_possession = partial(_verify, POSSESSION_DST)
