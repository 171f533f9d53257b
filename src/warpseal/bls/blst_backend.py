"""BLS by blst, from Python 3.13 on: keys, hashes and pairings by pyblst, shares by chia_rs.

Neither library is enough alone: pyblst decodes no point without checking its subgroup, which costs
a share 85 us instead of 31, and chia_rs hashes messages under its own DST only. A share enters a
pairing by its 96 bytes. Each call holds the interpreter lock, for at most 0.35 ms except in sums
(1.8 ms for 1,000 shares).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from chia_rs import AugSchemeMPL, G2Element
from msgspec import Struct
from pyblst import BlstFP12Element, BlstP1Element, BlstP2Element, final_verify, miller_loop

from warpseal.bls.common import POSSESSION_DST, SECRET_KEY_BYTES, SHARE_BYTES, SIGNATURE_DST

_G1: Final = BlstP1Element.uncompress(
    bytes.fromhex(
        "97f1d3a73197d7942695638c4fa9ac0fc3688c4f9774b905a14e3a3f171bac586c55e83ff97a1aeffb3af00adb22c6bb"
    )
)
_G2_INFINITY: Final = b"\xc0" + bytes(SHARE_BYTES - 1)
_SIGN_FLAG: Final = 0x20
G1_INFINITY: Final = BlstP1Element()


class _Quotient(Struct, frozen=True, eq=False):
    """A deviation as the quotient of two Miller loops.

    pyblst offers neither the final power nor an inverse.
    """

    numerator: Any
    denominator: Any

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Quotient):
            return NotImplemented
        return bool(
            final_verify(self.numerator * other.denominator, other.numerator * self.denominator)
        )


NO_DEVIATION: Final = _Quotient(BlstFP12Element(), BlstFP12Element())

decode_public_key = BlstP1Element.uncompress
decode_share = G2Element.from_bytes_unchecked
decode_signature = BlstP2Element.uncompress
decode_secret = partial(int.from_bytes, byteorder="big")


def public_key_bytes(key: BlstP1Element) -> bytes:
    return bytes(key.compress())


def subtract_public_keys(left: BlstP1Element, right: BlstP1Element) -> BlstP1Element:
    return left + -right


def sum_shares(shares: Sequence[G2Element]) -> bytes:
    return bytes(AugSchemeMPL.aggregate(list(shares)))


def subtract_shares(left: G2Element, right: G2Element) -> G2Element:
    # chia_rs negates no point, so the sign bit of its bytes is flipped. Infinity has no sign.
    raw = bytes(right)
    if raw == _G2_INFINITY:
        return left
    return left + G2Element.from_bytes_unchecked(bytes([raw[0] ^ _SIGN_FLAG]) + raw[1:])


def is_in_subgroup(share: G2Element) -> bool:
    try:
        G2Element.from_bytes(bytes(share))
    except ValueError:
        return False
    return True


def hash_to_curve(message: bytes) -> BlstP2Element:
    return BlstP2Element.hash_to_group(message, SIGNATURE_DST)


def compute_deviation(key: BlstP1Element, share: G2Element, hashed: BlstP2Element) -> _Quotient:
    return _Quotient(
        miller_loop(key, hashed), miller_loop(_G1, BlstP2Element.uncompress(bytes(share)))
    )


def divide_deviations(left: _Quotient, right: _Quotient) -> _Quotient:
    return _Quotient(left.numerator * right.denominator, left.denominator * right.numerator)


def secret_bytes(secret: int) -> bytes:
    return secret.to_bytes(SECRET_KEY_BYTES, "big")


def derive_public_key(secret: int) -> BlstP1Element:
    return _G1.scalar_mul(secret)


def _sign(dst: bytes, secret: int, message: bytes) -> bytes:
    return bytes(BlstP2Element.hash_to_group(message, dst).scalar_mul(secret).compress())


def _verify(dst: bytes, key: BlstP1Element, message: bytes, point: BlstP2Element) -> bool:
    hashed = BlstP2Element.hash_to_group(message, dst)
    return bool(final_verify(miller_loop(key, hashed), miller_loop(_G1, point)))


sign = partial(_sign, SIGNATURE_DST)
sign_possession = partial(_sign, POSSESSION_DST)
verify = partial(_verify, SIGNATURE_DST)
verify_possession = partial(_verify, POSSESSION_DST)
