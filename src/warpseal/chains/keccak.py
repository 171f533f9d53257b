"""Keccak-256, the hash of Ethereum.

Source of truth: the Keccak submission to SHA-3, whose padding SHA-3 changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final


def _load_keccak() -> Callable[[bytes], bytes]:
    """Return the hash function of the fastest installed library.

    For a short value safe-pysha3 takes a tenth of the time of pycryptodome.
    """
    try:
        from sha3 import keccak_256
    except ImportError:
        # It has packages for Linux only.
        from eth_hash.auto import keccak

        return keccak
    return lambda raw: bytes(keccak_256(raw).digest())


keccak: Final = _load_keccak()
"""Return the 32 bytes of the hash."""
