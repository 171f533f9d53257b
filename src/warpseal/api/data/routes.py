"""The routes of the Data API and of the Metrics API, and access to them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from warpseal.api.data.operations import (
    AVG_TPS,
    BLOCKCHAIN,
    BLOCKS,
    CHAIN_IDS,
    COLLECTIBLES,
    DEPLOYMENTS,
    ERC1155_TRANSFERS,
    EVM_BLOCK,
    EVM_CHAIN,
    EVM_CHAINS,
    FORECAST,
    NFT_HOLDERS,
    REINDEX,
    REWARDS,
    RPC_USAGE,
    TOKEN,
    TOKEN_HOLDERS,
    TOKENS,
    TRANSACTIONS,
    VALIDATOR,
    Operation,
)
from warpseal.api.data.services import DataServices
from warpseal.api.data.settings import DataApiSettings
from warpseal.api.http.access import ApiAccess, MetricsApiAccess, UsageAccess
from warpseal.api.http.settings import ApiSettings
from warpseal.api.http.startup_gate import StartupGate
from warpseal.runtime.lazy import LazyModule

if TYPE_CHECKING:
    from warpseal.api.data import (
        chain_endpoints,
        evm_context,
        evm_endpoints,
        holder_endpoints,
        nft_endpoints,
        primary_context,
        request_context,
        staking_endpoints,
        tps_endpoint,
        usage_endpoint,
    )
else:
    chain_endpoints = LazyModule("warpseal.api.data.chain_endpoints")
    evm_context = LazyModule("warpseal.api.data.evm_context")
    evm_endpoints = LazyModule("warpseal.api.data.evm_endpoints")
    holder_endpoints = LazyModule("warpseal.api.data.holder_endpoints")
    nft_endpoints = LazyModule("warpseal.api.data.nft_endpoints")
    primary_context = LazyModule("warpseal.api.data.primary_context")
    request_context = LazyModule("warpseal.api.data.request_context")
    staking_endpoints = LazyModule("warpseal.api.data.staking_endpoints")
    tps_endpoint = LazyModule("warpseal.api.data.tps_endpoint")
    usage_endpoint = LazyModule("warpseal.api.data.usage_endpoint")

C = TypeVar("C")
FindHandler = Callable[[], Callable[[C], Awaitable[Response]]]
"""Returns the handler of requests with a context C. The first request loads its module."""


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
        self._gate = gate
        self._api_settings = settings
        self._now = now

    def routes(self) -> list[Route]:
        """Return the routes of endpoints 3 to 16, and of the forecast."""
        return [
            self._primary_route(TRANSACTIONS, lambda: chain_endpoints.list_transactions),
            self._primary_route(BLOCKS, lambda: chain_endpoints.list_blocks),
            self._primary_route(BLOCKCHAIN, lambda: chain_endpoints.get_blockchain),
            self._primary_route(CHAIN_IDS, lambda: chain_endpoints.list_chain_ids),
            self._primary_route(REWARDS, lambda: staking_endpoints.list_rewards),
            self._primary_route(VALIDATOR, lambda: staking_endpoints.get_validator),
            self._primary_route(FORECAST, lambda: staking_endpoints.get_forecast),
            self._route(EVM_CHAINS, lambda: evm_endpoints.list_chains),
            self._evm_route(EVM_CHAIN, lambda: evm_endpoints.get_chain),
            self._evm_route(EVM_BLOCK, lambda: evm_endpoints.get_block),
            self._evm_route(ERC1155_TRANSFERS, lambda: nft_endpoints.list_erc1155_transfers),
            self._evm_route(COLLECTIBLES, lambda: nft_endpoints.list_collectibles),
            self._evm_route(DEPLOYMENTS, lambda: evm_endpoints.list_deployments),
            self._evm_route(TOKENS, lambda: nft_endpoints.list_tokens),
            self._evm_route(REINDEX, lambda: nft_endpoints.reindex),
            self._evm_route(TOKEN, lambda: nft_endpoints.get_token),
            self._usage_route(),
        ]

    def metrics_routes(self) -> list[Route]:
        """Return the routes of endpoints 17 to 19."""
        return [
            self._metrics_route(AVG_TPS, lambda: tps_endpoint.get_avg_tps),
            self._metrics_route(TOKEN_HOLDERS, _of_chain(lambda: holder_endpoints.list_token_holders)),
            self._metrics_route(NFT_HOLDERS, _of_chain(lambda: holder_endpoints.list_nft_holders)),
        ]

    @cached_property
    def _contexts(self) -> request_context.ContextFactory:
        return request_context.ContextFactory(self._gate, self._api_settings, self.settings, self._now)

    def _primary_route(
        self, operation: Operation, find_handler: FindHandler[primary_context.PrimaryNetworkContext]
    ) -> Route:
        async def respond(context: request_context.RequestContext) -> Response:
            return await find_handler()(primary_context.PrimaryNetworkContext.of(context))

        return self._route(operation, lambda: respond)

    def _evm_route(self, operation: Operation, find_handler: FindHandler[evm_context.EvmContext]) -> Route:
        return self._route(operation, _of_chain(find_handler))

    def _metrics_route(self, operation: Operation, find_handler: FindHandler[request_context.RequestContext]) -> Route:
        async def endpoint(request: Request) -> Response:
            await self._metrics_access.admit(request, operation.units)
            return await find_handler()(await self._contexts.create(request, operation))

        return Route(operation.path, endpoint, methods=[operation.method])

    def _usage_route(self) -> Route:
        async def endpoint(request: Request) -> Response:
            await self.access.admit(request, RPC_USAGE.units, needs_key=self._usage_access.needs_key)
            self._usage_access.check(request)
            return await usage_endpoint.get_usage(await self._contexts.create(request, RPC_USAGE))

        return Route(RPC_USAGE.path, endpoint, methods=[RPC_USAGE.method])

    def _route(self, operation: Operation, find_handler: FindHandler[request_context.RequestContext]) -> Route:
        async def endpoint(request: Request) -> Response:
            await self.access.admit(request, operation.units)
            return await find_handler()(await self._contexts.create(request, operation))

        return Route(operation.path, endpoint, methods=[operation.method])


def _of_chain(find_handler: FindHandler[evm_context.EvmContext]) -> FindHandler[request_context.RequestContext]:
    """Return a handler of requests about the EVM chain that the path names."""

    async def respond(context: request_context.RequestContext) -> Response:
        return await find_handler()(await evm_context.EvmContext.of(context))

    return lambda: respond
