"""One HTTP call to one upstream node: bounded in time and bytes, within the limits of the node.

`post` passes a body on unchanged; `call` makes a typed JSON-RPC call. A failure says exactly
whether the request can have reached the node, so that the caller does not send it twice by mistake.
Source of truth: geth's `rpc/http.go`, avalanchego `utils/rpc` and `utils/json/codec.go`.
"""

from __future__ import annotations

import asyncio
import time
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from random import getrandbits
from time import perf_counter
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import Struct
from yarl import URL

from warpseal.runtime.http_session import (
    UnreadableBody,
    aiohttp,
    is_success,
    new_session,
    read_body,
)
from warpseal.runtime.process import error_words
from warpseal.runtime.tracing import Span, active_trace
from warpseal.upstream.endpoint import NodeEndpoint
from warpseal.upstream.errors import (
    CallFailure,
    MethodMissing,
    NodeFailure,
    RpcRefusal,
    parse_refusal,
)
from warpseal.upstream.json_values import decode_bytes
from warpseal.upstream.jsonrpc import (
    UNREADABLE,
    RpcCall,
    decode_responses,
    describe_body,
    encode_numbered_calls,
)
from warpseal.upstream.limits import (
    CallOrigin,
    CallRate,
    NodeLimits,
    UpstreamLimit,
    parse_retry_after,
)

T = TypeVar("T")

INLINE_BYTES: Final = 32 * 1024
"""Decoding more than this on the event loop could hold it up for a millisecond."""
JSON: Final = "application/json"
_NO_LIMIT: Final = nullcontext()
_MAX_ERROR_DATA: Final = 2 * 4096
_MAX_TYPE_CHARACTERS: Final = 256
_MAX_DESCRIBED_BYTES: Final = 64 * 1024
_MAX_METHOD_CHARS: Final = 64
# Then the node may run another version.
_REMEMBER_MISSING_S: Final = 3_600.0
REFUSALS_OF_CALLERS: Final = frozenset({401, 403})
_NOT_FOUND: Final = 404
_TOO_MANY_REQUESTS: Final = 429
BUSY_STATUSES: Final = frozenset({_TOO_MANY_REQUESTS, 502, 503, 504})
_ASKS_TO_WAIT: Final = frozenset({_TOO_MANY_REQUESTS, 503})
_STATUSES: Final = range(200, 600)


class CallObserver(Protocol):
    """Counts calls and their latency."""

    def observe_call(self, method: str, outcome: str, seconds: float) -> None:
        """Note one call to one node. `seconds` does not include the wait for a slot.

        outcome: "ok", "refused", "cancelled" or a NodeFailure's value.
        """

    def count_disagreement(self, position: int, method: str) -> None:
        """Note that a node, by its position in its list, contradicted the nodes that agree."""


class NodeCall(Struct, Generic[T], frozen=True):
    """One method call.

    paths: paths below the base URL; the second is tried if the node returns 404 for the first, and
        so on.
    decode: function that makes the raw JSON of the result a value, or raises ValueError.
    large: true allows the larger size of a reply.
    optional: true if a node that lacks or forbids the method does not count as failed.
    batch: params of each call of a JSON-RPC batch, in place of `params`; `decode` then gets the
        JSON list of the results, in that order.
    deprecated: true if newer nodes lack the method, so that the caller has another way. A node
        that lacks it is not called for it again for an hour.
    """

    method: str
    params: Mapping[str, Any] | Sequence[Any]
    paths: tuple[str, ...]
    decode: Callable[[bytes], T]
    origin: CallOrigin = CallOrigin.CALLER
    large: bool = False
    optional: bool = False
    batch: tuple[Sequence[Any], ...] = ()
    deprecated: bool = False


class NodeReply(NamedTuple):
    """The HTTP response of a node."""

    status: int
    body: bytes
    content_type: str

    @property
    def is_ok(self) -> bool:
        """Whether the body holds the responses to the calls."""
        return is_success(self.status)

    @property
    def is_busy(self) -> bool:
        """Whether this node cannot serve the request now, while another may."""
        return self.status in BUSY_STATUSES

    @property
    def asks_to_wait(self) -> bool:
        """Whether the node has more calls than it wants."""
        return self.status in _ASKS_TO_WAIT

    @property
    def kind(self) -> str:
        """The kind of the body, for the operator."""
        if len(self.body) > _MAX_DESCRIBED_BYTES:
            return "a large body"
        return describe_body(self.body)

    @property
    def refuses_caller(self) -> bool:
        """Whether the node or its gateway refuses this key or address, or this method."""
        return self.status in REFUSALS_OF_CALLERS

    def failure(self) -> CallFailure:
        """Return the failure that a status other than 2xx is."""
        return status_failure(self.status, self.kind)


class Sessions(NamedTuple):
    """HTTP sessions to nodes.

    The node may have closed a pooled connection in the meantime, and it is then unknown whether it
    received the request. A request that must not be sent twice therefore never uses a pooled
    connection.

    single_use: session with a new connection for each request.
    websockets: session of the WebSockets, which have a cap of their own.
    """

    pooled: aiohttp.ClientSession
    single_use: aiohttp.ClientSession
    websockets: aiohttp.ClientSession


@asynccontextmanager
async def open_sessions(connections_per_node: int = 256) -> AsyncIterator[Sessions]:
    """Hold the sessions to nodes to which calls are forwarded."""
    pooled = aiohttp.TCPConnector(
        limit=0, limit_per_host=connections_per_node, keepalive_timeout=15
    )
    single_use = aiohttp.TCPConnector(
        limit=0, limit_per_host=connections_per_node, force_close=True
    )
    websockets = aiohttp.TCPConnector(limit=0, force_close=True)
    async with (
        new_session(pooled) as first,
        new_session(single_use) as second,
        new_session(websockets) as third,
    ):
        yield Sessions(first, second, third)


def open_session() -> aiohttp.ClientSession:
    """Return the HTTP session of all typed calls, which only read, to be held by `async with`."""
    return new_session(aiohttp.TCPConnector(limit=256, keepalive_timeout=30))


class UpstreamNode:
    """One node: its endpoint, its limits, the pause that it asks for, and the paths that work.

    write_session: session for calls that must not be sent twice; None if there are no such calls.
    rate: rate of batches, with the pause that the node asks for; the nodes of several chains
        behind one gateway share it.
    executor: threads that decode large replies.
    """

    def __init__(
        self,
        endpoint: NodeEndpoint,
        session: aiohttp.ClientSession,
        limits: NodeLimits,
        *,
        write_session: aiohttp.ClientSession | None = None,
        rate: CallRate | None = None,
        observer: CallObserver | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.endpoint = endpoint
        # All pools call other nodes first until then: this one contradicted them.
        self.cooldown_until = float("-inf")
        self._session = session
        self._write_session = write_session or session
        self._limits = limits
        self._observer = observer
        self._executor = executor
        self._slots = {
            CallOrigin.CALLER: UpstreamLimit(limits.in_flight, limits.per_s),
            CallOrigin.FOLLOWER: UpstreamLimit(
                limits.background_in_flight, limits.background_per_s
            ),
        }
        self.rate = rate or CallRate(endpoint)
        self._pause = self.rate.pause
        self._working_paths: dict[tuple[str, ...], str] = {}
        # Until when the node is not asked for a deprecated method.
        self._missing_until: dict[str, float] = {}
        self._urls: dict[str, URL] = {}
        self._headers = {**endpoint.http_headers, "Content-Type": JSON, "Accept": JSON}

    @property
    def pause_s(self) -> float:
        """The seconds for which the node wants no requests; 0 if it takes them."""
        return self._pause.remaining_s(asyncio.get_running_loop().time())

    async def post(
        self,
        body: bytes,
        timeout_s: float | None,
        max_bytes: int | None = None,
        *,
        is_write: bool = False,
        path: str = "",
        method: str = "",
    ) -> NodeReply:
        """Send a body and return the response. Raises CallFailure.

        max_bytes: largest size of the response; None stands for that of the limits.
        is_write: true if the body must not be sent twice.
        path: path below the URL of the node.
        method: name of the call in the trace of the request.
        """
        trace = active_trace()
        if trace is None:
            return await self._post(
                body, timeout_s, max_bytes, self._headers, is_write=is_write, path=path
            )
        # Callers name the methods of forwarded calls.
        method = method[:_MAX_METHOD_CHARS]
        span_id, started_at, error = getrandbits(64), perf_counter(), "cancelled"
        attributes: dict[str, Any] = {"node": self.endpoint.display, "rpc.method": method or None}
        try:
            headers = {**self._headers, **trace.headers(span_id)}
            reply = await self._post(
                body, timeout_s, max_bytes, headers, is_write=is_write, path=path
            )
            attributes["http.response.status_code"] = reply.status
            error = "" if reply.is_ok else str(reply.status)
            return reply
        except CallFailure as failure:
            error = failure.failure.public.value
            raise
        finally:
            name = method or "POST"
            trace.add(
                Span(name, started_at, attributes, kind="client", error=error, span_id=span_id)
            )

    async def _post(
        self,
        body: bytes,
        timeout_s: float | None,
        max_bytes: int | None,
        headers: Mapping[str, str],
        *,
        is_write: bool,
        path: str,
    ) -> NodeReply:
        session = self._write_session if is_write else self._session
        try:
            url = self._urls.get(path)
            if url is None:
                url = self._urls[path] = self.endpoint.url(path)
            timeout = aiohttp.ClientTimeout(
                total=timeout_s, sock_connect=self._limits.connect_timeout_s
            )
            async with session.post(
                url, data=body, headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                if response.status in _ASKS_TO_WAIT:
                    self._note_pause(response)
                limit = max_bytes or self._limits.max_bytes
                content = await read_body(response, limit)
                if content is None:
                    detail = f"the response exceeds {limit} bytes"
                    status = None if is_success(response.status) else response.status
                    raise CallFailure(NodeFailure.TOO_LARGE, detail, status)
                if response.status not in _STATUSES:
                    raise CallFailure(NodeFailure.LOST, f"HTTP status {response.status}")
                # JSON has no byte order mark, yet some servers send it.
                return NodeReply(
                    response.status, content.removeprefix(BOM_UTF8), _content_type(response)
                )
        except (
            aiohttp.ClientConnectorError,
            aiohttp.ConnectionTimeoutError,
            aiohttp.InvalidURL,
        ) as error:
            failure = CallFailure(NodeFailure.UNREACHABLE, error_words(error))
        except UnreadableBody as error:
            failure = CallFailure(NodeFailure.BAD_ANSWER, str(error))
        except ValueError as error:
            failure = CallFailure(NodeFailure.BAD_ANSWER, error_words(error))
        except TimeoutError:
            failure = CallFailure(NodeFailure.TIMEOUT)
        except (aiohttp.ClientError, OSError) as error:
            failure = CallFailure(NodeFailure.LOST, error_words(error))
        # Raised here, so that no foreign error, which may quote the URL, stays attached to it.
        raise failure

    async def call(self, call: NodeCall[T], timeout_s: float | None = None) -> T:
        """Wait for a slot, make the call and return its decoded result.

        Raises CallFailure, RpcRefusal.
        """
        timeout_s = timeout_s or self._limits.timeout_s
        async with self._slots.get(call.origin, _NO_LIMIT):
            self.check_pause(call.origin)
            clock = asyncio.get_running_loop().time
            started_at = clock()
            outcome = "cancelled"
            try:
                async with asyncio.timeout(timeout_s):
                    result = await self._try_paths(call)
                outcome = "ok"
                self._pause.record_success(clock())
                return result
            except RpcRefusal as error:
                outcome = "refused"
                if call.deprecated and isinstance(error, MethodMissing):
                    self._missing_until[call.method] = clock() + _REMEMBER_MISSING_S
                raise
            except CallFailure as error:
                outcome = error.failure.public.value
                raise
            except TimeoutError:
                outcome = NodeFailure.TIMEOUT.value
            finally:
                if self._observer is not None:
                    self._observer.observe_call(call.method, outcome, clock() - started_at)
        raise CallFailure(NodeFailure.TIMEOUT, f"no reply within {timeout_s:g} s")

    def check_pause(self, origin: CallOrigin) -> None:
        """Raise CallFailure if the node asked for a pause, and this call is the follower's."""
        if origin is CallOrigin.FOLLOWER and (left_s := self.pause_s) > 0:
            detail = f"the node asked for no requests for another {left_s:.0f} s"
            raise CallFailure(NodeFailure.BUSY, detail, blames_node=False)

    def check_method(self, call: NodeCall[Any]) -> None:
        """Raise MethodMissing if the node lacked a deprecated method within the last hour."""
        if not call.deprecated:
            return
        missing_until = self._missing_until.get(call.method, 0.0)
        if asyncio.get_running_loop().time() < missing_until:
            raise MethodMissing(0, f"the node lacks {call.method}")

    async def _try_paths(self, call: NodeCall[T]) -> T:
        working_path = self._working_paths.get(call.paths)
        paths = call.paths if working_path is None else (working_path,)
        for path in paths:
            try:
                result = await self._send(call, path)
            except CallFailure as error:
                failure = error
                if error.status != _NOT_FOUND:
                    break
            else:
                if len(call.paths) > 1:
                    self._working_paths[call.paths] = path
                return result
        self._working_paths.pop(call.paths, None)
        raise failure

    async def _send(self, call: NodeCall[T], path: str) -> T:
        if self._session.closed:
            # A lookup that goes on without its callers is under way while the daemon stops.
            raise CallFailure(NodeFailure.REFUSED, "the daemon stops", blames_node=False)
        params_of_calls = call.batch or (call.params,)
        encoded = [msgspec.Raw(msgspec.json.encode(params)) for params in params_of_calls]
        calls = [RpcCall(call.method, params) for params in encoded]
        body = encode_numbered_calls(dict(enumerate(calls, 1)))
        limit = self._limits.max_large_bytes if call.large else self._limits.max_bytes
        try:
            reply = await self.post(body, None, limit, path=path, method=call.method)
        except CallFailure as error:
            if error.failure is not NodeFailure.LOST:
                raise
            # The node closed an idle connection while the request was written. All typed calls only
            # read.
            reply = await self.post(body, None, limit, path=path, method=call.method)
        decode = partial(self._decode, call, reply)
        return await run_decoder(decode, len(reply.body), self._executor)

    def _decode(self, call: NodeCall[T], reply: NodeReply) -> T:
        """Return the decoded result. Runs on a worker thread if the reply is large."""
        if reply.status == _TOO_MANY_REQUESTS:
            # A gateway returned this, whatever the body says, and not the node.
            raise reply.failure()
        call_count = len(call.batch) or 1
        responses = decode_responses(reply.body, range(1, 1 + call_count)).values()
        errors = [response.error for response in responses if response.error is not None]
        refusal = next((error for error in errors if error is not UNREADABLE.error), None)
        if refusal is not None:
            redacted = self.endpoint.scrub(refusal.message)
            error = parse_refusal(refusal.code, refusal.message, redacted, call.method)
            error.data = _error_data(refusal.data)
            raise error
        if not reply.is_ok:
            raise reply.failure()
        if errors:
            raise unreadable_reply(reply)
        results = [bytes(response.result or b"null") for response in responses]
        result = b"[" + b",".join(results) + b"]" if call.batch else results[0]
        try:
            return call.decode(result)
        except (ValueError, RecursionError) as reason:
            detail = self.endpoint.scrub(str(reason))
        raise CallFailure(NodeFailure.BAD_ANSWER, detail)

    def _note_pause(self, response: aiohttp.ClientResponse) -> None:
        wait_s = parse_retry_after(
            response.headers.get("Retry-After"), time.time(), self._limits.max_pause_s
        )
        is_limited = response.status == _TOO_MANY_REQUESTS and self._limits.has_default_pauses
        if wait_s is not None or is_limited:
            self._pause.record_request(asyncio.get_running_loop().time(), wait_s)


async def run_decoder(decode: Callable[[], T], size_bytes: int, executor: Executor | None) -> T:
    """Return the result of a function, run on a thread if it decodes more than INLINE_BYTES."""
    if size_bytes <= INLINE_BYTES:
        return decode()
    return await asyncio.get_running_loop().run_in_executor(executor, decode)


def _error_data(data: msgspec.Raw | msgspec.UnsetType) -> bytes:
    if not isinstance(data, msgspec.Raw) or memoryview(data).nbytes > _MAX_ERROR_DATA:
        return b""
    try:
        return decode_bytes(data)
    except ValueError:
        return b""


def status_failure(status: int, kind: str = "") -> CallFailure:
    """Return the failure that an HTTP status is, of a call or of the handshake of a WebSocket.

    kind: kind of the body; empty if it is not known.
    """
    failure = NodeFailure.BUSY if status == _TOO_MANY_REQUESTS else NodeFailure.HTTP_STATUS
    if status not in REFUSALS_OF_CALLERS:
        return CallFailure(failure, f"HTTP status {status}", status)
    body = f" ({kind})" if kind else ""
    detail = f"HTTP {status}{body}: the provider refuses this key or address"
    return CallFailure(failure, detail, status)


def unreadable_reply(reply: NodeReply) -> CallFailure:
    """Return the failure of a status 2xx without JSON-RPC responses to the calls."""
    detail = f"the reply is no JSON-RPC response (HTTP {reply.status}, {reply.kind})"
    return CallFailure(NodeFailure.BAD_ANSWER, detail)


def _content_type(response: aiohttp.ClientResponse) -> str:
    """Return the type of a body; JSON if it is missing, or not fit for a header of ours."""
    header = response.headers.get("Content-Type", JSON)[:_MAX_TYPE_CHARACTERS]
    return header if header.isascii() and header.isprintable() else JSON
