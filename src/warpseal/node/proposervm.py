"""Calls to the proposervm of a chain: the epoch of its next block, and the P-Chain height that the block would have.

Source of truth: ACP-181; avalanchego `vms/proposervm/service.go`, `vms/proposervm/acp181/epoch.go`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from warpseal.chains.proposervm import Epoch
from warpseal.errors import NodeAttempt, NodeUnavailable
from warpseal.node.chain_nodes import ChainApiNodes
from warpseal.node.errors import RpcRefusal
from warpseal.node.json_values import u64
from warpseal.node.limits import CallOrigin
from warpseal.node.p_chain import decode_height
from warpseal.node.rpc import NodeCall
from warpseal.warp.ids import ChainID

T = TypeVar("T")


NO_EPOCH: Final = Epoch(p_chain_height=0, number=0, start_time_s=0)
"""Before Granite: a block verifies messages at the P-Chain height in its own header."""


class ProposerVMClient:
    """proposervm.* calls to the nodes of a chain; only a node that runs the chain can answer, others return 404.

    Every method returns None if no node that answered runs the chain, and raises NodeUnavailable if no node answered.
    """

    def __init__(self, nodes: ChainApiNodes) -> None:
        self._nodes = nodes

    async def current_epoch(self, chain_id: ChainID, origin: CallOrigin = CallOrigin.CALLER) -> Epoch | None:
        """Return the epoch of the chain's next block; NO_EPOCH before Granite."""
        return await self._find("proposervm.getCurrentEpoch", chain_id, _decode_epoch, origin)

    async def proposed_height(self, chain_id: ChainID, origin: CallOrigin = CallOrigin.CALLER) -> int | None:
        """Return the P-Chain height that a node would put into the header of the chain's next block."""
        return await self._find("proposervm.getProposedHeight", chain_id, decode_height, origin)

    async def _find(self, method: str, chain_id: ChainID, decode: Callable[[bytes], T], origin: CallOrigin) -> T | None:
        attempts: list[NodeAttempt] = []
        has_answer = False
        for pool, paths in self._nodes.of(chain_id):
            try:
                found = await pool.call(NodeCall(method, {}, paths, decode, origin, optional=True))
            except RpcRefusal:
                has_answer = True
            except NodeUnavailable as error:
                attempts += error.attempts
            else:
                self._nodes.prefer(chain_id, pool)
                return found
        if not has_answer:
            raise NodeUnavailable(method, attempts)
        return None


class _Epoch(msgspec.Struct, rename="camel"):
    number: int | str
    start_time: int | str
    p_chain_height: int | str


_EPOCH: Final = msgspec.json.Decoder(_Epoch)


def _decode_epoch(result: bytes) -> Epoch:
    epoch = _EPOCH.decode(result)
    return Epoch(u64(epoch.p_chain_height), u64(epoch.number), u64(epoch.start_time))
