"""The bit set that names the signers of a message. Source of truth: avalanchego `utils/set/bits.go`.

A big-endian integer of minimal length; bit i stands for the validator of canonical index i. Nobody: no bytes.
"""

from __future__ import annotations

from collections.abc import Iterable


class MalformedSigners(ValueError):
    """A bit set with a leading zero byte; verifiers refuse it."""


def encode_signers(indices: Iterable[int]) -> bytes:
    """Return the bit set of canonical `indices` (0 or more, each once counts; order does not matter)."""
    bits = 0
    for index in indices:
        bits |= 1 << index
    return bits.to_bytes((bits.bit_length() + 7) // 8, "big")


def decode_signers(raw: bytes) -> tuple[int, ...]:
    """Return the canonical indices in ascending order. Raises MalformedSigners for a padded encoding."""
    if raw[:1] == b"\x00":
        raise MalformedSigners("the signers' bit set starts with a zero byte")
    digits = bin(int.from_bytes(raw, "big"))[:1:-1]
    return tuple(index for index, digit in enumerate(digits) if digit == "1")
