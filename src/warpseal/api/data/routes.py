"""The routes of the Data API and of the Metrics API, and access to them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from warpseal.api.data import operations
from warpseal.api.data.chain_endpoints import get_blockchain, list_blocks, list_chain_ids, list_transactions
from warpseal.api.data.evm_context import EvmContext
from warpseal.api.data.evm_endpoints import get_block, get_chain, list_chains, list_deployments
from warpseal.api.data.holder_endpoints import list_nft_holders, list_token_holders
from warpseal.api.data.nft_endpoints import (
    get_token,
    list_collectibles,
    list_erc1155_transfers,
    list_tokens,
    reindex,
)
from warpseal.api.data.primary_context import PrimaryNetworkContext
from warpseal.api.data.request_context import ContextFactory, RequestContext
from warpseal.api.data.services import DataServices
from warpseal.api.data.settings import DataApiSettings
from warpseal.api.data.staking_endpoints import get_forecast, get_validator, list_rewards
from warpseal.api.data.tps_endpoint import get_avg_tps
from warpseal.api.data.usage_endpoint import UsageAccess, get_usage
from warpseal.api.http.access import ApiAccess, MetricsApiAccess
from warpseal.api.http.settings import ApiSettings
from warpseal.api.http.startup_gate import StartupGate

Handle = Callable[[RequestContext], Awaitable[Response]]
Admit = Callable[[Request, int], Awaitable[None]]
"""Counts a request that costs so many compute units, or raises a WarpsealError."""


class DataApi:
    """The Data API and the Metrics API, for the API port to mount. Requests wait at `gate` for the services.

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
        usage_access: UsageAccess | None = None,
    ) -> None:
        self.settings = data
        self.access = ApiAccess(gate, data, monotonic)
        self._metrics_access = MetricsApiAccess(data, monotonic)
        self._usage_access = usage_access or UsageAccess()
        self._contexts = ContextFactory(gate, settings, data, now)

    def routes(self) -> list[Route]:
        """Return the routes of endpoints 3 to 16, and of the forecast."""
        return [
            self._route(operations.TRANSACTIONS, _of_primary(list_transactions)),
            self._route(operations.BLOCKS, _of_primary(list_blocks)),
            self._route(operations.BLOCKCHAIN, _of_primary(get_blockchain)),
            self._route(operations.CHAIN_IDS, _of_primary(list_chain_ids)),
            self._route(operations.REWARDS, _of_primary(list_rewards)),
            self._route(operations.VALIDATOR, _of_primary(get_validator)),
            self._route(operations.FORECAST, _of_primary(get_forecast)),
            self._route(operations.EVM_CHAINS, list_chains),
            self._route(operations.EVM_CHAIN, _of_chain(get_chain)),
            self._route(operations.EVM_BLOCK, _of_chain(get_block)),
            self._route(operations.ERC1155_TRANSFERS, _of_chain(list_erc1155_transfers)),
            self._route(operations.COLLECTIBLES, _of_chain(list_collectibles)),
            self._route(operations.DEPLOYMENTS, _of_chain(list_deployments)),
            self._route(operations.TOKENS, _of_chain(list_tokens)),
            self._route(operations.REINDEX, _of_chain(reindex)),
            self._route(operations.TOKEN, _of_chain(get_token)),
            self._route(operations.RPC_USAGE, get_usage, self._admit_usage),
        ]

    def metrics_routes(self) -> list[Route]:
        """Return the routes of endpoints 17 to 19."""
        admit = self._metrics_access.admit
        return [
            self._route(operations.AVG_TPS, get_avg_tps, admit),
            self._route(operations.TOKEN_HOLDERS, _of_chain(list_token_holders), admit),
            self._route(operations.NFT_HOLDERS, _of_chain(list_nft_holders), admit),
        ]

    async def _admit_usage(self, request: Request, units: int) -> None:
        await self.access.admit(request, units, needs_key=self._usage_access.needs_key)
        self._usage_access.check(request)

    def _route(self, operation: operations.Operation, handle: Handle, admit: Admit | None = None) -> Route:
        admit = admit or self.access.admit

        async def endpoint(request: Request) -> Response:
            await admit(request, operation.units)
            return await handle(await self._contexts.create(request, operation))

        return Route(operation.path, endpoint, methods=[operation.method])


def _of_primary(handle: Callable[[PrimaryNetworkContext], Awaitable[Response]]) -> Handle:
    """Return a handler of requests about the primary chains."""

    async def respond(context: RequestContext) -> Response:
        return await handle(PrimaryNetworkContext.of(context))

    return respond


def _of_chain(handle: Callable[[EvmContext], Awaitable[Response]]) -> Handle:
    """Return a handler of requests about the EVM chain that the path names."""

    async def respond(context: RequestContext) -> Response:
        return await handle(await EvmContext.of(context))

    return respond
