"""The BLS interface by blst: keys, hashes and pairings by pyblst, shares by chia_rs; the choice from Python 3.13 on.

The functions do what those of `blspy_backend` do, whose docstrings hold here. Neither library is enough alone: pyblst
decodes no point without checking its subgroup, which costs a share 85 us instead of 31, and chia_rs hashes messages
under its own DST only. A share enters a pairing by its 96 bytes. Each call holds the interpreter lock, for at most
0.35 ms except in sums (1.8 ms for 1,000 shares).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

from chia_rs import AugSchemeMPL, G2Element
from msgspec import Struct
from pyblst import BlstFP12Element, BlstP1Element, BlstP2Element, final_verify, miller_loop

from warpseal.bls.common import (
    POSSESSION_DST,
    SECRET_KEY_BYTES,
    SHARE_BYTES,
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

_G1: Final = BlstP1Element.uncompress(
    bytes.fromhex("97f1d3a73197d7942695638c4fa9ac0fc3688c4f9774b905a14e3a3f171bac586c55e83ff97a1aeffb3af00adb22c6bb")
)
_G1_INFINITY: Final = BlstP1Element()
_G2_INFINITY: Final = b"\xc0" + bytes(SHARE_BYTES - 1)
_SIGN_FLAG: Final = 0x20


class _Quotient(Struct, frozen=True, eq=False):
    """A deviation as the quotient of two Miller loops, since pyblst offers neither the final power nor an inverse."""

    numerator: Any
    denominator: Any

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Quotient):
            return NotImplemented
        return bool(final_verify(self.numerator * other.denominator, other.numerator * self.denominator))


NO_DEVIATION: Final = Deviation(_Quotient(BlstFP12Element(), BlstFP12Element()))


def parse_public_key(raw: bytes) -> PublicKey:
    check_public_key(raw)
    try:
        return PublicKey(BlstP1Element.uncompress(raw))
    except ValueError as error:
        raise MalformedKey(f"no public key, invalid point: {error}") from None


def public_key_bytes(key: PublicKey) -> bytes:
    return bytes(cast(Any, key).compress())


def decode_share(raw: bytes) -> Share:
    check_share(raw)
    try:
        return Share(G2Element.from_bytes_unchecked(raw))
    except ValueError as error:
        raise MalformedShare(f"no point of the curve: {error}") from None


def sum_shares(shares: Sequence[Share]) -> bytes:
    return bytes(AugSchemeMPL.aggregate(cast(Any, list(shares))))


def sum_public_keys(keys: Iterable[PublicKey]) -> PublicKey:
    total = _G1_INFINITY
    for key in keys:
        total = total + key
    return PublicKey(total)


def verify(key: PublicKey, message: bytes, signature: bytes) -> bool:
    return _verify(key, message, signature, SIGNATURE_DST)


def add_public_keys(left: PublicKey, right: PublicKey) -> PublicKey:
    return PublicKey(cast(Any, left) + right)


def subtract_public_keys(left: PublicKey, right: PublicKey) -> PublicKey:
    return PublicKey(cast(Any, left) + -cast(Any, right))


def add_shares(left: Share, right: Share) -> Share:
    return Share(cast(G2Element, left) + cast(G2Element, right))


def subtract_shares(left: Share, right: Share) -> Share:
    # chia_rs negates no point, so the sign bit of its bytes is flipped. Infinity has no sign.
    raw = bytes(cast(G2Element, right))
    if raw == _G2_INFINITY:
        return left
    negated = G2Element.from_bytes_unchecked(bytes([raw[0] ^ _SIGN_FLAG]) + raw[1:])
    return Share(cast(G2Element, left) + negated)


def is_in_subgroup(share: Share) -> bool:
    try:
        G2Element.from_bytes(bytes(cast(G2Element, share)))
    except ValueError:
        return False
    return True


def hash_to_curve(message: bytes) -> HashedMessage:
    return HashedMessage(BlstP2Element.hash_to_group(message, SIGNATURE_DST))


def compute_deviation(key: PublicKey, share: Share, hashed: HashedMessage) -> Deviation:
    point = BlstP2Element.uncompress(bytes(cast(G2Element, share)))
    return Deviation(_Quotient(miller_loop(key, hashed), miller_loop(_G1, point)))


def divide_deviations(left: Deviation, right: Deviation) -> Deviation:
    first, second = cast(_Quotient, left), cast(_Quotient, right)
    return Deviation(_Quotient(first.numerator * second.denominator, first.denominator * second.numerator))


def secret_from_bytes(raw: bytes) -> SecretKey:
    check_secret(raw)
    return SecretKey(int.from_bytes(raw, "big"))


def secret_bytes(secret: SecretKey) -> bytes:
    return cast(int, secret).to_bytes(SECRET_KEY_BYTES, "big")


def derive_public_key(secret: SecretKey) -> PublicKey:
    return PublicKey(_G1.scalar_mul(secret))


def sign(secret: SecretKey, message: bytes) -> bytes:
    return _sign(secret, message, SIGNATURE_DST)


def sign_possession(secret: SecretKey, message: bytes) -> bytes:
    return _sign(secret, message, POSSESSION_DST)


def verify_possession(key: PublicKey, message: bytes, signature: bytes) -> bool:
    return _verify(key, message, signature, POSSESSION_DST)


def is_signature(raw: bytes) -> bool:
    return _checked_signature(raw) is not None


def _sign(secret: SecretKey, message: bytes, dst: bytes) -> bytes:
    return bytes(BlstP2Element.hash_to_group(message, dst).scalar_mul(secret).compress())


def _verify(key: PublicKey, message: bytes, signature: bytes, dst: bytes) -> bool:
    point = _checked_signature(signature)
    if point is None or key == _G1_INFINITY:
        return False
    hashed = BlstP2Element.hash_to_group(message, dst)
    return bool(final_verify(miller_loop(key, hashed), miller_loop(_G1, point)))


def _checked_signature(raw: bytes) -> BlstP2Element | None:
    """Return the point, or None if it is malformed, infinity or outside the subgroup."""
    if not may_be_signature(raw):
        return None
    try:
        return BlstP2Element.uncompress(raw)
    except ValueError:
        return None
