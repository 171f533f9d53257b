"""RIPEMD-160, for node ids; many OpenSSL builds no longer offer it.

Source of truth: Dobbertin, Bosselaers, Preneel, "RIPEMD-160: A Strengthened Version of RIPEMD" (1996).
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final

_MASK: Final = 0xFFFFFFFF
_START: Final = (0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0)
_PERMUTATION: Final = (7, 4, 13, 1, 10, 6, 15, 3, 12, 0, 9, 5, 2, 14, 11, 8)
_LEFT_CONSTANTS: Final = (0x00000000, 0x5A827999, 0x6ED9EBA1, 0x8F1BBCDC, 0xA953FD4E)
_RIGHT_CONSTANTS: Final = (0x50A28BE6, 0x5C4DD124, 0x6D703EF3, 0x7A6D76E9, 0x00000000)
# How far word w is rotated in round r, for both lines.
_SHIFTS: Final = (
    (11, 14, 15, 12, 5, 8, 7, 9, 11, 13, 14, 15, 6, 7, 9, 8),
    (12, 13, 11, 15, 6, 9, 9, 7, 12, 15, 11, 13, 7, 8, 7, 7),
    (13, 15, 14, 11, 7, 7, 6, 8, 13, 14, 13, 12, 5, 5, 6, 9),
    (14, 11, 12, 14, 8, 6, 5, 5, 15, 12, 15, 14, 9, 9, 8, 6),
    (15, 12, 13, 13, 9, 5, 8, 6, 14, 11, 12, 11, 8, 6, 5, 5),
)


def _orders(first: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    orders = [first]
    for _ in range(4):
        orders.append(tuple(_PERMUTATION[word] for word in orders[-1]))
    return tuple(orders)


_LEFT_ORDERS: Final = _orders(tuple(range(16)))
_RIGHT_ORDERS: Final = _orders(tuple((9 * word + 5) % 16 for word in range(16)))


def ripemd160(data: bytes) -> bytes:
    """Return the 20-byte digest, by the platform's own code where there is any."""
    try:
        return hashlib.new("ripemd160", data, usedforsecurity=False).digest()
    except ValueError:
        return pure_ripemd160(data)


def pure_ripemd160(data: bytes) -> bytes:
    """Return the 20-byte digest, computed here."""
    padded = data + b"\x80" + bytes(-(len(data) + 9) % 64) + struct.pack("<Q", 8 * len(data))
    state: tuple[int, ...] = _START
    for start in range(0, len(padded), 64):
        state = _compressed(state, struct.unpack_from("<16I", padded, start))
    return struct.pack("<5I", *state)


def _compressed(state: tuple[int, ...], words: tuple[int, ...]) -> tuple[int, ...]:
    left, right = state, state
    for round_ in range(5):
        for word in _LEFT_ORDERS[round_]:
            left = _step(left, round_, words[word] + _LEFT_CONSTANTS[round_], _SHIFTS[round_][word])
        for word in _RIGHT_ORDERS[round_]:
            right = _step(right, 4 - round_, words[word] + _RIGHT_CONSTANTS[round_], _SHIFTS[round_][word])
    return tuple((state[i] + left[(i + 1) % 5] + right[(i + 2) % 5]) & _MASK for i in (1, 2, 3, 4, 0))


def _step(line: tuple[int, ...], function: int, addend: int, shift: int) -> tuple[int, ...]:
    a, b, c, d, e = line
    mixed = _rotated((a + _mixed(function, b, c, d) + addend) & _MASK, shift)
    return e, (mixed + e) & _MASK, b, _rotated(c, 10), d


def _mixed(function: int, x: int, y: int, z: int) -> int:
    match function:
        case 0:
            return x ^ y ^ z
        case 1:
            return (x & y) | (~x & z)
        case 2:
            return (x | ~y) ^ z
        case 3:
            return (x & z) | (y & ~z)
        case _:
            return x ^ (y | ~z)


def _rotated(value: int, by: int) -> int:
    value &= _MASK
    return (value << by | value >> (32 - by)) & _MASK
