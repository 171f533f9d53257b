"""Validator sets by subnet and height, bounded in bytes; equal sets are stored once.

Sets at the heights that the daemon itself uses (proposed, epoch) are current: the few used last of
each subnet are evicted only for other current ones, never for sets at heights that callers name.
Parsed keys have a cache of their own.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from cachetools import LRUCache
from msgspec import Struct

from warpseal.bls import PublicKey, parse_public_key
from warpseal.warp.ids import SubnetID
from warpseal.warp.validator_set import CanonicalValidatorSet

SetKey = tuple[SubnetID, int]

# The proposed height moves, so older ones of a subnet become ordinary; several chains may be in
# different epochs.
CURRENT_PER_SUBNET: Final = 8
# Measured: objects, index dictionaries and parsed keys, rounded up.
_SET_BYTES: Final = 1_024
_VALIDATOR_BYTES: Final = 640
_NODE_BYTES: Final = 256
_ENTRY_BYTES: Final = 384


class ParsedValidatorSet(Struct, frozen=True):
    """A canonical set and its parsed keys, in canonical order."""

    validators: CanonicalValidatorSet
    keys: tuple[PublicKey, ...]

    @property
    def estimated_bytes(self) -> int:
        """Return the estimated memory of the set."""
        nodes = sum(len(validator.node_ids) for validator in self.validators.validators)
        return _SET_BYTES + _VALIDATOR_BYTES * len(self.validators) + _NODE_BYTES * nodes


class _Entry(Struct, eq=False):
    parsed: ParsedValidatorSet
    size_bytes: int
    heights: int = 0


class SetCache:
    """Validator sets of up to `max_bytes` in total.

    held_bytes: estimated size of the sets, never above the bound.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.held_bytes = 0
        self._by_digest: dict[bytes, _Entry] = {}
        self._ordinary: OrderedDict[SetKey, _Entry] = OrderedDict()
        self._current: OrderedDict[SetKey, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ordinary) + len(self._current)

    def get(self, key: SetKey, *, current: bool) -> CanonicalValidatorSet | None:
        """Return the set at (subnet, height), and mark it as used."""
        if key in self._current:
            self._make_current(key)
            return self._current[key].parsed.validators
        entry = self._ordinary.get(key)
        if entry is None:
            return None
        self._ordinary.move_to_end(key)
        if current:
            self._make_current(key)
        return entry.parsed.validators

    def find(self, digest: bytes) -> ParsedValidatorSet | None:
        """Return the set with this digest, at any height."""
        entry = self._by_digest.get(digest)
        return entry.parsed if entry else None

    def newest_height(self, subnet_id: SubnetID) -> int | None:
        """Return the newest height of which a set of a subnet is cached; None if there is none."""
        return max(
            (height for other, height in (*self._current, *self._ordinary) if other == subnet_id),
            default=None,
        )

    def put(self, key: SetKey, parsed: ParsedValidatorSet, *, current: bool) -> None:
        """Add a set at (subnet, height), and mark it as used.

        A set that does not fit is evicted immediately.
        """
        if key not in self._current and key not in self._ordinary:
            self._ordinary[key] = self._acquire(parsed)
        if current:
            self._make_current(key)
        while self.held_bytes > self._max_bytes:
            _, entry = (self._ordinary or self._current).popitem(last=False)
            self._release(entry)

    def discard(self, key: SetKey) -> None:
        """Remove the set at (subnet, height), if it is cached."""
        entry = self._ordinary.pop(key, None) or self._current.pop(key, None)
        if entry is not None:
            self._release(entry)

    def _acquire(self, parsed: ParsedValidatorSet) -> _Entry:
        digest = parsed.validators.digest
        entry = self._by_digest.get(digest)
        if entry is None:
            entry = self._by_digest[digest] = _Entry(parsed, parsed.estimated_bytes)
            self.held_bytes += entry.size_bytes
        entry.heights += 1
        self.held_bytes += _ENTRY_BYTES
        return entry

    def _make_current(self, key: SetKey) -> None:
        if key not in self._current:
            self._current[key] = self._ordinary.pop(key)
            of_subnet = [other for other in self._current if other[0] == key[0]]
            if len(of_subnet) > CURRENT_PER_SUBNET:
                self._ordinary[of_subnet[0]] = self._current.pop(of_subnet[0])
        self._current.move_to_end(key)

    def _release(self, entry: _Entry) -> None:
        entry.heights -= 1
        self.held_bytes -= _ENTRY_BYTES
        if not entry.heights:
            del self._by_digest[entry.parsed.validators.digest]
            self.held_bytes -= entry.size_bytes


class PublicKeyCache:
    """At most `max_keys` parsed keys by their 48 bytes: parsing a key takes 50 microseconds.

    Thread-safe.
    """

    def __init__(
        self, max_keys: int, parse: Callable[[bytes], PublicKey] = parse_public_key
    ) -> None:
        self._keys: LRUCache[bytes, PublicKey] = LRUCache(max_keys)
        self._parse = parse
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._keys)

    def parse(self, raw: bytes) -> PublicKey:
        """Return the key behind 48 compressed bytes. Raises bls.MalformedKey."""
        with self._lock:
            key = self._keys.get(raw)
        if key is None:
            key = self._parse(raw)
            with self._lock:
                self._keys[raw] = key
        return key
