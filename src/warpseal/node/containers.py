"""Blocks of the C-Chain and containers as nodes return them.

The worker of the index receives them. This module therefore imports no client of nodes.
"""

from __future__ import annotations

from msgspec import Struct


class CChainBlock(Struct, frozen=True):
    """One block.

    hash, parent_hash: 32 bytes each.
    tx_count: number of EVM transactions.
    extra_data: bytes of the atomic transactions.
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

    accepted_at_s: time at which the node accepted it, Unix seconds; maybe years after the block.
    """

    index: int
    raw: bytes
    accepted_at_s: int
