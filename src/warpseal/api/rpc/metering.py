"""Metering of forwarded calls: outcome and time of each one, once its response begins.

Source of truth: docs/usage-metrics.md. Nothing here awaits before the response is sent, locks or
does I/O.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import attrgetter
from time import perf_counter
from typing import Final, Self

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from warpseal.api.http.clients import client_network, client_of, is_behind_proxy
from warpseal.api.http.errors import ShuttingDown
from warpseal.api.http.http_protocol import IS_CLOSING
from warpseal.api.http.middleware import is_shutdown, log_fields
from warpseal.api.http.request_body import (
    LARGE_BYTES,
    ClientDisconnected,
    declared_length,
    parse_body,
)
from warpseal.api.rpc.jsonrpc_geth import MAX_RESULT_BYTES
from warpseal.errors import WarpsealError
from warpseal.forwarding.evm.forwarder import NO_NODE, NOT_ANSWERED
from warpseal.upstream.jsonrpc import UNREADABLE, RpcCall, RpcError, RpcResponse, decode_id
from warpseal.usage.calls import CLIENT_LEFT, NO_METHOD, CallOutcome, UsageLabels
from warpseal.usage.classify import (
    RATE_LIMITED,
    UNANSWERED,
    CallError,
    decode_error,
    error_of,
    errors_of,
    is_charged_status,
    may_begin_with_error,
    may_have_error,
    outcome_of,
)
from warpseal.usage.countries import UNKNOWN
from warpseal.usage.credits import MethodCredits
from warpseal.usage.labels import agent_label, country_label, method_label
from warpseal.usage.recorder import UsageRecorder

WEBSOCKET: Final = 101
"""Status of the calls on a WebSocket."""

_INTERNAL_ERROR: Final = 500
_FIRST_ERROR_STATUS: Final = 400
_UNANSWERED: Final = (NO_NODE, NOT_ANSWERED, UNREADABLE.error)
_METHOD: Final = attrgetter("method")


class RouteMeter:
    """Meters the calls of one route.

    path: The label of the route.
    method_labels: The methods with a label of their own; all others have the label `other`.
    """

    def __init__(
        self,
        path: str,
        method_labels: AbstractSet[str],
        recorder: UsageRecorder,
        credits: MethodCredits,
    ) -> None:
        self.path = path
        self._method_labels = method_labels
        self._recorder = recorder
        self._credits = credits

    def request(self, scope: Scope) -> MeteredRequest:
        """Return the meter of one request."""
        return MeteredRequest(self, scope)

    def socket(self, scope: Scope) -> SocketMeter:
        """Return the meter of one WebSocket."""
        return SocketMeter(self, scope)

    def record(
        self,
        scope: Scope,
        counts: Iterable[tuple[str, CallOutcome, int]],
        status: int,
        time_ms: float | None,
        *,
        is_charged: bool = True,
    ) -> None:
        """Record calls of one client with the same status and time.

        counts: Method, outcome and number of calls.
        """
        api_key, country, agent = self._client_labels(scope)
        for method, outcome, calls in counts:
            name = method_label(method, self._method_labels)
            credits = self._credits.of(method or NO_METHOD) if is_charged else 0
            labels = UsageLabels(self.path, name, status, api_key, country, agent)
            self._recorder.record(labels, outcome, credits, time_ms, calls)

    def record_success(self, scope: Scope, method: str, status: int, time_ms: float) -> None:
        """Record one successful call; of a known method, the recorder may do it later."""
        if method in self._method_labels:
            self._recorder.defer(
                self._record_times, method, status, *self._client_labels(scope), time_ms=time_ms
            )
        else:
            self.record(scope, ((method, CallOutcome.SUCCESSFUL, 1),), status, time_ms)

    def _record_times(
        self,
        method: str,
        status: int,
        api_key: str,
        country: str,
        agent: str,
        times: Sequence[float],
    ) -> None:
        labels = UsageLabels(self.path, method, status, api_key, country, agent)
        self._recorder.record_times(labels, CallOutcome.SUCCESSFUL, self._credits.of(method), times)

    def _client_labels(self, scope: Scope) -> tuple[str, str, str]:
        """Return the API key, country and user agent of a request."""
        agent, recorder = agent_label(scope["headers"]), self._recorder
        if agent not in recorder.agents:
            agent = recorder.admit_agent(agent, client_network(client_of(scope).address)[0])
        country = country_label(client_of(scope).country) if is_behind_proxy(scope) else UNKNOWN
        return log_fields(scope).get("api_key") or "", country, agent


class MeteredRequest:
    """One HTTP request with calls.

    As a context it records the calls of a request that ends with an error.

    meter: The meter of the route; None records nothing. Probes are never recorded.
    calls: The calls of the body; empty until it is parsed.
    entries: The number of calls if they are not parsed; 0 for a body of responses alone.
    responses: The daemon's responses by position of their calls; without them, the body of the
        response is searched for errors.
    """

    __slots__ = (
        "_meter",
        "_scope",
        "_started",
        "_status",
        "_time_ms",
        "calls",
        "entries",
        "is_batch",
        "responses",
    )

    def __init__(self, meter: RouteMeter | None, scope: Scope) -> None:
        self.calls: Sequence[RpcCall] = ()
        self.entries = 1
        self.is_batch = False
        self.responses: Mapping[int, RpcResponse] | None = None
        self._meter = None if meter is None or is_probe(scope) else meter
        self._scope = scope
        self._status = 0
        self._time_ms = 0.0
        self._started = perf_counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._end_time(_status_of(error, self._scope))
            self._record(None)

    def body_read(self) -> None:
        """Begin the time of the calls."""
        self._started = perf_counter()

    async def respond(self, response: Response, receive: Receive, send: Send) -> None:
        """Send the response, and record the calls."""
        if self._meter is None:
            await response(self._scope, receive, send)
            return
        self._end_time(response.status_code)
        try:
            await response(self._scope, receive, send)
        finally:
            body = bytes(response.body)
            if len(body) <= LARGE_BYTES:
                self._record(self._errors_of(body))
            else:
                await self._record_large(body)

    def _end_time(self, status: int) -> None:
        self._time_ms = (perf_counter() - self._started) * 1_000
        self._status = CLIENT_LEFT if has_left(self._scope) else status

    async def _record_large(self, body: bytes) -> None:
        """Record the calls by a large body, which a worker thread decodes if need be."""
        errors: Sequence[CallError | None] | None = None
        try:
            if self._may_have_errors(body):
                errors = await parse_body(self._errors_of, body)
        finally:
            self._record(errors)

    def _may_have_errors(self, body: bytes) -> bool:
        """Return whether a large body must be decoded: a result of a single call need not be."""
        if self.is_batch:
            return True
        if not self.calls:
            return False
        id_bytes = len(bytes(self.calls[0].id or b""))
        return may_begin_with_error(body, id_bytes)

    def _errors_of(self, body: bytes) -> Sequence[CallError | None] | None:
        """Return the errors of the calls, from the daemon's responses or else from a body.

        Returns None if no call has an error, or if the status is the outcome of all calls.
        """
        if self._status >= _FIRST_ERROR_STATUS or not self.calls:
            return None
        if self.responses is not None and len(body) <= MAX_RESULT_BYTES:
            return errors_in(self.calls, self.responses)
        if not may_have_error(body):
            return None
        if not self.is_batch:
            return (error_of(body),)
        ids = [decode_id(call.id) for call in self.calls]
        return errors_of(body, ids)

    def _record(self, errors: Sequence[CallError | None] | None) -> None:
        if self._meter is None or not self.entries:
            return
        status, calls = self._status, self.calls
        if len(calls) == 1 and errors is None and status < _FIRST_ERROR_STATUS:
            self._meter.record_success(self._scope, calls[0].method, status, self._time_ms)
            return
        counts = self._count_calls(errors)
        time_ms = None if status == CLIENT_LEFT else self._time_ms
        is_charged = is_charged_status(status)
        self._meter.record(self._scope, counts, status, time_ms, is_charged=is_charged)

    def _count_calls(
        self, errors: Sequence[CallError | None] | None
    ) -> Iterable[tuple[str, CallOutcome, int]]:
        """Return method, outcome and number of the calls, or of the entries if none is parsed."""
        status, methods = self._status, map(_METHOD, self.calls)
        if not self.calls:
            is_error = status >= _FIRST_ERROR_STATUS
            outcome = outcome_of(status) if is_error else CallOutcome.INVALID
            return (("", outcome, self.entries),)
        if errors is None:
            outcome = outcome_of(status)
            return [(method, outcome, count) for method, count in Counter(methods).items()]
        pairs = Counter(zip(methods, errors, strict=True))
        return [
            (method, outcome_of(status, error), count) for (method, error), count in pairs.items()
        ]


class SocketMeter:
    """Meters the calls of one WebSocket; without a meter it records nothing.

    Times are those of `perf_counter`.
    """

    def __init__(self, meter: RouteMeter | None, scope: Scope) -> None:
        self._meter = meter
        self._scope = scope

    def record_refused_handshake(self, status: int) -> None:
        """Record a refused WebSocket.

        status: 101 if no node takes the WebSocket, else that of the refusal.
        """
        outcome = CallOutcome.FAILED if status == WEBSOCKET else outcome_of(status)
        self._record("", outcome, status, None, is_charged=is_charged_status(status))

    def record_reply(self, method: str, read_at: float, error: msgspec.Raw) -> None:
        """Record a call that the node answered."""
        if self._meter is not None:
            self.record_call(method, decode_error(error), read_at)

    def record_responses(
        self, calls: Sequence[RpcCall], responses: Mapping[int, RpcResponse], read_at: float
    ) -> None:
        """Record calls that the daemon answers."""
        for call, error in zip(calls, errors_in(calls, responses), strict=True):
            self.record_call(call.method, error, None if call.is_notification else read_at)

    def record_refused(self, calls: Sequence[RpcCall], entries: int, read_at: float) -> None:
        """Record calls that a limit refuses, without credits.

        entries: The number of calls if they are not parsed.
        """
        methods = [call.method for call in calls] or [""] * entries
        for method in methods:
            self.record_call(method, RATE_LIMITED, read_at, is_charged=False)

    def record_notifications(self, calls: Sequence[RpcCall]) -> None:
        """Record the notifications among calls: they get no reply."""
        for call in calls:
            if call.id is None:
                self.record_call(call.method, None, None)

    def record_lost(self, methods: Sequence[str], *, has_client_left: bool) -> None:
        """Record calls without a reply, because the client left or because the node did."""
        for method in methods:
            if has_client_left:
                self._record(method, outcome_of(CLIENT_LEFT), CLIENT_LEFT, None)
            else:
                self.record_call(method, UNANSWERED, None)

    def record_call(
        self,
        method: str,
        error: CallError | None,
        read_at: float | None,
        *,
        is_charged: bool = True,
    ) -> None:
        """Record a call.

        method: The method of the call; "" if it has none.
        error: The error of the call; None if it succeeded.
        read_at: The time at which the call was read; None if its duration does not count.
        """
        status, time_ms = WEBSOCKET, None
        if has_left(self._scope):
            status = CLIENT_LEFT
        elif read_at is not None:
            time_ms = (perf_counter() - read_at) * 1_000
        self._record(method, outcome_of(status, error), status, time_ms, is_charged=is_charged)

    def _record(
        self,
        method: str,
        outcome: CallOutcome,
        status: int,
        time_ms: float | None,
        *,
        is_charged: bool = True,
    ) -> None:
        if self._meter is not None:
            counts = ((method, outcome, 1),)
            self._meter.record(self._scope, counts, status, time_ms, is_charged=is_charged)


def is_probe(scope: Scope) -> bool:
    """Return whether a request has no body, and so no call."""
    if scope["method"] == "OPTIONS":
        return True
    is_read = scope["method"] in ("GET", "HEAD") and not declared_length(scope)
    return is_read and all(name != b"transfer-encoding" for name, _ in scope["headers"])


def has_left(scope: Scope) -> bool:
    """Return whether the client of a request has closed its connection."""
    is_closing = scope.get("state", {}).get(IS_CLOSING)
    return is_closing is not None and is_closing()


def errors_in(
    calls: Sequence[RpcCall], responses: Mapping[int, RpcResponse]
) -> list[CallError | None]:
    """Return the errors of calls; a call without a response has its own error.

    responses: The responses by position of their calls.
    """
    errors: list[CallError | None] = []
    for position, call in enumerate(calls):
        response = responses.get(position)
        error = call.error if response is None else response.error
        errors.append(None if error is None else call_error(error))
    return errors


def call_error(error: RpcError) -> CallError:
    """Return the error of a call; all calls without a node's reply have the same error."""
    return UNANSWERED if error in _UNANSWERED else CallError(error.code, error.message)


def _status_of(error: BaseException, scope: Scope) -> int:
    """Return the HTTP status of the response to an error, as ErrorMiddleware sends it."""
    if isinstance(error, ClientDisconnected):
        return CLIENT_LEFT
    if isinstance(error, asyncio.CancelledError):
        return ShuttingDown.http_status if is_shutdown(scope) else CLIENT_LEFT
    return error.http_status if isinstance(error, WarpsealError) else _INTERNAL_ERROR
