"""Who proposed a block, as the proposervm's wrapping around it tells; kept with the block's row.

Source of truth: avalanchego `vms/proposervm/block`; the node verified the signature before it accepted the block.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from warpseal.chains.proposervm import Outer, ProposedBlock
from warpseal.history.blocks import Proposer
from warpseal.warp.ids import NodeID, node_id_from_certificate

_KEPT_CERTIFICATES: Final = 8192


def proposer_of(outer: Outer, before: Proposer | None) -> Proposer:
    """Return what is told of a block's proposer. before: of the block in front, whose header counts for options."""
    if isinstance(outer, ProposedBlock):
        node_id = _node_of(outer.certificate) if outer.certificate else None
        return Proposer(outer.id, outer.parent_id, node_id, outer.p_chain_height, outer.timestamp_s)
    if before is None or before.block_id != outer.parent_id:
        return Proposer(outer.id, outer.parent_id)
    return Proposer(outer.id, outer.parent_id, before.node_id, before.p_chain_height, before.time)


@lru_cache(maxsize=_KEPT_CERTIFICATES)
def _node_of(certificate: bytes) -> NodeID:
    # The same few thousand certificates come again and again.
    return node_id_from_certificate(certificate)
