"""Bloom filters of known peers: parsing filters of clients, building filters of nodes.

Source of truth: avalanchego `utils/bloom`, `network/ip_tracker.go` (sizes).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from math import ceil, log
from random import Random
from typing import Final

MAX_SALT_BYTES: Final = 32
MAX_HASHES: Final = 16
_SEED_BYTES: Final = 8
_MASK: Final = 2**64 - 1
_MIN_COUNT: Final = 128
_FALSE_POSITIVES: Final = 0.001


class MalformedFilter(ValueError):
    """The bytes are not a filter."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A parsed filter.

    seeds: 1 to 16 uint64; entries: at least one byte.
    """

    seeds: tuple[int, ...]
    entries: bytes

    @classmethod
    def parse(cls, raw: bytes) -> Filter:
        """Return the filter behind `raw`: count, seeds, entries. Raises MalformedFilter."""
        count = raw[0] if raw else 0
        start = 1 + count * _SEED_BYTES
        if not 1 <= count <= MAX_HASHES:
            raise MalformedFilter(f"{count} hashes; 1 to {MAX_HASHES} are allowed")
        if len(raw) <= start:
            raise MalformedFilter("no entries")
        seeds = (raw[offset : offset + _SEED_BYTES] for offset in range(1, start, _SEED_BYTES))
        return cls(tuple(int.from_bytes(seed, "big") for seed in seeds), raw[start:])

    def contains(self, key: bytes, salt: bytes) -> bool:
        """Return whether `key` was added under `salt`, with false positives."""
        return all(self.entries[bit // 8] >> bit % 8 & 1 for bit in _bits(self, key, salt))

    def encode(self) -> bytes:
        """Return the bytes that `parse` takes."""
        seeds = b"".join(seed.to_bytes(_SEED_BYTES, "big") for seed in self.seeds)
        return bytes([len(self.seeds)]) + seeds + self.entries


EMPTY: Final = Filter((0,), b"\x00")


def filter_of(keys: Iterable[bytes], salt: bytes, rng: Random) -> Filter:
    """Return a filter of `keys`, of the size that a node would choose."""
    held = list(keys)
    count = max(2 * len(held), _MIN_COUNT)
    size = int((count * -log(_FALSE_POSITIVES) / log(2) ** 2 + 7) / 8)
    hashes = min(MAX_HASHES, ceil(size * 8 * log(2) / count))
    empty = Filter(tuple(rng.getrandbits(64) for _ in range(hashes)), bytes(size))
    entries = bytearray(size)
    for key in held:
        for bit in _bits(empty, key, salt):
            entries[bit // 8] |= 1 << bit % 8
    return Filter(empty.seeds, bytes(entries))


def _bits(shape: Filter, key: bytes, salt: bytes) -> Iterable[int]:
    value = int.from_bytes(sha256(key + salt).digest()[:8], "big")
    size = 8 * len(shape.entries)
    for seed in shape.seeds:
        # Each hash continues from the previous one.
        value = ((value << 17 | value >> 47) & _MASK) ^ seed
        yield value % size
