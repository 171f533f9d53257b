"""Validator sets by subnet and height, bounded in bytes; equal sets are held once, whatever their heights. Pure.

Sets at the heights that the daemon itself uses (proposed, epoch) are current: the few used last of each subnet
are dropped only for other current ones, never for sets at heights that callers name.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from warpseal.bls import PublicKey, parse_public_key
from warpseal.runtime.locks import ThreadLock
from warpseal.warp.ids import SubnetID
from warpseal.warp.validator_set import CanonicalValidatorSet

SetKey = tuple[SubnetID, int]

# The proposed height moves, so older ones of a subnet become ordinary; several chains may be in different epochs.
CURRENT_PER_SUBNET: Final = 8
# Measured: objects, index dictionaries and parsed keys, rounded up.
_SET_BYTES: Final = 1_024
_VALIDATOR_BYTES: Final = 640
_NODE_BYTES: Final = 256
_ENTRY_BYTES: Final = 384


@dataclass(frozen=True, slots=True)
class ParsedValidatorSet:
    """A canonical set and its keys, parsed, in canonical order."""

    validators: CanonicalValidatorSet
    keys: tuple[PublicKey, ...]

    @property
    def estimated_bytes(self) -> int:
        """Memory that the set holds, estimated."""
        nodes = sum(len(validator.node_ids) for validator in self.validators.validators)
        return _SET_BYTES + _VALIDATOR_BYTES * len(self.validators) + _NODE_BYTES * nodes


@dataclass(slots=True)
class _Held:
    parsed: ParsedValidatorSet
    held_bytes: int
    heights: int = 0


class SetCache:
    """Holds sets up to `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._by_digest: dict[bytes, _Held] = {}
        self._ordinary: OrderedDict[SetKey, _Held] = OrderedDict()
        self._current: OrderedDict[SetKey, _Held] = OrderedDict()
        self._current_of: dict[SubnetID, OrderedDict[int, None]] = {}

    def __len__(self) -> int:
        return len(self._ordinary) + len(self._current)

    @property
    def held_bytes(self) -> int:
        """Estimated bytes of everything held; never above the bound."""
        return self._bytes

    def get(self, key: SetKey, *, current: bool) -> CanonicalValidatorSet | None:
        """Return the set at (subnet, height), which counts as used."""
        if key in self._current:
            self._make_current(key)
            return self._current[key].parsed.validators
        held = self._ordinary.get(key)
        if held is None:
            return None
        self._ordinary.move_to_end(key)
        if current:
            self._make_current(key)
        return held.parsed.validators

    def same(self, digest: bytes) -> ParsedValidatorSet | None:
        """Return the set held with this digest, at whatever height."""
        held = self._by_digest.get(digest)
        return held.parsed if held else None

    def put(self, key: SetKey, parsed: ParsedValidatorSet, *, current: bool) -> None:
        """Hold a set at (subnet, height), which counts as used; it may be dropped at once where it does not fit."""
        if key not in self._current and key not in self._ordinary:
            self._ordinary[key] = self._hold(parsed)
        if current:
            self._make_current(key)
        self._evict()

    def _hold(self, parsed: ParsedValidatorSet) -> _Held:
        digest = parsed.validators.digest
        held = self._by_digest.get(digest)
        if held is None:
            held = self._by_digest[digest] = _Held(parsed, parsed.estimated_bytes)
            self._bytes += held.held_bytes
        held.heights += 1
        self._bytes += _ENTRY_BYTES
        return held

    def _let_go(self, held: _Held) -> None:
        held.heights -= 1
        self._bytes -= _ENTRY_BYTES
        if not held.heights:
            del self._by_digest[held.parsed.validators.digest]
            self._bytes -= held.held_bytes

    def _make_current(self, key: SetKey) -> None:
        subnet_id, height = key
        if key in self._ordinary:
            self._current[key] = self._ordinary.pop(key)
        self._current.move_to_end(key)
        heights = self._current_of.setdefault(subnet_id, OrderedDict())
        heights[height] = None
        heights.move_to_end(height)
        if len(heights) > CURRENT_PER_SUBNET:
            oldest = (subnet_id, heights.popitem(last=False)[0])
            self._ordinary[oldest] = self._current.pop(oldest)

    def _evict(self) -> None:
        while self._bytes > self._max_bytes:
            if self._ordinary:
                _, held = self._ordinary.popitem(last=False)
            else:
                (subnet_id, height), held = self._current.popitem(last=False)
                self._forget_current(subnet_id, height)
            self._let_go(held)

    def _forget_current(self, subnet_id: SubnetID, height: int) -> None:
        heights = self._current_of[subnet_id]
        del heights[height]
        if not heights:
            del self._current_of[subnet_id]


class PublicKeyCache:
    """At most `max_keys` parsed keys by their 48 bytes, the least recently used go first. Thread-safe."""

    def __init__(self, max_keys: int, parse: Callable[[bytes], PublicKey] = parse_public_key) -> None:
        self._max_keys = max_keys
        self._parse = parse
        self._lock = ThreadLock()
        self._keys: OrderedDict[bytes, PublicKey] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def parse(self, raw: bytes) -> PublicKey:
        """Return the key behind 48 compressed bytes. Raises bls.MalformedKey."""
        with self._lock:
            key = self._keys.get(raw)
            if key is not None:
                self._keys.move_to_end(raw)
                return key
        key = self._parse(raw)
        with self._lock:
            self._keys[raw] = key
            while len(self._keys) > self._max_keys:
                self._keys.popitem(last=False)
        return key
