"""Public keys parsed once: parsing one takes 50 microseconds, and the same keys come in set after set."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from warpseal.bls import PublicKey, parse_public_key
from warpseal.runtime.locks import ThreadLock


class PublicKeys:
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
