"""The current epoch of a chain, from a node that runs the chain.

Source of truth: avalanchego `vms/proposervm/service.go`, ACP-181.
"""

from __future__ import annotations

import msgspec

from warpseal.node.errors import RpcRefusal
from warpseal.node.json_values import u64
from warpseal.node.limits import CallOrigin
from warpseal.node.pool import NodePool
from warpseal.node.rpc import NodeCall
from warpseal.warp.ids import ChainID, id_text

METHOD = "proposervm.getCurrentEpoch"


class ProposerVMClient:
    """proposervm.* calls to a list of nodes; only a node that runs the chain can answer, others return 404."""

    def __init__(self, pool: NodePool) -> None:
        self._pool = pool

    async def current_epoch_height(self, chain_id: ChainID, origin: CallOrigin = CallOrigin.CALLER) -> int | None:
        """Return the P-Chain height of the chain's current epoch.

        None if no node that answered runs the chain, or the epoch is all zeros (before Granite).
        Raises NodeUnavailable if no node answered.
        """
        path = f"/ext/bc/{id_text(chain_id)}/proposervm"
        call = NodeCall(METHOD, {}, (path,), _decode_epoch_height, origin, optional=True)
        try:
            return await self._pool.call(call)
        except RpcRefusal:
            return None


class _Epoch(msgspec.Struct):
    number: int | str
    start_time: int | str = msgspec.field(name="startTime")
    p_chain_height: int | str = msgspec.field(name="pChainHeight")


def _decode_epoch_height(result: bytes) -> int | None:
    epoch = msgspec.json.decode(result, type=_Epoch)
    number, start_time, height = u64(epoch.number), u64(epoch.start_time), u64(epoch.p_chain_height)
    return height if number or start_time or height else None
