"""Bloom filters of known peers, so that peers do not send known addresses again.

Source of truth: avalanchego `utils/bloom` and `utils/ips/claimed_ip_port.go`. Marshalled: the
number of hashes (one byte), their seeds (8 bytes each, big-endian), the bits (at least one byte,
least significant bit first).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Final

from warpseal.protocol.limits import MAX_FILTER_HASHES, MAX_SALT_BYTES
from warpseal.warp.ids import NodeID

_SEED_BYTES: Final = 8
_MASK_64: Final = 0xFFFF_FFFF_FFFF_FFFF
_TURN: Final = 17
_MIN_COUNT: Final = 128
_FALSE_POSITIVES: Final = 0.001
# A filter beyond this rate of false positives is rebuilt.
_MAX_FALSE_POSITIVES: Final = 0.01
# Nodes hash a 40-byte buffer: 32 bytes for the node ID, of which it fills 20, and the timestamp.
_GOSSIP_ID_PADDING: Final = bytes(12)


class MalformedFilter(ValueError):
    """A bloom filter outside of the bounds of the protocol."""


class BloomFilter:
    """A set of gossip IDs with false positives and without false negatives."""

    __slots__ = ("_bits", "additions", "max_additions", "salt", "seeds")

    def __init__(self, seeds: Sequence[int], entries: bytes, salt: bytes) -> None:
        self.seeds = tuple(seeds)
        self.salt = salt
        self._bits = bytearray(entries)
        self.additions = 0
        self.max_additions = max_additions(len(self.seeds), len(entries), _MAX_FALSE_POSITIVES)

    @classmethod
    def sized_for(cls, nodes: int, random_bytes: Callable[[int], bytes]) -> BloomFilter:
        """Return an empty filter for two addresses per node, with fresh seeds and salt."""
        count = max(2 * nodes, _MIN_COUNT)
        entry_bytes = optimal_entry_bytes(count, _FALSE_POSITIVES)
        hashes = optimal_hashes(entry_bytes, count)
        seeds = [int.from_bytes(random_bytes(_SEED_BYTES), "big") for _ in range(hashes)]
        return cls(seeds, bytes(entry_bytes), random_bytes(MAX_SALT_BYTES))

    @classmethod
    def parse(cls, raw: bytes, salt: bytes) -> BloomFilter:
        """Return a marshalled filter with its salt. Raises MalformedFilter."""
        check_filter(raw, salt)
        entries_at = 1 + raw[0] * _SEED_BYTES
        seeds = [
            int.from_bytes(raw[at : at + _SEED_BYTES], "big")
            for at in range(1, entries_at, _SEED_BYTES)
        ]
        return cls(seeds, raw[entries_at:], salt)

    @property
    def is_saturated(self) -> bool:
        """Whether the rate of false positives requires a filter with new seeds and salt."""
        return self.additions >= self.max_additions

    def add(self, key: bytes) -> None:
        """Add a gossip ID."""
        for bit in self._bits_of(key):
            self._bits[bit >> 3] |= 1 << (bit & 7)
        self.additions += 1

    def __contains__(self, key: bytes) -> bool:
        return all(self._bits[bit >> 3] & 1 << (bit & 7) for bit in self._bits_of(key))

    def encode(self) -> bytes:
        """Return the marshalled filter; messages carry its salt in a field of its own."""
        return (
            bytes((len(self.seeds),))
            + b"".join(s.to_bytes(_SEED_BYTES, "big") for s in self.seeds)
            + self._bits
        )

    def _bits_of(self, key: bytes) -> list[int]:
        """Return the bits of a key; each hash continues from the previous one."""
        value = key_hash(key, self.salt)
        size = 8 * len(self._bits)
        bits = []
        for seed in self.seeds:
            value = (value << _TURN & _MASK_64 | value >> 64 - _TURN) ^ seed
            bits.append(value % size)
        return bits


def gossip_id(node_id: NodeID, timestamp: int) -> bytes:
    """Return the 32-byte key of a node's address signed at `timestamp` (unix seconds)."""
    return sha256(node_id + timestamp.to_bytes(8, "big") + _GOSSIP_ID_PADDING).digest()


def key_hash(key: bytes, salt: bytes) -> int:
    """Return the 64-bit hash from which the bits of a key are derived."""
    return int.from_bytes(sha256(key + salt).digest()[:8], "big")


def check_filter(raw: bytes, salt: bytes) -> None:
    """Raise MalformedFilter for a filter that nodes refuse.

    A filter has 1 to 16 hashes, at least one byte of bits and at most 32 bytes of salt.
    """
    # utils/bloom/read_filter.go, Parse; the bound of the salt is maxBloomSaltLen of peer.go.
    if not raw or not 1 <= raw[0] <= MAX_FILTER_HASHES:
        raise MalformedFilter(f"{raw[0] if raw else 'no'} hashes")
    if len(raw) < 1 + raw[0] * _SEED_BYTES + 1:
        raise MalformedFilter(f"{len(raw)} bytes do not hold {raw[0]} seeds and a byte of bits")
    if len(salt) > MAX_SALT_BYTES:
        raise MalformedFilter(f"a salt of {len(salt)} bytes")


def optimal_entry_bytes(count: int, false_positives: float) -> int:
    """Return the size in bytes for `count` keys at this rate of false positives."""
    bits = -count * math.log(false_positives) / math.log(2) ** 2
    return max(int((bits + 7) / 8), 1)


def optimal_hashes(entry_bytes: int, count: int) -> int:
    """Return the number of hashes for `count` keys in a filter of this size, from 1 to 16."""
    return max(1, min(MAX_FILTER_HASHES, math.ceil(8 * entry_bytes * math.log(2) / count)))


def max_additions(hashes: int, entry_bytes: int, false_positives: float) -> int:
    """Return the number of keys at which a filter reaches this rate of false positives."""
    per_hash = 1 - false_positives ** (1 / hashes)
    return math.ceil(-math.log(per_hash) * 8 * entry_bytes / hashes)
