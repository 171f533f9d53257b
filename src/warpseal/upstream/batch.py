"""Batches of JSON-RPC calls to one node of a chain that adapt to its replies, within the rate of the node.

Source of truth: the JSON-RPC 2.0 specification; geth's `rpc/handler.go` and `rpc/http.go`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext
from enum import StrEnum
from typing import Any, Final

from cachetools import TTLCache

from warpseal.runtime.locks import AsyncLock
from warpseal.runtime.settings import MEBIBYTE
from warpseal.upstream.errors import CallFailure, NodeFailure
from warpseal.upstream.jsonrpc import (
    LIMIT_EXCEEDED,
    REQUEST_TIMED_OUT,
    RESPONSE_TOO_LARGE,
    UNREADABLE,
    RpcCall,
    RpcError,
    RpcResponse,
    decode_responses,
    encode_numbered_calls,
    rpc_call,
)
from warpseal.upstream.limits import CallOrigin
from warpseal.upstream.node import NodeReply, UpstreamNode
from warpseal.upstream.pool import NodePool, PoolNode

MAX_BATCH: Final = 1_000
TARGET_BYTES: Final = 4 * MEBIBYTE
TARGET_S: Final = 1.0
_MAX_BATCH_BYTES: Final = 16 * MEBIBYTE
_MAX_SINGLE_BYTES: Final = 64 * MEBIBYTE
_FIRST_BATCH: Final = 32
# A node may accept larger batches after its next start, and may have blocks that it did not have.
_RELEARN_S: Final = 600.0
_REGROW_S: Final = 60.0
_BATCH_TIMEOUT_S: Final = 10.0
_TOO_MUCH: Final = (RESPONSE_TOO_LARGE, REQUEST_TIMED_OUT)
_PAYLOAD_TOO_LARGE: Final = 413
_PROBE_TIMEOUT_S: Final = 5.0
# A batch with such a failure is repeated in parts, so that it ends with one call.
_ERRORS_OF_ONE_CALL: Final = {
    NodeFailure.TIMEOUT: RpcError(REQUEST_TIMED_OUT),
    NodeFailure.TOO_LARGE: RpcError(RESPONSE_TOO_LARGE),
}


class NodeResource(StrEnum):
    """What a node may lack at a height."""

    BLOCKS = "blocks"
    RECEIPTS = "receipts"
    TRACES = "traces"
    STATE = "state"


class BatchSize:
    """The number of calls of one kind that go into one batch; it follows the size and the time of the replies."""

    def __init__(self) -> None:
        self.value = _FIRST_BATCH
        self._too_large: TTLCache[str, int] = TTLCache(1, _REGROW_S)
        self._refused: TTLCache[str, int] = TTLCache(1, _RELEARN_S)

    def learn(self, count: int, size_bytes: int, seconds: float) -> None:
        """Note the reply to `count` calls: shrink if it was too large or too slow, else grow up to a good size."""
        good = int(count / max(size_bytes / TARGET_BYTES, seconds / TARGET_S, 1e-9))
        if good < count:
            self._set(good)
        elif good > self.value:
            self._set(min(good, 2 * self.value))

    def halve(self, count: int) -> None:
        """Note that `count` calls were too many for this reply; batches stay smaller for a while."""
        self._too_large[""] = count
        self._set(count // 2)

    def refuse(self, count: int) -> None:
        """Note that the node accepts no batch of `count` calls, whatever the reply."""
        self._refused[""] = count
        self._set(count // 2)

    def _set(self, value: int) -> None:
        bounds = (bound.get("", MAX_BATCH + 1) - 1 for bound in (self._too_large, self._refused))
        self.value = max(1, min(value, *bounds))


class ChainNode(PoolNode):
    """A node of one chain that is called in batches. lacks_methods: those that it is known to lack."""

    def __init__(self, position: int, node: UpstreamNode, pool: NodePool[Any]) -> None:
        super().__init__(position, node, pool)
        self.lacks_methods: TTLCache[str, bool] = TTLCache(100, _RELEARN_S)
        self._turn = AsyncLock()
        self._sizes: defaultdict[str, BatchSize] = defaultdict(BatchSize)
        self._large_call = AsyncLock()
        self._lacks: TTLCache[NodeResource, int] = TTLCache(len(NodeResource), _RELEARN_S)

    def batch_size(self, method: str) -> int:
        """Return how many calls of a method go into one batch now."""
        return int(min(self._sizes[method].value, self.node.rate.per_s))

    def note_missing(self, resource: NodeResource, height: int) -> None:
        """Note that the node lacks something at a height that is not above its head, and so below that height."""
        self._lacks[resource] = max(height, self._lacks.get(resource, 0))

    def lacks(self, resource: NodeResource, height: int) -> bool:
        """Return whether the node is known to lack something at a height."""
        return height <= self._lacks.get(resource, -1)

    async def call_batch(
        self,
        calls: Sequence[RpcCall],
        *,
        timeout_s: float = 30.0,
        is_background: bool = False,
        spoils_others: bool = True,
    ) -> list[RpcResponse]:
        """Return the responses to calls of one method, in their order, from one batch or several. Raises CallFailure.

        A batch that the node refuses, or that takes too long, is repeated in parts. is_background: other calls to the
        node go first. spoils_others: whether one call with a response that is too large, or too late at a node that
        replies to other calls, fails all of them; else it alone has an error as its response.
        """
        responses: list[RpcResponse] = []
        while len(responses) < len(calls):
            size = self._sizes[calls[0].method]
            batch = calls[len(responses) : len(responses) + self.batch_size(calls[0].method)]
            try:
                responses += await self._post_batch(batch, size, timeout_s, is_background=is_background)
            except CallFailure as failure:
                error = _ERRORS_OF_ONE_CALL.get(failure.failure)
                if spoils_others or error is None:
                    raise
                if failure.failure is NodeFailure.TIMEOUT:
                    await self.call_batch([rpc_call("eth_chainId")], timeout_s=min(timeout_s, _PROBE_TIMEOUT_S))
                responses.append(RpcResponse(error=error))
        return responses

    async def acquire(self, count: int, *, is_background: bool = False) -> None:
        """Wait until the rate of the node allows `count` calls."""
        # Chains take turns, so that the backfill of one does not delay the new blocks of another.
        async with nullcontext() if is_background else self._turn:
            await self.node.rate.take(count, is_background=is_background)

    async def _post_batch(
        self, calls: Sequence[RpcCall], size: BatchSize, timeout_s: float, *, is_background: bool
    ) -> list[RpcResponse]:
        """Return the responses to the first of these calls; none if the batch has to be smaller."""
        # While the node wants no requests, another one may have what this one would return.
        self.node.check_pause(CallOrigin.FOLLOWER)
        await self.acquire(len(calls), is_background=is_background)
        self.node.check_pause(CallOrigin.FOLLOWER)
        is_batch, clock = len(calls) > 1, asyncio.get_running_loop().time
        started_at = clock()
        try:
            body = encode_numbered_calls(dict(enumerate(calls)))
            if is_batch:
                reply = await self.node.post(body, min(timeout_s, _BATCH_TIMEOUT_S), _MAX_BATCH_BYTES)
            else:
                reply = await self._post_single(body, timeout_s)
        except CallFailure as error:
            if is_batch and error.failure in (NodeFailure.TIMEOUT, NodeFailure.TOO_LARGE):
                size.halve(len(calls))
                return []
            raise self._failed(error.failure) from None
        if is_batch and self._is_refused(reply, len(calls), size):
            return []
        if not reply.is_ok:
            raise self._failed(NodeFailure.BUSY)
        self._pool.note_success(self)
        size.learn(len(calls), len(reply.body), clock() - started_at)
        return self._complete(calls, reply, size)

    async def _post_single(self, body: bytes, timeout_s: float) -> NodeReply:
        """Return the reply to a single call; one with very many bytes is read alone."""
        try:
            return await self.node.post(body, timeout_s, _MAX_BATCH_BYTES)
        except CallFailure as error:
            if error.failure is not NodeFailure.TOO_LARGE:
                raise
        async with self._large_call:
            return await self.node.post(body, timeout_s, _MAX_SINGLE_BYTES)

    def _is_refused(self, reply: NodeReply, count: int, size: BatchSize) -> bool:
        """Return whether the node answered a batch as a whole with an error, and make the next batches smaller."""
        if reply.is_busy or reply.body.lstrip()[:1] == b"[":
            return False
        error = decode_responses(reply.body, [0])[0].error
        if reply.status == _PAYLOAD_TOO_LARGE or (error is not None and error.code in _TOO_MUCH):
            size.halve(count)
        elif error is not None and error.code == LIMIT_EXCEEDED:
            raise self._failed(NodeFailure.BUSY)
        else:
            size.refuse(count)
        return True

    def _complete(self, calls: Sequence[RpcCall], reply: NodeReply, size: BatchSize) -> list[RpcResponse]:
        """Return the responses before the first that says that the batch is too large, or that cannot be read."""
        decoded = decode_responses(reply.body, range(len(calls)))
        responses: list[RpcResponse] = []
        for number, response in decoded.items():
            code = None if response.error is None else response.error.code
            if code == LIMIT_EXCEEDED:
                raise self._failed(NodeFailure.BUSY)
            if len(calls) > 1 and (code in _TOO_MUCH or response is UNREADABLE):
                size.halve(2 * number if number else len(calls))
                break
            responses.append(response)
        return responses

    def _failed(self, kind: NodeFailure) -> CallFailure:
        error = CallFailure(kind)
        if kind is not NodeFailure.TOO_LARGE:
            self._pool.note_failure(self, error)
        return error
