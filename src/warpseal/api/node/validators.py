"""A chain's validators, `/ext/bc/<id>/validators`: dialect A with one method, a 404 if no node serves it.

Source of truth: the specification's validators API; avalanchego's subnet-evm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from warpseal.api.http.settings import ApiSettings
from warpseal.api.node.jsonrpc_endpoint import JsonRpcEndpoint, Method
from warpseal.api.node.router import not_found_response
from warpseal.api.rpc.jsonrpc_gorilla import BAD_ARGUMENT
from warpseal.errors import CallRefused
from warpseal.warp.ids import MalformedID, NodeID, parse_node_id

NAME: Final = "validators"
_IDS_AT_ONCE: Final = 64


class NodeIdsParams(msgspec.Struct):
    """validators.getCurrentValidators; no ids means all validators."""

    node_ids: list[str] = msgspec.field(name="nodeIDs", default_factory=list)


class CurrentValidatorSource(Protocol):
    """The current validators of one chain."""

    async def are_served(self) -> bool:
        """Return whether the validators of the chain can be listed."""
        ...

    async def current(self, node_ids: Sequence[NodeID]) -> Sequence[msgspec.Struct] | None:
        """Return the validators as JSON structs, or None if the list is unknown. Raises CallRefused, WarpsealError."""
        ...


class ValidatorsEndpoint:
    """Serves the validators of one chain."""

    def __init__(self, source: CurrentValidatorSource, settings: ApiSettings) -> None:
        self._source = source
        methods: Mapping[str, Method[Any]] = {"getCurrentValidators": Method(NodeIdsParams, self._current)}
        self._rpc = JsonRpcEndpoint(NAME, methods, settings)

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
