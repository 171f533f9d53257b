"""The JSON-RPC server of a node: accepted bodies, and error responses in the form of a node.

Source of truth: avalanchego `utils/json/codec.go` (gorilla json2), `api/server`.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any, Final

from aiohttp import web

from warpseal.warp.ids import MalformedID, parse_id

Params = Mapping[str, Any]
# Returns a JSON-serializable result, or bytes of JSON.
Method = Callable[[Params], Any]
# Takes a body; returns the name of the method (empty if there is none) and the response.
EvmHandler = Callable[[bytes], tuple[str, bytes]]
Report = Callable[[web.Request], Awaitable[web.StreamResponse]]

_PARSE_ERROR: Final = -32700
_INVALID_REQUEST: Final = -32600
_SERVER_ERROR: Final = -32000
_BAD_ARGUMENT: Final = (
    "couldn't unmarshal an argument. Ensure arguments are valid and properly formatted. "
    "See documentation for example calls"
)
_MAX_BODY_BYTES: Final = 10 * 1024 * 1024


class RpcError(Exception):
    """The error response of a method; it has the text of a node."""


class BadArgument(RpcError):
    """Parameters of the wrong type."""

    def __init__(self) -> None:
        super().__init__(_BAD_ARGUMENT)


class OutageKind(StrEnum):
    """How a node can fail."""

    HTTP_500 = "http-500"
    GARBAGE = "garbage"
    HANG = "hang"
    DROP = "drop"
    # The node says that it has no such method.
    NO_METHOD = "no-method"
    # Status 429, with Retry-After if `retry_after_s` is set.
    TOO_MANY = "too-many"


@dataclass(frozen=True, slots=True)
class Outage:
    """A failure of some calls, and a delay of their responses in seconds.

    kind: None for the honest response.
    tail_s: mean of what is drawn for each response in addition to its delay.
    """

    kind: OutageKind | None = None
    delay_s: float = 0.0
    tail_s: float = 0.0
    retry_after_s: int | None = None


class RpcServer:
    """The methods of one node by path, with counters of calls and simulated outages."""

    def __init__(self, node_id: str, lacks: Callable[[str], bool]) -> None:
        """lacks: returns whether the node's release no longer has a method."""
        self._node_id = node_id
        self._lacks = lacks
        self._methods: dict[str, dict[str, Method]] = {}
        self._evm: dict[str, EvmHandler] = {}
        # Base paths of chains that the node does not run.
        self.absent: set[str] = set()
        self.calls: Counter[str] = Counter()
        # Calls of methods that the node's release no longer has.
        self.refused: Counter[str] = Counter()
        # By method name; "*" applies to every other method.
        self.outages: dict[str, Outage] = {}
        # Responses that failed or were late, by the kind of the outage.
        self.failures: Counter[str] = Counter()
        self._random = Random(node_id)

    def serve(self, paths: tuple[str, ...], methods: Mapping[str, Method]) -> None:
        """Serve methods under each of `paths`."""
        for path in paths:
            self._methods[path] = dict(methods)

    def serve_evm(self, paths: tuple[str, ...], reply: EvmHandler) -> None:
        """Serve an EVM chain under each of `paths`."""
        for path in paths:
            self._evm[path] = reply

    def application(self, reports: Mapping[str, Report]) -> web.Application:
        """Return the HTTP application.

        reports: additional GET handlers by path.
        """
        application = web.Application(client_max_size=_MAX_BODY_BYTES)
        for path, report in reports.items():
            application.router.add_get(path, report)
        for path in (*self._methods, *self._evm):
            application.router.add_route("*", path, self._handle)
        application.router.add_route("*", "/{rest:.*}", _not_found)
        return application

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        headers = {"node-id": self._node_id}
        if request.path.rpartition("/")[0] in self.absent:
            return await _not_found(request)
        if request.method != "POST":
            text = f"rpc: POST method required, received {request.method}"
            return web.Response(status=405, text=text, headers=headers)
        content_type = request.headers.get("content-type", "")
        if content_type.partition(";")[0].strip().lower() != "application/json":
            return web.Response(
                status=415, text=f"rpc: unrecognized Content-Type: {content_type}", headers=headers
            )
        method, reply = self._respond(request.path, await request.read())
        outage = await self._outage(method, request)
        if outage is not None:
            return outage
        return web.Response(
            body=reply, content_type="application/json", charset="utf-8", headers=headers
        )

    def _respond(self, path: str, body: bytes) -> tuple[str, bytes]:
        if path not in self._evm:
            return self._call(path, body)
        name, reply = self._evm[path](body)
        if name:
            self.calls[name] += 1
        return name, reply

    def _call(self, path: str, body: bytes) -> tuple[str, bytes]:
        try:
            request = json.loads(body)
        except ValueError as error:
            return "", _error(_PARSE_ERROR, str(error), None)
        if not isinstance(request, dict):
            return "", _error(_PARSE_ERROR, "the request is no JSON object", None)
        call_id = request.get("id")
        if request.get("jsonrpc") != "2.0":
            return "", _error(_INVALID_REQUEST, "jsonrpc must be 2.0", call_id)
        name = request.get("method")
        if not isinstance(name, str):
            return "", _error(_PARSE_ERROR, "the method is no string", call_id)
        self.calls[name] += 1
        try:
            result = self._method(path, name)(_params(request.get("params")))
        except RpcError as error:
            return name, _error(_SERVER_ERROR, str(error), call_id)
        raw_id = json.dumps(call_id).encode()
        # Some methods return JSON that they keep.
        raw_result = result
        if not isinstance(result, bytes):
            raw_result = json.dumps(result, separators=(",", ":")).encode()
        return name, b'{"jsonrpc":"2.0","result":%b,"id":%b}\n' % (raw_result, raw_id)

    def _method(self, path: str, name: str) -> Method:
        service, dot, function = name.partition(".")
        if not dot:
            raise RpcError(f'rpc: service/method request ill-formed: "{name}"')
        if function[:1].isupper():
            raise RpcError("method must start with a non-uppercase letter")
        methods = self._methods[path]
        if name in methods:
            if not self._lacks(name):
                return methods[name]
            self.refused[name] += 1
        is_service = any(other.startswith(service + ".") for other in methods)
        raise RpcError(_not_found_text("method" if is_service else "service", name))

    async def _outage(self, method: str, request: web.Request) -> web.StreamResponse | None:
        outage = self.outages.get(method) or self.outages.get("*")
        if outage is None:
            return None
        self.failures[outage.kind or "late"] += 1
        tail_s = self._random.expovariate(1 / outage.tail_s) if outage.tail_s else 0.0
        await asyncio.sleep(outage.delay_s + tail_s)
        match outage.kind:
            case OutageKind.HTTP_500:
                return web.Response(status=500, text="internal server error")
            case OutageKind.TOO_MANY:
                headers = {}
                if outage.retry_after_s is not None:
                    headers["Retry-After"] = str(outage.retry_after_s)
                return web.Response(status=429, text="too many requests", headers=headers)
            case OutageKind.NO_METHOD:
                reply = _error(
                    _SERVER_ERROR,
                    _not_found_text("method", method),
                    (await request.json()).get("id"),
                )
                return web.Response(body=reply, content_type="application/json")
            case OutageKind.GARBAGE:
                return web.Response(body=b"\x00not json", content_type="application/json")
            case OutageKind.HANG:
                await asyncio.sleep(3600)
            case OutageKind.DROP if request.transport is not None:
                request.transport.abort()
        return None


def text_argument(params: Params, name: str) -> str:
    """Return a string parameter, empty if it is missing. Raises BadArgument."""
    value = params.get(name)
    if value is not None and not isinstance(value, str):
        raise BadArgument
    return value or ""


def id_argument(params: Params, name: str) -> bytes:
    """Return a 32-byte ID, zeros if it is missing. Raises BadArgument."""
    text = text_argument(params, name)
    if not text:
        return bytes(32)
    if text.startswith("0x"):
        raise BadArgument
    try:
        return parse_id(text)
    except MalformedID:
        raise BadArgument from None


def number_argument(params: Params, name: str) -> int:
    """Return a uint64 given as a number or a decimal text, 0 if it is missing.

    Raises BadArgument.
    """
    value = params.get(name, 0)
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**64:
        raise BadArgument
    return value


def _params(params: Any) -> Params:
    """Return the parameters of an object, of a list that holds one, or none. Raises BadArgument."""
    if params is None:
        return {}
    if isinstance(params, list):
        if len(params) != 1:
            raise BadArgument
        params = params[0]
    if not isinstance(params, dict):
        raise BadArgument
    return params


def _not_found_text(kind: str, name: str) -> str:
    """Return the error of an unknown method or service, which has the name of a Go function."""
    service, _, function = name.partition(".")
    return f'rpc: can\'t find {kind} "{service}.{function[:1].upper()}{function[1:]}"'


def _error(code: int, text: str, call_id: Any) -> bytes:
    error = {"code": code, "message": text, "data": None}
    return (
        json.dumps(
            {"jsonrpc": "2.0", "error": error, "id": call_id}, separators=(",", ":")
        ).encode()
        + b"\n"
    )


async def _not_found(_request: web.Request) -> web.Response:
    return web.Response(status=404, text="404 page not found\n")
