"""Calls of one primary chain, forwarded to a node that may receive them; docs/gateway.md has the rules.

A call that a node may have executed is not sent to a second one, unless it only reads.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Final

from warpseal.forwarding.evm.forwarder import NO_NODE, NOT_ANSWERED, TIMED_OUT, TOO_LARGE
from warpseal.forwarding.evm.settings import EvmRpcSettings
from warpseal.forwarding.primary.methods import HEIGHT_METHODS, READS
from warpseal.upstream.errors import NodeFailure
from warpseal.upstream.json_values import NUMBER, field_decoder, u64
from warpseal.upstream.jsonrpc import MALFORMED, RpcError, decode_result
from warpseal.upstream.node import INLINE_BYTES, NodeReply
from warpseal.upstream.pool import NodePool, PoolNode

decode_height: Final = field_decoder("height", NUMBER, u64)
_NOT_FOUND: Final = 404
_ERRORS: Final = {
    None: NO_NODE,
    NodeFailure.UNREACHABLE: NO_NODE,
    NodeFailure.TIMEOUT: TIMED_OUT,
    NodeFailure.TOO_LARGE: TOO_LARGE,
}


class GatewayForwarder:
    """Forwards the calls of one chain."""

    def __init__(self, pool: NodePool[int], settings: EvmRpcSettings) -> None:
        self.pool = pool
        self._settings = settings

    async def forward(self, method: str, body: bytes, path: str) -> NodeReply | RpcError:
        """Return a node's unchanged reply to a call, or the error of a call that no node answered.

        path: of the route at a node. A node without the route is no reason to refuse a read: another may have it.
        """
        is_read = method in READS
        send = partial(self.pool.post, body=body, is_write=not is_read, path=path)

        def is_final(node: PoolNode, reply: NodeReply) -> bool:
            if self.pool.compares_heads and method in HEIGHT_METHODS:
                self._learn_height(reply, node)
            return not is_read or not (reply.is_busy or reply.status == _NOT_FOUND)

        nodes, timeout_s = await self.pool.candidates(), self._settings.call_timeout_s
        reply = await self.pool.forward(nodes, timeout_s, send, is_final, is_read=is_read)
        return reply if isinstance(reply, NodeReply) else _ERRORS.get(reply, NOT_ANSWERED)

    def _learn_height(self, reply: NodeReply, node: PoolNode) -> None:
        """Note the height that a client sees."""
        result = decode_result(reply.body) if len(reply.body) <= INLINE_BYTES else None
        if result is not None:
            with suppress(*MALFORMED):
                self.pool.note_head(node, decode_height(bytes(result)))
