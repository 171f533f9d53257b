"""The input of the index: the effects of a block, and its bytes."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from msgspec import Struct

from warpseal.chains.proposervm import ProposedBlock, ProposerVMBlock
from warpseal.ledger.c_chain import CBlockEffects
from warpseal.ledger.effects import BlockEffects
from warpseal.ledger.x_chain import XBlockEffects, XTxEffects
from warpseal.resources.blocks import Proposer
from warpseal.warp.ids import node_id_from_certificate


class PRecord(Struct, frozen=True):
    """A block of the P-Chain.

    raw: bytes that a node sent, wrapped by the proposervm or not; of block 0 the genesis.
    """

    effects: BlockEffects
    raw: bytes
    proposer: Proposer | None = None


class XRecord(Struct, frozen=True):
    """A block of the X-Chain.

    raw: bytes that a node sent, wrapped by the proposervm or not.
    """

    effects: XBlockEffects
    raw: bytes
    proposer: Proposer | None = None


class XPreLinearizationRecord(Struct, frozen=True):
    """Transactions of the X-Chain from before its first block, with number and time.

    Numbers begin at 0 and have no gaps. The genesis is number -1.
    """

    number: int
    time_s: int
    txs: tuple[XTxEffects, ...]
    raw: bytes


class CRecord(Struct, frozen=True):
    """A block of the C-Chain.

    raw: header and atomic transactions in the encoding of raw_blocks.py.
    """

    effects: CBlockEffects
    raw: bytes
    proposer: Proposer | None = None


Record = PRecord | XRecord | XPreLinearizationRecord | CRecord


# The same few thousand certificates come again and again.
_node_id_of: Final = lru_cache(maxsize=8192)(node_id_from_certificate)


def proposer_of(outer: ProposerVMBlock, before: Proposer | None) -> Proposer:
    """Return the proposer of a block.

    before: proposer of the parent, whose header counts for option blocks.
    """
    if isinstance(outer, ProposedBlock):
        node_id = _node_id_of(outer.certificate) if outer.certificate else None
        return Proposer(outer.id, outer.parent_id, node_id, outer.p_chain_height, outer.timestamp_s)
    if before is None or before.block_id != outer.parent_id:
        return Proposer(outer.id, outer.parent_id)
    return Proposer(outer.id, outer.parent_id, before.node_id, before.p_chain_height, before.time)
