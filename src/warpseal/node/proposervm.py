"""Calls to the proposervm of a chain: the epoch of its next block, and the P-Chain height that the block would have.

Source of truth: ACP-181; avalanchego `vms/proposervm/service.go`, `vms/proposervm/acp181/epoch.go`.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Final, TypeVar

import msgspec

from warpseal.chains.proposervm import Epoch
from warpseal.node.chain_nodes import ChainApiNodes
from warpseal.node.p_chain import decode_height
from warpseal.node.rpc import NodeCall
from warpseal.upstream.errors import CallFailure, MethodMissing, NodeAttempt, NodeFailure, NodeUnavailable, RpcRefusal
from warpseal.upstream.json_values import u64
from warpseal.warp.ids import ChainID

T = TypeVar("T")


NO_EPOCH: Final = Epoch(p_chain_height=0, number=0, start_time_s=0)
"""Before Granite: a block verifies messages at the P-Chain height in its own header."""


class ProposerVMClient:
    """proposervm.* calls to the nodes of a chain; only a node that runs the chain can answer, others return 404.

    Every method returns None if all nodes answer that they do not run the chain, and raises NodeUnavailable if a node
    that may run it hangs or fails.
    """

    def __init__(self, nodes: ChainApiNodes) -> None:
        self._nodes = nodes

    async def current_epoch(self, chain_id: ChainID) -> Epoch | None:
        """Return the epoch of the chain's next block; NO_EPOCH before Granite."""
        return await self._find("proposervm.getCurrentEpoch", chain_id, _decode_epoch)

    async def proposed_height(self, chain_id: ChainID) -> int | None:
        """Return the P-Chain height that a node would put into the header of the chain's next block."""
        return await self._find("proposervm.getProposedHeight", chain_id, decode_height)

    async def _find(self, method: str, chain_id: ChainID, decode: Callable[[bytes], T]) -> T | None:
        attempts: list[NodeAttempt] = []
        has_failed = False
        for pool, paths in self._nodes.of(chain_id):
            call = NodeCall(method, {}, paths, decode, optional=True)
            try:
                nodes = await pool.candidates(call.origin)
            except NodeUnavailable as error:
                attempts += error.attempts
                has_failed = True
                continue
            for node in nodes:
                try:
                    found = await node.call(call)
                except MethodMissing:
                    continue
                except RpcRefusal:
                    attempts.append(NodeAttempt(node.position, NodeFailure.BAD_ANSWER))
                except CallFailure as error:
                    if not _is_absent(error):
                        attempts.append(NodeAttempt(node.position, error.failure))
                else:
                    self._nodes.prefer(chain_id, pool)
                    return found
        if has_failed or attempts:
            raise NodeUnavailable(method, attempts)
        return None


def _is_absent(error: CallFailure) -> bool:
    """Return whether a node answered that it does not run the chain, or that it forbids the call."""
    is_limit = error.failure is NodeFailure.BUSY
    return error.status is not None and error.status < HTTPStatus.INTERNAL_SERVER_ERROR and not is_limit


class _Epoch(msgspec.Struct, rename="camel"):
    number: int | str
    start_time: int | str
    p_chain_height: int | str


_EPOCH: Final = msgspec.json.Decoder(_Epoch)


def _decode_epoch(result: bytes) -> Epoch:
    epoch = _EPOCH.decode(result)
    return Epoch(u64(epoch.p_chain_height), u64(epoch.number), u64(epoch.start_time))
