"""Accepted P-Chain blocks from nodes, within the follower's own limits.

Source of truth: avalanchego `vms/platformvm/service.go`; `utils/formatting/encoding.go` for the checksum.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from warpseal.errors import NodeUnavailable
from warpseal.node.errors import RpcRefusal
from warpseal.node.info import InfoClient, Upgrades
from warpseal.node.json_values import decode_checked_hex
from warpseal.node.limits import CallOrigin
from warpseal.node.p_chain import decode_height
from warpseal.node.platform import P_CHAIN_PATHS
from warpseal.node.pool import NodePool, NodeResult, require_values
from warpseal.node.rpc import NodeCall

T = TypeVar("T")


class PBlocksClient:
    """Heights and blocks from a list of nodes. Every method raises NodeUnavailable if no node answered.

    Calls keep to the follower's limits of each node, and to the pauses that nodes ask for. An answer longer than the
    settings' `max_answer_bytes` counts as a failure. The bytes of blocks are not verified.
    """

    def __init__(self, pool: NodePool, info: InfoClient, *, max_concurrency: int, max_calls_per_s: int) -> None:
        """max_concurrency, max_calls_per_s: the follower's limits of one node, for its own pace."""
        self._pool = pool
        self._info = info
        self.max_concurrency = max_concurrency
        self.max_calls_per_s = max_calls_per_s

    async def tip(self) -> int:
        """Return the height of the last accepted block of the first node in service."""
        return await self._call(NodeCall("platform.getHeight", {}, P_CHAIN_PATHS, decode_height, CallOrigin.FOLLOWER))

    async def tips(self) -> tuple[int, ...]:
        """Return the heights of all nodes that answer, in configured order."""
        answers = await self._pool.call_all(
            NodeCall("platform.getHeight", {}, P_CHAIN_PATHS, decode_height, CallOrigin.FOLLOWER)
        )
        return require_values(answers, "platform.getHeight")

    async def block_at(self, height: int) -> bytes:
        """Return the accepted block at `height` from the first node in service."""
        return await self._call(_block_call(height))

    async def block_at_each(self, height: int) -> tuple[bytes, ...]:
        """Return the distinct bytes that the nodes return for that block, in configured order; possibly none."""
        answers: tuple[NodeResult[bytes], ...] = await self._pool.call_all(_block_call(height))
        return tuple(dict.fromkeys(answer.value for answer in answers if answer.value is not None))

    async def upgrades(self) -> Upgrades:
        """Return the activation times of the network's upgrades, as far as they are known."""
        return await self._info.upgrades()

    async def _call(self, call: NodeCall[T]) -> T:
        try:
            return await self._pool.call(call)
        except RpcRefusal:
            pass
        # A node that lags, or is not ready, refuses calls that it will answer later.
        raise NodeUnavailable(call.method)


class _BlockAnswer(msgspec.Struct):
    block: str
    encoding: str = "hex"


_BLOCK: Final = msgspec.json.Decoder(_BlockAnswer)


def _block_call(height: int) -> NodeCall[bytes]:
    params = {"height": str(height), "encoding": "hex"}
    return NodeCall("platform.getBlockByHeight", params, P_CHAIN_PATHS, _decode_block, CallOrigin.FOLLOWER)


def _decode_block(result: bytes) -> bytes:
    """Return the bytes of a block. Raises ValueError."""
    answer = _BLOCK.decode(result)
    if answer.encoding != "hex":
        raise ValueError("the block is not in the encoding that was asked for")
    return decode_checked_hex(answer.block)
