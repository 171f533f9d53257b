"""X-Chain calls to a list of nodes. A gateway that does not serve the X-Chain does not count as failed.

Source of truth: avalanchego `vms/avm/service.go`.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from warpseal.errors import NodeUnavailable
from warpseal.node.errors import RpcRefusal
from warpseal.node.json_values import decode_checked_hex
from warpseal.node.limits import CallOrigin
from warpseal.node.p_chain import decode_height, decode_tx
from warpseal.node.pool import NodePool, require_values
from warpseal.node.rpc import NodeCall
from warpseal.warp.ids import id_text

X_CHAIN_PATHS: Final = ("/ext/bc/X",)


class XChainClient:
    """avm.* calls to a list of nodes."""

    def __init__(self, pool: NodePool) -> None:
        self._pool = pool

    async def transaction(self, tx_id: bytes, origin: CallOrigin = CallOrigin.CALLER) -> bytes | None:
        """Return the signed bytes of an accepted transaction; None if no node has it, or serves the X-Chain.

        Raises NodeUnavailable if no node answered.
        """
        params = {"txID": id_text(tx_id), "encoding": "hex"}
        call = NodeCall(
            "avm.getTx",
            params,
            X_CHAIN_PATHS,
            partial(decode_tx, tx_id),
            origin,
            large=True,
            optional=True,
        )
        try:
            return await self._pool.call(call)
        except RpcRefusal:
            return None

    async def heights(self) -> tuple[int, ...]:
        """Return the heights of all nodes that answer. Raises NodeUnavailable if none does."""
        call = NodeCall("avm.getHeight", {}, X_CHAIN_PATHS, decode_height, CallOrigin.FOLLOWER, optional=True)
        return require_values(await self._pool.call_all(call), call.method)

    async def block_at(self, height: int) -> bytes:
        """Return the bytes of the accepted block at `height`. Raises NodeUnavailable if no node returns it."""
        call = _block_call(height)
        try:
            return await self._pool.call(call)
        except RpcRefusal:
            raise NodeUnavailable(call.method) from None

    async def block_at_each(self, height: int) -> tuple[bytes, ...]:
        """Return the distinct bytes that the nodes return for that block, in configured order; possibly none."""
        answers = await self._pool.call_all(_block_call(height))
        return tuple(dict.fromkeys(answer.value for answer in answers if answer.value is not None))


def _block_call(height: int) -> NodeCall[bytes]:
    params = {"height": str(height), "encoding": "hex"}
    return NodeCall("avm.getBlockByHeight", params, X_CHAIN_PATHS, _decode_block, CallOrigin.FOLLOWER, large=True)


class _Block(msgspec.Struct):
    block: str


def _decode_block(result: bytes) -> bytes:
    return decode_checked_hex(msgspec.json.decode(result, type=_Block).block)
