"""The JSON-RPC services of dialect A over HTTP: how one is served, health with its GETs, and the
validators of a chain.

Source of truth: the health API and the validators API of the specification; avalanchego's
subnet-evm.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from warpseal.api.http.middleware import log_fields
from warpseal.api.http.request_body import parse_body, read_body
from warpseal.api.http.responses import not_found_response
from warpseal.api.http.settings import ApiSettings
from warpseal.api.rpc.jsonrpc_gorilla import (
    BAD_ARGUMENT,
    CONTENT_TYPE,
    MAX_BODY_BYTES,
    SERVER_ERROR,
    JsonRpcError,
    JsonRpcRequest,
    arguments,
    failure,
    parse,
    post_refusal,
    success,
    unknown,
)
from warpseal.errors import CallRefused, WarpsealError
from warpseal.ops.health.registry import HealthRegistry, NodeHealth
from warpseal.warp.ids import MalformedID, NodeID, parse_node_id

log = logging.getLogger("warpseal.api")
S = TypeVar("S", bound=msgspec.Struct)
HEALTH: Final = "health"
MAX_TAGS: Final = 64
_JSON: Final = {"content-type": "application/json"}
VALIDATORS: Final = "validators"
_IDS_AT_ONCE: Final = 64


class NoParams(msgspec.Struct):
    """Params of a method without parameters: any object, all of it ignored."""


class Method(Struct, Generic[S], frozen=True):
    """One method.

    params: The type of the parameters.
    call: Returns the result, or raises CallRefused, WarpsealError or OSError.
    """

    params: type[S]
    call: Callable[[S], Awaitable[Any]]


class JsonRpcEndpoint:
    """The ASGI app of one service.

    methods: The methods by name, without the name of the service.
    """

    def __init__(
        self, service: str, methods: Mapping[str, Method[Any]], settings: ApiSettings
    ) -> None:
        self._service = service
        self._methods = {name[:1].upper() + name[1:]: method for name, method in methods.items()}
        self._settings = replace(settings, max_body_bytes=MAX_BODY_BYTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = post_refusal(scope)
        if response is None:
            reply = await self.reply(await read_body(scope, receive, self._settings), scope)
            response = Response(reply, 200, {"content-type": CONTENT_TYPE}) if reply else Response()
        await response(scope, receive, send)

    async def reply(self, body: bytes, scope: Scope) -> bytes:
        """Return the reply to a body; empty for a notification."""
        request: JsonRpcRequest | None = None
        try:
            request = await parse_body(parse, body)
            request.check()
            log_fields(scope)["method_called"] = request.method[:64]
            result = await self._call(request)
        except JsonRpcError as error:
            if request is None:
                return failure(None, error)
            return failure(request.id, error) if request.id else b""
        return success(request.id, result) if request.id else b""

    async def _call(self, request: JsonRpcRequest) -> Any:
        service, name = request.called()
        if service != self._service:
            raise unknown("service", service, name)
        method = self._methods.get(name)
        if method is None:
            raise unknown("method", service, name)
        params = arguments(request.params, method.params)
        try:
            return await method.call(params)
        except (CallRefused, WarpsealError) as error:
            raise JsonRpcError(SERVER_ERROR, str(error)) from None
        except OSError as error:
            log.warning(
                "a call failed", extra={"method_called": request.method, "reason": str(error)}
            )
            raise JsonRpcError(SERVER_ERROR, error.strerror or str(error)) from None
        except (
            Exception
        ) as error:  # The reply of a JSON-RPC call has status 200, whatever became of the call.
            log.error("internal error, call failed", exc_info=error)
            raise JsonRpcError(SERVER_ERROR, "internal error; see the log for details") from None


class TagParams(msgspec.Struct):
    """health.health and health.readiness."""

    tags: list[str] = msgspec.field(default_factory=list)


class HealthEndpoint:
    """Serves the reports of the health registry."""

    def __init__(self, registry: HealthRegistry, settings: ApiSettings) -> None:
        self._registry = registry
        methods: dict[str, Method[Any]] = {
            name: Method(TagParams, partial(self._report, name)) for name in ("health", "readiness")
        }
        methods["liveness"] = Method(NoParams, partial(self._report, "liveness"))
        self._gets = {name: partial(self._get, name) for name in methods}
        self._rpc = JsonRpcEndpoint(HEALTH, methods, settings)

    def routes(self) -> Mapping[str, ASGIApp]:
        """Return the endpoint's own route and its sub-routes."""
        return {"": self.dispatch, **{f"/{name}": app for name, app in self._gets.items()}}

    async def dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the report to a GET; handle any other method as JSON-RPC."""
        app = self._gets["health"] if scope["method"] == "GET" else self._rpc
        await app(scope, receive, send)

    async def _get(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        result = await self._report(name, TagParams(_tags(scope)))
        body = msgspec.json.encode(result) + b"\n"
        await Response(body, 200 if result.healthy else 503, _JSON)(scope, receive, send)

    async def _report(self, name: str, params: Any) -> NodeHealth:
        """Return a report: the last results of all checks or those with a tag, or none."""
        if name == "liveness":
            return NodeHealth({}, healthy=True)
        tags = params.tags[:MAX_TAGS]
        if name == "readiness":
            return self._registry.readiness(tags)
        await self._registry.run_old_checks(tags)
        return self._registry.health(tags)


def _tags(scope: Scope) -> list[str]:
    query = scope["query_string"]
    if not query:
        return []
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    return [value for name, value in pairs if name == "tag"]


class NodeIdsParams(msgspec.Struct):
    """validators.getCurrentValidators; no ids means all validators."""

    node_ids: list[str] = msgspec.field(name="nodeIDs", default_factory=list)


class CurrentValidatorSource(Protocol):
    """The current validators of one chain."""

    async def are_served(self) -> bool:
        """Return whether the validators of the chain can be listed."""

    async def current(self, node_ids: Sequence[NodeID]) -> Sequence[msgspec.Struct] | None:
        """Return the validators as JSON structs, or None if the list is unknown.

        Raises CallRefused, WarpsealError.
        """


class ValidatorsEndpoint:
    """Serves the validators of one chain."""

    def __init__(self, source: CurrentValidatorSource, settings: ApiSettings) -> None:
        self._source = source
        methods: Mapping[str, Method[Any]] = {
            "getCurrentValidators": Method(NodeIdsParams, self._current)
        }
        self._rpc = JsonRpcEndpoint(VALIDATORS, methods, settings)

    def routes(self) -> Mapping[str, ASGIApp]:
        """Return the chain's sub-route."""
        return {"/validators": self}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app: ASGIApp = self._rpc if await self._source.are_served() else not_found_response()
        await app(scope, receive, send)

    async def _current(self, params: NodeIdsParams) -> Mapping[str, Any]:
        try:
            node_ids = await _parse_node_ids(params.node_ids)
        except MalformedID:
            raise CallRefused(BAD_ARGUMENT) from None
        return {"validators": await self._source.current(node_ids) or ()}


async def _parse_node_ids(texts: Sequence[str]) -> list[NodeID]:
    """Return many ids, without holding the event loop for all of them. Raises MalformedID."""
    node_ids = []
    for position, text in enumerate(texts):
        node_ids.append(parse_node_id(text))
        if position % _IDS_AT_ONCE == 0:
            await asyncio.sleep(0)
    return node_ids
