"""The routes of the Data API and of the Metrics API, and access to them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from warpseal.api.data.chain_endpoints import get_blockchain, list_blocks, list_chain_ids, list_transactions
from warpseal.api.data.evm_context import EvmContext
from warpseal.api.data.evm_endpoints import get_block, get_chain, list_chains, list_deployments
from warpseal.api.data.holder_endpoints import list_nft_holders, list_token_holders
from warpseal.api.data.icm_endpoints import get_message, list_messages, list_messages_of_address
from warpseal.api.data.nft_endpoints import (
    get_token,
    list_collectibles,
    list_erc1155_transfers,
    list_tokens,
    reindex,
)
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
    ICM_MESSAGE,
    ICM_MESSAGES,
    ICM_MESSAGES_OF_ADDRESS,
    NFT_HOLDERS,
    REINDEX,
    REWARDS,
    RPC_USAGE,
    TELEPORTER_MESSAGE,
    TELEPORTER_MESSAGES,
    TELEPORTER_MESSAGES_OF_ADDRESS,
    TOKEN,
    TOKEN_HOLDERS,
    TOKENS,
    TRANSACTIONS,
    VALIDATOR,
    Operation,
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
        """Return the routes of endpoints 3 to 16, of the forecast and of ICM messages."""
        return [
            self._primary_route(TRANSACTIONS, list_transactions),
            self._primary_route(BLOCKS, list_blocks),
            self._primary_route(BLOCKCHAIN, get_blockchain),
            self._primary_route(CHAIN_IDS, list_chain_ids),
            self._primary_route(REWARDS, list_rewards),
            self._primary_route(VALIDATOR, get_validator),
            self._primary_route(FORECAST, get_forecast),
            self._route(EVM_CHAINS, list_chains),
            self._evm_route(EVM_CHAIN, get_chain),
            self._evm_route(EVM_BLOCK, get_block),
            self._evm_route(ERC1155_TRANSFERS, list_erc1155_transfers),
            self._evm_route(COLLECTIBLES, list_collectibles),
            self._evm_route(DEPLOYMENTS, list_deployments),
            self._evm_route(TOKENS, list_tokens),
            self._evm_route(REINDEX, reindex),
            self._evm_route(TOKEN, get_token),
            self._route(ICM_MESSAGES, list_messages),
            self._route(ICM_MESSAGE, get_message),
            self._route(ICM_MESSAGES_OF_ADDRESS, list_messages_of_address),
            self._route(TELEPORTER_MESSAGES, list_messages),
            self._route(TELEPORTER_MESSAGE, get_message),
            self._route(TELEPORTER_MESSAGES_OF_ADDRESS, list_messages_of_address),
            self._usage_route(),
        ]

    def metrics_routes(self) -> list[Route]:
        """Return the routes of endpoints 17 to 19."""
        return [
            self._metrics_route(AVG_TPS, get_avg_tps),
            self._metrics_route(TOKEN_HOLDERS, _of_chain(list_token_holders)),
            self._metrics_route(NFT_HOLDERS, _of_chain(list_nft_holders)),
        ]

    def _primary_route(
        self, operation: Operation, handle: Callable[[PrimaryNetworkContext], Awaitable[Response]]
    ) -> Route:
        async def respond(context: RequestContext) -> Response:
            return await handle(PrimaryNetworkContext.of(context))

        return self._route(operation, respond)

    def _evm_route(self, operation: Operation, handle: Callable[[EvmContext], Awaitable[Response]]) -> Route:
        return self._route(operation, _of_chain(handle))

    def _metrics_route(self, operation: Operation, handle: Callable[[RequestContext], Awaitable[Response]]) -> Route:
        async def endpoint(request: Request) -> Response:
            await self._metrics_access.admit(request, operation.units)
            return await handle(await self._contexts.create(request, operation))

        return Route(operation.path, endpoint, methods=[operation.method])

    def _usage_route(self) -> Route:
        async def endpoint(request: Request) -> Response:
            await self.access.admit(request, RPC_USAGE.units, needs_key=self._usage_access.needs_key)
            self._usage_access.check(request)
            return await get_usage(await self._contexts.create(request, RPC_USAGE))

        return Route(RPC_USAGE.path, endpoint, methods=[RPC_USAGE.method])

    def _route(self, operation: Operation, handle: Callable[[RequestContext], Awaitable[Response]]) -> Route:
        async def endpoint(request: Request) -> Response:
            await self.access.admit(request, operation.units)
            return await handle(await self._contexts.create(request, operation))

        return Route(operation.path, endpoint, methods=[operation.method])


def _of_chain(handle: Callable[[EvmContext], Awaitable[Response]]) -> Callable[[RequestContext], Awaitable[Response]]:
    """Return a handler of requests about the EVM chain that the path names."""

    async def respond(context: RequestContext) -> Response:
        return await handle(await EvmContext.of(context))

    return respond
