"""Typed JSON-RPC calls to one upstream node over a shared HTTP session, bounded in time and bytes.

Source of truth: avalanchego `utils/rpc` and `utils/json/codec.go`; http.jsonl of the recorded local network.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import aiohttp
import msgspec
from yarl import URL

from warpseal.node.settings import NodeSettings
from warpseal.runtime.http_session import new_session, read_body
from warpseal.runtime.process import error_words
from warpseal.upstream.endpoint import NodeEndpoint
from warpseal.upstream.errors import CallFailure, NodeFailure, RpcRefusal, parse_refusal
from warpseal.upstream.json_values import decode_hex
from warpseal.upstream.jsonrpc import UNREADABLE, RpcCall, decode_responses, encode_numbered_calls
from warpseal.upstream.limits import CallOrigin, RetryAfter, UpstreamLimit, parse_retry_after

T = TypeVar("T")

INLINE_BYTES = 32 * 1024
"""Decoding more than this on the event loop could hold it up for a millisecond."""
_NO_LIMIT = nullcontext()
_MAX_ERROR_BYTES = 64 * 1024
_MAX_ERROR_DATA = 2 * 4096
_OK = 200
_NOT_FOUND = 404
_TOO_MANY_REQUESTS = 429
_SERVICE_UNAVAILABLE = 503


class CallObserver(Protocol):
    """Counts calls and their latency."""

    def observe_call(self, method: str, outcome: str, seconds: float) -> None:
        """Note one call to one node. `seconds` does not include the wait for a slot.

        outcome: "ok", "refused", "cancelled" or a NodeFailure's value.
        """

    def count_disagreement(self, position: int, method: str) -> None:
        """Note that a node of p-chain-api, by its position in the list, contradicted the nodes that agree."""


@dataclass(frozen=True, slots=True)
class NodeCall(Generic[T]):
    """One method call. `decode` turns the raw JSON of the result into a value, or raises ValueError.

    paths: below the base URL; the second is tried if the node answers 404 to the first, and so on.
    optional: a node that lacks or forbids the method does not count as failed. batch: the params of each call of a
    JSON-RPC batch, instead of `params`; `decode` then gets the JSON list of the results, in that order.
    """

    method: str
    params: Mapping[str, Any] | Sequence[Any]
    paths: tuple[str, ...]
    decode: Callable[[bytes], T]
    origin: CallOrigin = CallOrigin.CALLER
    large: bool = False
    optional: bool = False
    batch: tuple[Sequence[Any], ...] = ()


class _Disconnected(CallFailure):
    """The connection was lost before a response came."""


class _Reply(NamedTuple):
    """An HTTP response. retry_after: the unparsed header."""

    status: int
    body: bytes
    retry_after: str | None


def open_session() -> aiohttp.ClientSession:
    """Return the HTTP session of all upstream calls, to be held by `async with`."""
    return new_session(aiohttp.TCPConnector(limit=256, keepalive_timeout=30))


class UpstreamNode:
    """One node: its endpoint, its limits for calls of callers and of the follower, and the paths that work."""

    def __init__(
        self,
        endpoint: NodeEndpoint,
        session: aiohttp.ClientSession,
        settings: NodeSettings,
        observer: CallObserver | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.endpoint = endpoint
        # Pools call other nodes first until then: this one contradicted them.
        self.rests_until = float("-inf")
        self._session = session
        self._settings = settings
        self._observer = observer
        self._executor = executor
        self._limits = {
            CallOrigin.CALLER: UpstreamLimit(settings.upstream_max_concurrency, settings.upstream_calls_per_s),
            CallOrigin.FOLLOWER: UpstreamLimit(settings.follow_max_concurrency, settings.follow_calls_per_s),
        }
        self._retry_after = RetryAfter()
        self._working_paths: dict[tuple[str, ...], str] = {}
        self._urls: dict[str, URL] = {}
        self._headers = {"Content-Type": "application/json", **endpoint.http_headers}

    async def call(self, call: NodeCall[T], timeout_s: float | None = None) -> T:
        """Wait for a slot, make the call and return its decoded result. Raises CallFailure, RpcRefusal."""
        async with self._limits.get(call.origin, _NO_LIMIT):
            self.check_pause(call.origin)
            return await self._call_observed(call, timeout_s or self._settings.call_timeout_s)

    def check_pause(self, origin: CallOrigin) -> None:
        """Raise CallFailure if this call is the follower's and the node asked for a pause that is not over."""
        left_s = self._retry_after.remaining_s(asyncio.get_running_loop().time())
        if origin is CallOrigin.FOLLOWER and left_s > 0:
            detail = f"the node asked for no requests for another {left_s:.0f} s"
            raise CallFailure(NodeFailure.BUSY, detail, blames_node=False)

    async def _call_observed(self, call: NodeCall[T], timeout_s: float) -> T:
        clock = asyncio.get_running_loop().time
        started_at = clock()
        outcome = "cancelled"
        try:
            result = await self._call_within(call, timeout_s)
            outcome = "ok"
            self._retry_after.record_success(clock())
            return result
        except RpcRefusal:
            outcome = "refused"
            raise
        except CallFailure as error:
            outcome = error.failure.value
            if error.asks_to_wait:
                self._retry_after.record_request(clock(), error.retry_after_s)
            raise
        finally:
            if self._observer is not None:
                self._observer.observe_call(call.method, outcome, clock() - started_at)

    async def _call_within(self, call: NodeCall[T], timeout_s: float) -> T:
        failure: CallFailure
        try:
            async with asyncio.timeout(timeout_s):
                return await self._try_paths(call)
        except TimeoutError:
            failure = CallFailure(NodeFailure.TIMEOUT, f"no answer within {timeout_s:g} s")
        # Raised here, so that no foreign error, which may quote the URL, stays attached to it.
        raise failure

    async def _try_paths(self, call: NodeCall[T]) -> T:
        working = self._working_paths.get(call.paths)
        *others, last = (working,) if working else call.paths
        for path in others:
            try:
                return await self._call_path(call, path)
            except CallFailure as error:
                if error.status != _NOT_FOUND:
                    raise
        return await self._call_path(call, last)

    async def _call_path(self, call: NodeCall[T], path: str) -> T:
        try:
            result = await self._send(call, path)
        except CallFailure:
            self._working_paths.pop(call.paths, None)
            raise
        if len(call.paths) > 1:
            self._working_paths[call.paths] = path
        return result

    async def _send(self, call: NodeCall[T], path: str) -> T:
        calls = [
            RpcCall(call.method, msgspec.Raw(msgspec.json.encode(params))) for params in call.batch or (call.params,)
        ]
        body = encode_numbered_calls(dict(enumerate(calls, 1)))
        limit = self._settings.max_set_bytes if call.large else self._settings.max_answer_bytes
        try:
            reply = await self._post(path, body, limit)
        except _Disconnected:
            # The node closed an idle connection while the request was written. All calls only read: repeating is safe.
            reply = await self._post(path, body, limit)
        if len(reply.body) > INLINE_BYTES:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._executor, self._decode, call, reply)
        return self._decode(call, reply)

    async def _post(self, path: str, body: bytes, limit: int) -> _Reply:
        if self._session.closed:
            # A lookup that goes on without its callers is under way while the daemon stops.
            raise CallFailure(NodeFailure.REFUSED, "the daemon stops", blames_node=False)
        try:
            url = self._urls.get(path)
            if url is None:
                url = self._urls[path] = self.endpoint.url(path)
            async with self._session.post(url, data=body, headers=self._headers, allow_redirects=False) as response:
                if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                    raise CallFailure(NodeFailure.BAD_ANSWER, "the answer is compressed, which was not requested")
                is_ok = response.status == _OK
                content = await read_body(response, limit if is_ok else _MAX_ERROR_BYTES)
                if content is None and is_ok:
                    raise CallFailure(NodeFailure.BAD_ANSWER, f"the answer exceeds {limit} bytes")
                return _Reply(response.status, content or b"", response.headers.get("Retry-After"))
        except (aiohttp.ClientPayloadError, aiohttp.ClientResponseError, ValueError) as error:
            failure = CallFailure(NodeFailure.BAD_ANSWER, error_words(error))
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            failure = _connection_failure(error)
        raise failure

    def _decode(self, call: NodeCall[T], reply: _Reply) -> T:
        """Return the decoded result. Runs on a worker thread if the reply is large."""
        if reply.status == _TOO_MANY_REQUESTS:
            # A gateway answered, whatever the body says, and not the node.
            raise _status_failure(reply)
        responses = decode_responses(reply.body, range(1, 1 + (len(call.batch) or 1))).values()
        errors = [response.error for response in responses if response.error is not None]
        refusal = next((error for error in errors if error is not UNREADABLE.error), None)
        if refusal is not None:
            error = parse_refusal(refusal.code, refusal.message, self.endpoint.scrub(refusal.message))
            error.data = _error_data(refusal.data)
            raise error
        if reply.status != _OK:
            raise _status_failure(reply)
        if errors:
            raise CallFailure(NodeFailure.BAD_ANSWER, errors[0].message)
        results = [bytes(response.result or b"null") for response in responses]
        try:
            return call.decode(b"[" + b",".join(results) + b"]" if call.batch else results[0])
        except (ValueError, RecursionError) as reason:
            detail = self.endpoint.scrub(str(reason))
        raise CallFailure(NodeFailure.BAD_ANSWER, detail)


def _error_data(data: msgspec.Raw | msgspec.UnsetType) -> bytes:
    if not isinstance(data, msgspec.Raw) or memoryview(data).nbytes > _MAX_ERROR_DATA:
        return b""
    try:
        return decode_hex(msgspec.json.decode(data, type=str))
    except ValueError:
        return b""


def _connection_failure(error: aiohttp.ClientError | OSError) -> CallFailure:
    is_lost = isinstance(error, aiohttp.ServerDisconnectedError | ConnectionError) or (
        isinstance(error, aiohttp.ClientOSError) and not isinstance(error, aiohttp.ClientConnectorError)
    )
    return (_Disconnected if is_lost else CallFailure)(NodeFailure.REFUSED, error_words(error))


def _status_failure(reply: _Reply) -> CallFailure:
    is_limit = reply.status == _TOO_MANY_REQUESTS
    failure = CallFailure(
        NodeFailure.BUSY if is_limit else NodeFailure.HTTP_STATUS, f"HTTP status {reply.status}", reply.status
    )
    if is_limit or reply.status == _SERVICE_UNAVAILABLE:
        failure.retry_after_s = parse_retry_after(reply.retry_after, time.time())
        failure.asks_to_wait = is_limit or failure.retry_after_s is not None
    return failure
