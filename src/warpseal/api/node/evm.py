"""An EVM chain's endpoint: `/ext/bc/<id>/rpc`, calls by HTTP, and `/ws`, where the chain has one.

Source of truth: geth's `rpc/http.go` as recorded nodes answered; docs/node-interfaces.md tells what is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Protocol
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from warpseal.api.data.responses import response_headers
from warpseal.api.node import jsonrpc_geth as b
from warpseal.api.node.text_responses import empty_response, text_response
from warpseal.api.request_body import declared_length, read_body
from warpseal.api.request_log import log_fields
from warpseal.api.settings import ApiSettings
from warpseal.errors import RateLimited
from warpseal.evm_rpc.calls import RpcAnswer, RpcCall
from warpseal.evm_rpc.forwarder import EvmForwarder
from warpseal.evm_rpc.methods import SUBNET_EVM
from warpseal.evm_rpc.node import EvmNodeReply

SOURCE: Final = "x-warpseal-source"
KEY_HEADER: Final = b"x-service-api-key"
_KEY_HEADERS: Final = frozenset({KEY_HEADER, b"x-glacier-api-key"})
_KEY_PARAMETER: Final = "apikey"
_NULL: Final = msgspec.Raw(b"null")


class Admission(Protocol):
    """Who may call, and how much."""

    async def admit(self, request: Request, units: int) -> None:
        """Count a request. Raises ApiKeyRequired, ApiKeyRefused, RateLimited, StoreDown."""
        ...


class EvmEndpoint:
    """Serves one chain. Every entry of a batch costs a unit."""

    def __init__(self, forwarder: EvmForwarder, admission: Admission, settings: ApiSettings) -> None:
        self._forwarder = forwarder
        self._admission = admission
        self._settings = replace(settings, max_body_bytes=b.MAX_BODY_BYTES)

    def routes(self, socket: ASGIApp | None = None) -> Mapping[str, ASGIApp]:
        """Return the sub-routes of the chain. socket: serves its WebSocket clients."""
        return {"/rpc": self} if socket is None else {"/rpc": self, "/ws": socket}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = _refusal(scope)
        if response is None:
            response = await self._answered(scope, await read_body(scope, receive, self._settings))
        await response(scope, receive, send)

    async def _answered(self, scope: Scope, body: bytes) -> Response:
        calls = b.parse(body)
        units = len(calls.entries) if isinstance(calls, b.Calls) else 1
        try:
            await self._admission.admit(Request(keyed(scope)), max(1, units))
        except RateLimited as error:
            return over_limit(calls, error)
        if isinstance(calls, b.Refused):
            return _json(calls.body)
        if len(calls.entries) == 1:
            log_fields(scope)["method_called"] = calls.entries[0].method[:64]
        else:
            log_fields(scope)["calls"] = len(calls.entries)
        if len(calls.entries) == 1 and not calls.is_batch and calls.entries[0].fault is None:
            return await self._one(scope, calls)
        return await self._many(scope, calls)

    async def _one(self, scope: Scope, calls: b.Calls) -> Response:
        call = calls.entries[0]
        asked = as_rpc_call(call)
        reply = await self._forwarder.one(asked, b.encode([call], is_batch=False))
        if isinstance(reply, EvmNodeReply):
            return _as_it_came(reply)
        _note_source(scope, [(asked.method, reply)])
        return _json(replies(calls, [reply]))

    async def _many(self, scope: Scope, calls: b.Calls) -> Response:
        passed = await self._passed(calls)
        if passed is not None:
            return passed
        answered = await answers_of(self._forwarder, calls)
        _note_source(scope, [(calls.entries[place].method, answer) for place, answer in answered.items()])
        everyone = [answered.get(place, RpcAnswer()) for place in range(len(calls.entries))]
        return _json(replies(calls, everyone))

    async def _passed(self, calls: b.Calls) -> Response | None:
        """Return a node's answer to a batch as it came; None where it has to be taken apart."""
        if not calls.entries or any(call.fault is not None or call.id is None for call in calls.entries):
            return None
        methods = {call.method for call in calls.entries}
        reply = await self._forwarder.reads(methods, b.encode(calls.entries, is_batch=True), len(calls.entries))
        if isinstance(reply, RpcAnswer):
            return _json(replies(calls, [reply] * len(calls.entries)))
        return None if reply is None or len(reply.body) > b.MAX_RESULT_BYTES else _as_it_came(reply)


async def answers_of(forwarder: EvmForwarder, calls: b.Calls) -> dict[int, RpcAnswer]:
    """Return the answers to those calls that are calls, by place."""
    places = [place for place, call in enumerate(calls.entries) if call.fault is None]
    answered = await forwarder.many([as_rpc_call(calls.entries[place]) for place in places])
    return dict(zip(places, answered, strict=True))


def replies(calls: b.Calls, answered: list[RpcAnswer]) -> bytes:
    """Return the body that answers these calls, in their order and with their ids."""
    told_of = b.Replies(calls)
    for place, (call, answer) in enumerate(zip(calls.entries, answered, strict=True)):
        if call.fault is not None:
            told_of.add(place, fault=call.fault)
        elif answer.error is not None:
            told_of.add(place, fault=b.Fault(answer.error.code, answer.error.message, answer.error.data))
        else:
            told_of.add(place, answer.result if answer.result is not None else _NULL)
    return told_of.body()


def as_rpc_call(call: b.Call) -> RpcCall:
    """Return a call without its envelope."""
    return RpcCall(call.method, call.params, call.is_notification)


def keyed(scope: Scope) -> Scope:
    """Return the scope of a request for admission, the key of its query parameter in a header where there is none.

    Wallets cannot set headers. The query is neither logged nor sent on.
    """
    response_headers(scope)
    log_fields(scope)
    asking = {**scope, "type": "http", "method": scope.get("method", "GET")}
    if not scope.get("query_string") or any(name in _KEY_HEADERS for name, _ in scope["headers"]):
        return asking
    pairs = parse_qsl(scope["query_string"].decode("latin-1"), separator="&")
    key = next((value for name, value in pairs if name == _KEY_PARAMETER), None)
    return asking if key is None else {**asking, "headers": [*scope["headers"], (KEY_HEADER, key.encode())]}


def error_reply(calls: b.Calls | b.Refused, fault: b.Fault) -> bytes:
    """Return the body that tells all calls the same error; one without an id where there are none."""
    if isinstance(calls, b.Refused) or not calls.entries:
        return b.reply(None, fault=fault)
    told_of = b.Replies(calls)
    for place in range(len(calls.entries)):
        told_of.add(place, fault=fault)
    return told_of.body()


def over_limit(calls: b.Calls | b.Refused, error: RateLimited) -> Response:
    """Return the answer to calls that are too many for now."""
    headers = {"content-type": b.CONTENT_TYPE, "retry-after": str(max(1, round(error.retry_after_s)))}
    return Response(error_reply(calls, b.Fault(b.LIMIT_EXCEEDED, str(error))), 429, headers)


def _note_source(scope: Scope, answered: list[tuple[str, RpcAnswer]]) -> None:
    """Tell who answered the calls that both a node and we may. answered: method and answer."""
    answers = [answer for method, answer in answered if method in SUBNET_EVM]
    if answers:
        derived = any(answer.is_derived for answer in answers)
        response_headers(scope)[SOURCE] = "derived" if derived else "node"


def _as_it_came(reply: EvmNodeReply) -> Response:
    return Response(reply.body, reply.status, {"content-type": reply.content_type})


def _json(body: bytes) -> Response:
    return Response(body, 200, {"content-type": b.CONTENT_TYPE})


def _refusal(scope: Scope) -> Response | None:
    method, length = scope["method"], declared_length(scope)
    if method == "GET" and not length and not scope.get("query_string"):
        return empty_response(200)
    if method in ("PUT", "DELETE"):
        return text_response(405, b.WRONG_METHOD)
    if length > b.MAX_BODY_BYTES:
        return text_response(413, b.too_long(length))
    if method == "OPTIONS":
        return empty_response(200)
    given = next((value for name, value in scope["headers"] if name == b"content-type"), b"").decode("latin-1")
    return None if b.is_accepted_type(given) else text_response(415, b.WRONG_TYPE)
