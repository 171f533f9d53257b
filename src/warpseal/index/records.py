"""What the index is given to write: what a block does, and its bytes, so that all rows can be derived again."""

from __future__ import annotations

from dataclasses import dataclass

from warpseal.history.blocks import Proposer
from warpseal.history.transactions import Vertex
from warpseal.ledger.c_chain import CBlockEffects
from warpseal.ledger.effects import BlockEffects
from warpseal.ledger.x_chain import XBlockEffects, XTxEffects


@dataclass(frozen=True, slots=True)
class PRecord:
    """A block of the P-Chain. raw: the block as it came, wrapped by the proposervm or not; of block 0 the genesis."""

    effects: BlockEffects
    raw: bytes
    proposer: Proposer | None = None


@dataclass(frozen=True, slots=True)
class XRecord:
    """A block of the X-Chain. raw: as it came, wrapped by the proposervm or not."""

    effects: XBlockEffects
    raw: bytes
    proposer: Proposer | None = None


@dataclass(frozen=True, slots=True)
class XPastRecord:
    """Transactions of the X-Chain from before it had blocks. number: of the container, from 0 on, without gaps.

    The genesis is number -1. time_s: of the container; vertex: which it was, where that is known.
    """

    number: int
    time_s: int
    txs: tuple[XTxEffects, ...]
    raw: bytes
    vertex: Vertex | None = None


@dataclass(frozen=True, slots=True)
class CRecord:
    """A block of the C-Chain. raw: as raws.py writes it from header and atomic transactions."""

    effects: CBlockEffects
    raw: bytes
    proposer: Proposer | None = None


Record = PRecord | XRecord | XPastRecord | CRecord
