"""The routes of the Data API, and access to them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from warpseal.api.data.access import ApiAccess, Endpoint
from warpseal.api.data.chain_endpoints import ChainEndpoints
from warpseal.api.data.docs_page import POLICY, page
from warpseal.api.data.openapi import document
from warpseal.api.data.operations import (
    BLOCKCHAIN,
    BLOCKS,
    CHAIN_IDS,
    REWARDS,
    TRANSACTIONS,
    VALIDATOR,
    Operation,
)
from warpseal.api.data.request_context import ContextFactory
from warpseal.api.data.responses import JSON, respond_bytes, response_headers
from warpseal.api.data.services import DataServices
from warpseal.api.data.settings import DataApiSettings
from warpseal.api.data.staking_endpoints import StakingEndpoints
from warpseal.api.settings import ApiSettings
from warpseal.api.startup_gate import StartupGate

OPENAPI_PATH: Final = "/openapi.json"
DOCS_PATH: Final = "/docs"


@dataclass(frozen=True, slots=True)
class Clocks:
    """now: unix seconds; monotonic: seconds that never go back."""

    now: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic


class DataApi:
    """The Data API, for the API port to mount. Requests wait at `gate` for the services.

    settings: of the CorsMiddleware that must wrap the app. access: guards other routes as well.
    """

    def __init__(
        self,
        gate: StartupGate[DataServices],
        settings: ApiSettings,
        data: DataApiSettings,
        clocks: Clocks | None = None,
    ) -> None:
        clocks = clocks or Clocks()
        self.settings = data
        contexts = ContextFactory(gate, settings, data, clocks.now)
        self.access = ApiAccess(gate, data, clocks.monotonic)
        self._chains = ChainEndpoints(contexts)
        self._staking = StakingEndpoints(contexts)

    def routes(self) -> list[Route]:
        """Return the routes of endpoints 3 to 8, of the OpenAPI document and of its page."""
        return [
            self._route(TRANSACTIONS, self._chains.transactions),
            self._route(BLOCKS, self._chains.blocks),
            self._route(BLOCKCHAIN, self._chains.blockchain),
            self._route(CHAIN_IDS, self._chains.chain_ids),
            self._route(REWARDS, self._staking.rewards),
            self._route(VALIDATOR, self._staking.validator),
            Route(OPENAPI_PATH, self.openapi, methods=["GET"]),
            Route(DOCS_PATH, self.docs, methods=["GET"]),
        ]

    async def openapi(self, request: Request) -> Response:
        """GET /openapi.json."""
        return await respond_bytes(request, _document(), JSON, "public, no-cache")

    async def docs(self, request: Request) -> Response:
        """GET /docs."""
        response_headers(request.scope)["content-security-policy"] = POLICY
        return await respond_bytes(request, _page(), "text/html", "public, no-cache")

    def _route(self, operation: Operation, endpoint: Endpoint) -> Route:
        return Route(operation.path, self.access.guard(endpoint, operation.units), methods=["GET"])


@cache
def _document() -> bytes:
    return msgspec.json.encode(document())


@cache
def _page() -> bytes:
    return page(document())
