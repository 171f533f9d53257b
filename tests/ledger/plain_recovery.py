"""The secp256k1 key behind a recoverable signature, plainly: what the library is held against.

Source of truth: SEC 1 4.1.6. Pure integers, a few milliseconds a signature.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

_P: Final = 2**256 - 2**32 - 977
_N: Final = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
_G: Final = (
    0x79BE667EF9DCBBAC55A06295CE870B07029BFCDB2DCE28D959F2815B16F81798,
    0x483ADA7726A3C4655DA4FBFC0E1108A8FD17B448A68554199C47D08FFB10D4B8,
    1,
)
_Point = tuple[int, int, int]
_INFINITY: Final = (0, 1, 0)


@lru_cache(maxsize=1024)
def plain_public_key(digest: bytes, signature: bytes) -> bytes | None:
    """Return the 33-byte compressed key that signed the 32-byte `digest`; None where no key did."""
    if len(signature) != 65:
        return None
    r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:64], "big")
    nonce_point = _lift(r + (_N if signature[64] & 2 else 0), signature[64] & 1)
    if signature[64] > 3 or not 0 < r < _N or not 0 < s < _N or nonce_point is None:
        return None
    inverse = pow(r, -1, _N)
    number = int.from_bytes(digest, "big")
    point = _sum_of(-number * inverse % _N, _G, s * inverse % _N, nonce_point)
    return _compressed(point)


def _lift(x: int, odd: int) -> _Point | None:
    if x >= _P:
        return None
    square = (x * x * x + 7) % _P
    y = pow(square, (_P + 1) // 4, _P)
    if y * y % _P != square:
        return None
    return (x, y if y & 1 == odd else _P - y, 1)


def _compressed(point: _Point) -> bytes | None:
    x, y, z = point
    if not z:
        return None
    inverse = pow(z, -1, _P)
    square = inverse * inverse % _P
    return bytes([2 + (y * square * inverse % _P & 1)]) + (x * square % _P).to_bytes(32, "big")


def _sum_of(a: int, first: _Point, b: int, second: _Point) -> _Point:
    """Return a * first + b * second, both bit by bit at once."""
    table = (_INFINITY, first, second, _add(first, second))
    total = _INFINITY
    for bit in range(max(a.bit_length(), b.bit_length()) - 1, -1, -1):
        total = _add(_double(total), table[(a >> bit & 1) | (b >> bit & 1) << 1])
    return total


def _double(point: _Point) -> _Point:
    x, y, z = point
    if not z:
        return _INFINITY
    square = y * y % _P
    s = 4 * x * square % _P
    slope = 3 * x * x % _P
    new_x = (slope * slope - 2 * s) % _P
    return new_x, (slope * (s - new_x) - 8 * square * square) % _P, 2 * y * z % _P


def _add(one: _Point, other: _Point) -> _Point:
    if not one[2]:
        return other
    if not other[2]:
        return one
    z1, z2 = one[2] * one[2] % _P, other[2] * other[2] % _P
    u1, u2 = one[0] * z2 % _P, other[0] * z1 % _P
    s1, s2 = one[1] * z2 * other[2] % _P, other[1] * z1 * one[2] % _P
    if u1 == u2:
        return _double(one) if s1 == s2 else _INFINITY
    h, r = u2 - u1, s2 - s1
    square = h * h % _P
    cube, v = square * h % _P, u1 * square % _P
    x = (r * r - cube - 2 * v) % _P
    return x, (r * (v - x) - s1 * cube) % _P, h * one[2] * other[2] % _P
