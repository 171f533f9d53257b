"""Blocks of the C-Chain and containers as nodes return them.

The worker of the index receives them. This module therefore imports no client of nodes.
"""

from __future__ import annotations

from msgspec import Struct


class CChainBlock(Struct, frozen=True):
    """One block.

    hash, parent_hash: 32 bytes; extra_data: the atomic transactions' bytes; tx_count: all others.
    """

    number: int
    hash: bytes
    parent_hash: bytes
    time_s: int
    size_bytes: int
    tx_count: int
    extra_data: bytes


class Container(Struct, frozen=True):
    """An accepted block or transaction.

    accepted_at_s: unix seconds when that node accepted it, maybe years later.
    """

    index: int
    raw: bytes
    accepted_at_s: int
