"""The routes of the Data API, and access to them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from warpseal.api.data.access import ApiAccess
from warpseal.api.data.chain_endpoints import get_blockchain, list_blocks, list_chain_ids, list_transactions
from warpseal.api.data.operations import (
    BLOCKCHAIN,
    BLOCKS,
    CHAIN_IDS,
    REWARDS,
    TRANSACTIONS,
    VALIDATOR,
    Operation,
)
from warpseal.api.data.request_context import ContextFactory, RequestContext
from warpseal.api.data.services import DataServices
from warpseal.api.data.settings import DataApiSettings
from warpseal.api.data.staking_endpoints import get_validator, list_rewards
from warpseal.api.settings import ApiSettings
from warpseal.api.startup_gate import StartupGate


class DataApi:
    """The Data API, for the API port to mount. Requests wait at `gate` for the services.

    settings: of the CorsMiddleware that must wrap the app. access: guards other routes as well. now: unix seconds;
    monotonic: seconds that never go back.
    """

    def __init__(
        self,
        gate: StartupGate[DataServices],
        settings: ApiSettings,
        data: DataApiSettings,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = data
        self.access = ApiAccess(gate, data, monotonic)
        self._contexts = ContextFactory(gate, settings, data, now)

    def routes(self) -> list[Route]:
        """Return the routes of endpoints 3 to 8."""
        return [
            self._route(TRANSACTIONS, list_transactions),
            self._route(BLOCKS, list_blocks),
            self._route(BLOCKCHAIN, get_blockchain),
            self._route(CHAIN_IDS, list_chain_ids),
            self._route(REWARDS, list_rewards),
            self._route(VALIDATOR, get_validator),
        ]

    def _route(self, operation: Operation, handle: Callable[[RequestContext], Awaitable[Response]]) -> Route:
        async def endpoint(request: Request) -> Response:
            await self.access.admit(request, operation.units)
            return await handle(await self._contexts.create(request, operation))

        return Route(operation.path, endpoint, methods=["GET"])
