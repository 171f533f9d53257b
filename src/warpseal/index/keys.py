"""The numeric keys of blocks and transactions, and 64-bit amounts in signed columns.

Source of truth: this module. A chain's number is in the high bits, so that the keys of one chain
are one range.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from warpseal.resources.chains import PrimaryChain

P, X, C = 0, 1, 2
CHAINS: Final = (PrimaryChain.P, PrimaryChain.X, PrimaryChain.C)
NUMBERS: Final[Mapping[PrimaryChain, int]] = {chain: number for number, chain in enumerate(CHAINS)}

# Rows at random places are stored by partitions of a chain, so that the newest partition stays in
# memory.
PARTITION_BITS = 18

ACCOUNT: Final = b"\x00"
"""In front of an account of the C-Chain, which is no address of P or X."""

_BITS: Final = 40
_SEQUENCE: Final = (1 << _BITS) - 1
_SIGN: Final = 1 << 63
_WRAP: Final = 1 << 64


def first_key(chain: int) -> int:
    """Return the key of a genesis and of block 0: it is before all transactions of the chain."""
    return chain << _BITS


def last_key(chain: int) -> int:
    """Return a key behind all of a chain."""
    return chain << _BITS | _SEQUENCE


def block_key(chain: int, height: int) -> int:
    """Return the key of a block."""
    return chain << _BITS | height


def height_of(key: int) -> int:
    """Return the height of the block with a key."""
    return key & _SEQUENCE


def chain_of(key: int) -> int:
    """Return the number of the chain that a key belongs to."""
    return key >> _BITS


def partition_of(key: int) -> int:
    """Return the partition of a transaction."""
    return key >> PARTITION_BITS


def prefix_of(raw: bytes) -> int:
    """Return the first 8 bytes of an id as a signed column holds them."""
    return int.from_bytes(raw[:8], "big", signed=True)


def to_column(amount: int) -> int:
    """Return an unsigned 64-bit number as a signed column holds it."""
    return amount - _WRAP if amount & _SIGN else amount


def from_column(amount: int) -> int:
    """Return the unsigned 64-bit number of a signed column."""
    return amount + _WRAP if amount < 0 else amount
