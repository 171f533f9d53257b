"""Batches of JSON-RPC calls to one node, whose sizes follow its replies, within its rate.

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

from warpseal.runtime.settings import MEBIBYTE
from warpseal.upstream.errors import CallFailure, NodeFailure
from warpseal.upstream.jsonrpc import (
    LIMIT_EXCEEDED,
    METHOD_NOT_FOUND,
    REQUEST_TIMED_OUT,
    RESPONSE_TOO_LARGE,
    UNREADABLE,
    RpcCall,
    RpcError,
    RpcResponse,
    decode_responses,
    encode_numbered_calls,
    is_unknown_method,
    rpc_call,
)
from warpseal.upstream.limits import CallOrigin
from warpseal.upstream.node import NodeReply, UpstreamNode, unreadable_reply
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
_FIRST_SERVER_ERROR: Final = 500
_PROBE: Final = rpc_call("eth_chainId")
_PROBE_TIMEOUT_S: Final = 5.0
# A batch with such a failure is repeated in parts, so that it ends with one call.
_RESPONSES_OF_ONE_CALL: Final = {
    NodeFailure.TIMEOUT: RpcResponse(error=RpcError(REQUEST_TIMED_OUT)),
    NodeFailure.TOO_LARGE: RpcResponse(error=RpcError(RESPONSE_TOO_LARGE)),
    NodeFailure.BAD_ANSWER: UNREADABLE,
}


class NodeResource(StrEnum):
    """What a node may lack at a height."""

    BLOCKS = "blocks"
    RECEIPTS = "receipts"
    TRACES = "traces"
    STATE = "state"


class BatchSize:
    """The number of calls of one method in a batch, by the size and the time of the replies.

    value: the number now.
    """

    def __init__(self) -> None:
        self.value = _FIRST_BATCH
        self._too_large: TTLCache[str, int] = TTLCache(1, _REGROW_S)
        self._refused: TTLCache[str, int] = TTLCache(1, _RELEARN_S)

    def learn(self, count: int, size_bytes: int, seconds: float) -> None:
        """Note the reply to `count` calls: shrink if it was too large or too slow, else grow."""
        load = max(size_bytes / TARGET_BYTES, seconds / TARGET_S, 1e-9)
        good = int(count / load)
        if good < count:
            self._set(good)
        elif good > self.value:
            # The replies to a few calls may be small by chance, so that the size at most doubles.
            self._set(min(good, 2 * self.value))

    def halve(self, count: int) -> None:
        """Note that `count` calls were too many: batches stay smaller for a minute."""
        self._too_large[""] = count
        self._set(count // 2)

    def refuse(self, count: int) -> None:
        """Note that the node accepts no batch of `count` calls: the limit is kept for longer."""
        self._refused[""] = count
        self._set(count // 2)

    def _set(self, value: int) -> None:
        too_large = self._too_large.get("", MAX_BATCH + 1)
        refused = self._refused.get("", MAX_BATCH + 1)
        self.value = max(1, min(value, too_large - 1, refused - 1))


class ChainNode(PoolNode):
    """A node of one chain that is called in batches.

    lacks_methods: methods that the node lacked within the last ten minutes.
    """

    def __init__(self, position: int, node: UpstreamNode, pool: NodePool[Any]) -> None:
        super().__init__(position, node, pool)
        self.lacks_methods: TTLCache[str, bool] = TTLCache(100, _RELEARN_S)
        self._turn = asyncio.Lock()
        self._sizes: defaultdict[str, BatchSize] = defaultdict(BatchSize)
        self._large_call = asyncio.Lock()
        self._lacks: TTLCache[NodeResource, int] = TTLCache(len(NodeResource), _RELEARN_S)

    def batch_size(self, method: str) -> int:
        """Return how many calls of a method go into one batch now."""
        return int(min(self._sizes[method].value, self.node.rate.per_s))

    def note_missing(self, resource: NodeResource, height: int) -> None:
        """Note that the node lacks something at a height, and so at all heights below.

        height: a height up to the head of the node, which may have a block above it soon.
        """
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
        """Return the responses to calls of one method, in their order. Raises CallFailure.

        A batch that ends in any way but with its responses is repeated in parts, down to single
        calls. A method that the node or its gateway refuses to this caller has METHOD_NOT_FOUND as
        its response.

        is_background: true lets other calls to the node go first.
        spoils_others: true fails all calls because of one call whose response is too large, or is
            late or unreadable at a node that replies to other calls; false makes an error the
            response to that call alone.
        """
        responses: list[RpcResponse] = []
        method = calls[0].method if calls else ""
        while len(responses) < len(calls):
            size = self._sizes[method]
            start = len(responses)
            batch = calls[start : start + self.batch_size(method)]
            try:
                responses += await self._post_batch(
                    batch, size, timeout_s, is_background=is_background
                )
            except CallFailure as failure:
                response = _RESPONSES_OF_ONE_CALL.get(failure.failure)
                if spoils_others or response is None:
                    raise
                # A large response shows that the node replies. After any other failure the node may
                # be down, and its silence must not become the response to a call.
                if failure.failure is not NodeFailure.TOO_LARGE:
                    await self._probe(timeout_s)
                responses.append(response)
        return responses

    async def _probe(self, timeout_s: float) -> None:
        """Raise CallFailure unless the node replies to a call that every gateway serves."""
        await self.call_batch([_PROBE], timeout_s=min(timeout_s, _PROBE_TIMEOUT_S))

    async def acquire(self, count: int, *, is_background: bool = False) -> None:
        """Wait until the rate of the node allows `count` calls."""
        # Chains take turns, so that the backfill of one does not delay the new blocks of another.
        async with nullcontext() if is_background else self._turn:
            await self.node.rate.take(count, is_background=is_background)

    async def _post_batch(
        self, calls: Sequence[RpcCall], size: BatchSize, timeout_s: float, *, is_background: bool
    ) -> list[RpcResponse]:
        """Return the responses to the first of these calls; none if the batch has to be smaller."""
        # While the node wants no requests, another node may have the blocks. The pause is checked
        # before the wait for the rate, which may be long, and again after it: the node may have
        # asked for the pause meanwhile.
        self.node.check_pause(CallOrigin.FOLLOWER)
        await self.acquire(len(calls), is_background=is_background)
        self.node.check_pause(CallOrigin.FOLLOWER)
        is_batch = len(calls) > 1
        clock = asyncio.get_running_loop().time
        started_at = clock()
        try:
            body = encode_numbered_calls(dict(enumerate(calls)))
            if is_batch:
                batch_timeout_s = min(timeout_s, _BATCH_TIMEOUT_S)
                reply = await self.node.post(body, batch_timeout_s, _MAX_BATCH_BYTES)
            else:
                reply = await self._post_single(body, timeout_s)
        except CallFailure as error:
            if is_batch and error.was_sent:
                size.halve(len(calls))
                return []
            raise self._failed(error) from None
        if is_batch and self._is_refused(reply, len(calls), size):
            return []
        if not reply.is_ok:
            return [await self._read_error(calls[0], reply, timeout_s)]
        size.learn(len(calls), len(reply.body), clock() - started_at)
        responses = self._complete(calls, reply, size)
        self._pool.note_success(self)
        return responses

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
        """Return whether the node answered a batch as a whole, and make the next batches smaller.

        Raises CallFailure if the node wants no calls now.
        """
        if reply.is_ok and reply.body.lstrip()[:1] == b"[":
            return False
        error = decode_responses(reply.body, [0])[0].error
        if error is not None and error.code == LIMIT_EXCEEDED:
            raise self._failed(CallFailure(NodeFailure.BUSY))
        if reply.asks_to_wait:
            # The limit may be one of calls a batch; a node that names a time has another one.
            if not self.node.pause_s:
                size.halve(count)
            raise self._failed(reply.failure())
        # These say that this batch was too much, which the next one need not be. Anything else says
        # that the node takes no batch of so many calls.
        is_server_error = reply.status >= _FIRST_SERVER_ERROR
        is_too_much = error is not None and error.code in _TOO_MUCH
        if is_server_error or is_too_much or reply.status == _PAYLOAD_TOO_LARGE:
            size.halve(count)
        else:
            size.refuse(count)
        return True

    async def _read_error(self, call: RpcCall, reply: NodeReply, timeout_s: float) -> RpcResponse:
        """Return the error that a node answers to a single call with a status other than 2xx.

        Raises CallFailure if the node serves no call now.
        """
        if not reply.is_busy:
            response = decode_responses(reply.body, [0])[0]
            is_error = response.error is not None and response is not UNREADABLE
            if is_error and (not reply.refuses_caller or is_unknown_method(response, call.method)):
                return response
            if reply.refuses_caller and call.method != _PROBE.method:
                # If the node serves this key another method, it refuses the method and not the key.
                await self._probe(timeout_s)
                text = f"HTTP {reply.status} for {call.method} alone"
                return RpcResponse(error=RpcError(METHOD_NOT_FOUND, text))
        raise self._failed(reply.failure())

    def _complete(
        self, calls: Sequence[RpcCall], reply: NodeReply, size: BatchSize
    ) -> list[RpcResponse]:
        """Return the responses before the first that is too large, or that cannot be read."""
        decoded = decode_responses(reply.body, range(len(calls)))
        responses: list[RpcResponse] = []
        for number, response in decoded.items():
            code = None if response.error is None else response.error.code
            if code == LIMIT_EXCEEDED:
                raise self._failed(CallFailure(NodeFailure.BUSY))
            if len(calls) == 1 and response is UNREADABLE:
                raise self._failed(unreadable_reply(reply))
            if len(calls) > 1 and (code in _TOO_MUCH or response is UNREADABLE):
                size.halve(2 * number if number else len(calls))
                break
            responses.append(response)
        return responses

    def _failed(self, error: CallFailure) -> CallFailure:
        if error.failure is not NodeFailure.TOO_LARGE:
            self._pool.note_failure(self, error)
        return error
