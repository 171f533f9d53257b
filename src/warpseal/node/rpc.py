"""One JSON-RPC 2.0 call to one upstream node over a shared aiohttp session, bounded in time and bytes.

Source of truth: avalanchego `utils/rpc` and `utils/json/codec.go`; http.jsonl of the recorded local network.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import aiohttp
import msgspec
from yarl import URL

import warpseal
from warpseal.errors import NodeFailure
from warpseal.node.endpoint import NodeEndpoint
from warpseal.node.errors import CallFailure, RpcRefusal, StillPausing, TooManyWaiting, parse_refusal
from warpseal.node.limits import CallOrigin, QueueFull, RetryAfter, UpstreamLimit, parse_retry_after
from warpseal.node.settings import NodeSettings

T = TypeVar("T")

# Decoding more than this on the event loop could hold it up for a millisecond.
_INLINE_BYTES = 32 * 1024
_MAX_ERROR_BYTES = 64 * 1024
_NOT_FOUND = 404
_TOO_MANY_REQUESTS = 429
_SERVICE_UNAVAILABLE = 503


class CallObserver(Protocol):
    """Who counts calls and their latency."""

    def observe_call(self, method: str, outcome: str, seconds: float) -> None:
        """Note one call to one node; waiting for its turn is not in `seconds`.

        outcome: "ok", "refused", "cancelled" or a NodeFailure's value.
        """


@dataclass(frozen=True, slots=True)
class NodeCall(Generic[T]):
    """One method call. `decode` turns the raw JSON of the result into a value, or raises ValueError.

    paths: below the base URL; the second is tried where the node answers 404 to the first, and so on.
    optional: a node that lacks the method, or forbids it, is not the worse for it. batch: the params of each call of a
    JSON-RPC batch, instead of `params`; `decode` is then given the JSON list of the results, in that order.
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
    """The connection was lost before an answer came."""


class _Reply(NamedTuple):
    """An HTTP answer. retry_after: the header as it came."""

    status: int
    body: bytes
    retry_after: str | None


class _RpcError(msgspec.Struct):
    code: int = 0
    message: str = ""


class _Envelope(msgspec.Struct):
    result: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    error: _RpcError | None = None


class _Numbered(_Envelope):
    id: int = 0


_ENVELOPE = msgspec.json.Decoder(_Envelope)
_ENVELOPES = msgspec.json.Decoder(list[_Numbered])


@asynccontextmanager
async def open_session() -> AsyncIterator[aiohttp.ClientSession]:
    """Hold the HTTP session of all upstream calls: keep-alive, no cookies, no proxy of the environment."""
    headers = {"User-Agent": f"warpseal/{warpseal.__version__}", "Accept-Encoding": "identity"}
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=256, keepalive_timeout=30),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        headers=headers,
        auto_decompress=False,
        trust_env=False,
    ) as session:
        yield session


class UpstreamNode:
    """One node: its endpoint, its limits on callers' and on the follower's calls, and which of its paths work."""

    def __init__(
        self,
        endpoint: NodeEndpoint,
        session: aiohttp.ClientSession,
        settings: NodeSettings,
        observer: CallObserver | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.endpoint = endpoint
        self._session = session
        self._settings = settings
        self._observer = observer
        self._executor = executor
        self._limit = UpstreamLimit(settings.upstream_max_concurrency, settings.upstream_calls_per_s)
        self._follower_limit = UpstreamLimit(settings.follow_max_concurrency, settings.follow_calls_per_s)
        self._pause = RetryAfter()
        self._working_paths: dict[tuple[str, ...], str] = {}
        self._urls: dict[str, URL] = {}
        self._headers = {"Content-Type": "application/json", **endpoint.http_headers}

    async def call(self, call: NodeCall[T], timeout_s: float | None = None) -> T:
        """Wait for a turn, make the call and return its decoded result. Raises CallFailure, RpcRefusal."""
        limit = self._follower_limit if call.origin is CallOrigin.FOLLOWER else self._limit
        try:
            async with limit.slot(call.origin):
                self.check_pause(call.origin)
                return await self._observed(call, timeout_s or self._settings.call_timeout_s)
        except QueueFull:
            raise TooManyWaiting from None

    def check_pause(self, origin: CallOrigin) -> None:
        """Return where a call of this origin may be made. Raises CallFailure while the follower is to wait."""
        left_s = self._pause.left_s(asyncio.get_running_loop().time())
        if origin is CallOrigin.FOLLOWER and left_s > 0:
            raise StillPausing(left_s)

    async def _observed(self, call: NodeCall[T], timeout_s: float) -> T:
        clock = asyncio.get_running_loop().time
        started_at = clock()
        outcome = "cancelled"
        try:
            answer = await self._timed(call, timeout_s)
            outcome = "ok"
            self._pause.worked(clock())
            return answer
        except RpcRefusal:
            outcome = "refused"
            raise
        except CallFailure as error:
            outcome = error.failure.value
            if error.asks_to_wait:
                self._pause.asked(clock(), error.retry_after_s)
            raise
        finally:
            if self._observer is not None:
                self._observer.observe_call(call.method, outcome, clock() - started_at)

    async def _timed(self, call: NodeCall[T], timeout_s: float) -> T:
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
        paths = (working,) if working else call.paths
        for path in paths[:-1]:
            try:
                return await self._remembered(call, path)
            except CallFailure as error:
                if error.status != _NOT_FOUND:
                    raise
        return await self._remembered(call, paths[-1])

    async def _remembered(self, call: NodeCall[T], path: str) -> T:
        try:
            answer = await self._exchange(call, path)
        except CallFailure:
            self._working_paths.pop(call.paths, None)
            raise
        if len(call.paths) > 1:
            self._working_paths[call.paths] = path
        return answer

    async def _exchange(self, call: NodeCall[T], path: str) -> T:
        body = _body_of(call)
        limit = self._settings.max_set_bytes if call.large else self._settings.max_answer_bytes
        try:
            reply = await self._post(path, body, limit)
        except _Disconnected:
            # The node closed an idle connection while we wrote to it. All calls only read: repeating is safe.
            reply = await self._post(path, body, limit)
        if len(reply.body) > _INLINE_BYTES:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._executor, self._decoded, call, reply)
        return self._decoded(call, reply)

    async def _post(self, path: str, body: bytes, limit: int) -> _Reply:
        try:
            url = self._urls.get(path)
            if url is None:
                url = self._urls[path] = self.endpoint.url(path)
            async with self._session.post(url, data=body, headers=self._headers, allow_redirects=False) as answer:
                is_ok = answer.status == 200
                read = await _read(answer, limit if is_ok else _MAX_ERROR_BYTES, is_ok)
                return _Reply(answer.status, read, answer.headers.get("Retry-After"))
        except (aiohttp.ClientPayloadError, aiohttp.ClientResponseError, ValueError) as error:
            failure = CallFailure(NodeFailure.BAD_ANSWER, type(error).__name__)
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            failure = _connection_failure(error)
        raise failure

    def _decoded(self, call: NodeCall[T], reply: _Reply) -> T:
        """Return the decoded result; runs on a worker thread where the answer is large."""
        if reply.status == _TOO_MANY_REQUESTS:
            # Whatever a gateway writes beside it, no node has answered.
            raise _failure_of_status(reply)
        try:
            envelope = _joined(reply.body, len(call.batch)) if call.batch else _ENVELOPE.decode(reply.body)
            if envelope.error is None and reply.status == 200:
                return call.decode(bytes(envelope.result))
            error = envelope.error
        except (ValueError, RecursionError) as reason:
            error = None
            detail = self.endpoint.scrub(str(reason))
        else:
            detail = "neither a result nor an error"
        if error is not None:
            raise parse_refusal(error.code, error.message, self.endpoint.scrub(error.message))
        raise _failure_of_status(reply) if reply.status != 200 else CallFailure(NodeFailure.BAD_ANSWER, detail)


def _body_of(call: NodeCall[Any]) -> bytes:
    several = enumerate(call.batch or (call.params,))
    requests = [{"jsonrpc": "2.0", "id": 1 + n, "method": call.method, "params": params} for n, params in several]
    return msgspec.json.encode(requests if call.batch else requests[0])


def _joined(body: bytes, count: int) -> _Envelope:
    """Return the results of a batch as one list, or the first error in it. Raises ValueError."""
    if body.lstrip()[:1] == b"{":
        # The batch as a whole was refused.
        return _ENVELOPE.decode(body)
    answers = sorted(_ENVELOPES.decode(body), key=lambda answer: answer.id)
    for answer in answers:
        if answer.error is not None:
            return answer
    if [answer.id for answer in answers] != list(range(1, count + 1)) or not all(each.result for each in answers):
        raise ValueError("the batch was not answered call by call")
    return _Envelope(msgspec.Raw(b"[" + b",".join(bytes(answer.result) for answer in answers) + b"]"))


async def _read(answer: aiohttp.ClientResponse, limit: int, must_fit: bool) -> bytes:
    """Return the body of at most `limit` bytes; a longer one is empty, or a CallFailure where it must fit."""
    if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise CallFailure(NodeFailure.BAD_ANSWER, "the answer is compressed, unasked")
    chunks = bytearray()
    async for chunk in answer.content.iter_any():
        chunks += chunk
        if len(chunks) > limit:
            if must_fit:
                raise CallFailure(NodeFailure.BAD_ANSWER, f"the answer exceeds {limit} bytes")
            return b""
    return bytes(chunks)


def _connection_failure(error: aiohttp.ClientError | OSError) -> CallFailure:
    is_lost = isinstance(error, aiohttp.ServerDisconnectedError | ConnectionError) or (
        isinstance(error, aiohttp.ClientOSError) and not isinstance(error, aiohttp.ClientConnectorError)
    )
    # Only the class: the text of a foreign error may quote the URL.
    return (_Disconnected if is_lost else CallFailure)(NodeFailure.REFUSED, type(error).__name__)


def _failure_of_status(reply: _Reply) -> CallFailure:
    is_limit = reply.status == _TOO_MANY_REQUESTS
    failure = CallFailure(
        NodeFailure.BUSY if is_limit else NodeFailure.HTTP_STATUS, f"HTTP status {reply.status}", reply.status
    )
    if is_limit or reply.status == _SERVICE_UNAVAILABLE:
        failure.retry_after_s = parse_retry_after(reply.retry_after, time.time())
        failure.asks_to_wait = is_limit or failure.retry_after_s is not None
    return failure
