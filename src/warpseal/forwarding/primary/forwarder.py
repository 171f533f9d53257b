"""Calls of one primary chain, forwarded to a node that may receive them; docs/gateway.md has the rules.

A call that a node may have executed is not sent to a second one, unless it only reads.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from warpseal.forwarding.evm.forwarder import NO_NODE, NOT_ANSWERED, TIMED_OUT, TOO_LARGE
from warpseal.forwarding.evm.node import RpcNode, RpcNodeError, RpcNodeFailure, RpcNodeReply
from warpseal.forwarding.evm.pool import MAX_DECODED_BYTES
from warpseal.forwarding.evm.settings import EvmRpcSettings
from warpseal.forwarding.primary.methods import HEIGHT_METHODS, READS
from warpseal.forwarding.primary.pool import PrimaryPool, number_in
from warpseal.upstream.jsonrpc import MALFORMED, RpcError, decode_result

_NOT_FOUND: Final = 404
_ERRORS: Final = {
    None: NO_NODE,
    RpcNodeFailure.UNREACHABLE: NO_NODE,
    RpcNodeFailure.TIMEOUT: TIMED_OUT,
    RpcNodeFailure.TOO_LARGE: TOO_LARGE,
}


class GatewayForwarder:
    """Forwards the calls of one chain."""

    def __init__(self, pool: PrimaryPool, settings: EvmRpcSettings) -> None:
        self.pool = pool
        self._settings = settings

    async def forward(self, method: str, body: bytes, path: str) -> RpcNodeReply | RpcError:
        """Return a node's unchanged reply to a call, or the error of a call that no node answered.

        path: of the route at a node. A node without the route is no reason to refuse a read: another may have it.
        """
        is_read = method in READS
        until = _now() + self._settings.call_timeout_s
        error_kind, reply = None, None
        for node in await self.pool.candidates():
            try:
                reply = await self.pool.post(node, body, until - _now(), is_write=not is_read, path=path)
            except RpcNodeError as error:
                error_kind = error.kind
                if error_kind is RpcNodeFailure.TOO_LARGE or (error.was_written and not is_read) or _now() >= until:
                    break
                continue
            if self.pool.compares_heads and method in HEIGHT_METHODS:
                self._learn_height(reply, node)
            if not is_read or not (reply.is_busy or reply.status == _NOT_FOUND):
                return reply
        return reply if reply is not None else _ERRORS.get(error_kind, NOT_ANSWERED)

    def _learn_height(self, reply: RpcNodeReply, node: RpcNode) -> None:
        """Note the height that a client sees."""
        result = decode_result(reply.body) if len(reply.body) <= MAX_DECODED_BYTES else None
        if result is not None:
            try:
                height = number_in(msgspec.json.decode(result), "height")
            except MALFORMED:
                return
            if height is not None:
                self.pool.note_head(node, height)


def _now() -> float:
    return asyncio.get_running_loop().time()
