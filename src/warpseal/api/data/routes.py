"""The routes of the Data API and of the Metrics API, and access to them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from warpseal.api.data import operations
from warpseal.api.data.services import DataServices
from warpseal.api.data.settings import DataApiSettings
from warpseal.api.http.access import ApiAccess, UsageAccess, require_token
from warpseal.api.http.event_stream import EventStreams
from warpseal.api.http.settings import ApiSettings
from warpseal.api.http.startup_gate import StartupGate
from warpseal.runtime.lazy import LazyModule

if TYPE_CHECKING:
    from warpseal.api.data import (
        chain_endpoints,
        event_endpoints,
        evm_context,
        evm_endpoints,
        icm_endpoints,
        metrics_endpoints,
        primary_context,
        request_context,
        signing_block_endpoints,
        staking_endpoints,
        usage_endpoint,
    )
else:
    chain_endpoints = LazyModule("warpseal.api.data.chain_endpoints")
    event_endpoints = LazyModule("warpseal.api.data.event_endpoints")
    evm_context = LazyModule("warpseal.api.data.evm_context")
    evm_endpoints = LazyModule("warpseal.api.data.evm_endpoints")
    icm_endpoints = LazyModule("warpseal.api.data.icm_endpoints")
    metrics_endpoints = LazyModule("warpseal.api.data.metrics_endpoints")
    primary_context = LazyModule("warpseal.api.data.primary_context")
    request_context = LazyModule("warpseal.api.data.request_context")
    signing_block_endpoints = LazyModule("warpseal.api.data.signing_block_endpoints")
    staking_endpoints = LazyModule("warpseal.api.data.staking_endpoints")
    usage_endpoint = LazyModule("warpseal.api.data.usage_endpoint")

C = TypeVar("C")
FindHandler = Callable[[], Callable[[C], Awaitable[Response]]]
"""Returns the handler of requests with a context C; the first request loads its module."""
Admit = Callable[[Request, int], Awaitable[None]]
"""Counts a request that costs so many compute units, or raises a WarpsealError."""


class DataApi:
    """The Data API and the Metrics API, for the API port to mount. Requests wait at `gate` for the services.

    settings: of the CorsMiddleware that must wrap the app. access: guards other routes as well. now: unix seconds;
    monotonic: seconds that never go back. stopping: set when the daemon stops.
    """

    def __init__(
        self,
        gate: StartupGate[DataServices],
        settings: ApiSettings,
        data: DataApiSettings,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        usage_access: UsageAccess | None = None,
        stopping: asyncio.Event | None = None,
    ) -> None:
        self.settings = data
        self.access = ApiAccess(gate, data, monotonic)
        self._usage_access = usage_access or UsageAccess()
        self.gate = gate
        self._api_settings = settings
        self._now = now
        self._stopping = stopping or asyncio.Event()

    def routes(self) -> list[Route]:
        """Return the routes of endpoints 3 to 16, and those of forecast, ICM messages, events, webhooks and blocks."""
        return [
            self._route(operations.TRANSACTIONS, _of_primary(lambda: chain_endpoints.list_transactions)),
            self._route(operations.BLOCKS, _of_primary(lambda: chain_endpoints.list_blocks)),
            self._route(operations.BLOCKCHAIN, _of_primary(lambda: chain_endpoints.get_blockchain)),
            self._route(operations.CHAIN_IDS, _of_primary(lambda: chain_endpoints.list_chain_ids)),
            self._route(operations.REWARDS, _of_primary(lambda: staking_endpoints.list_rewards)),
            self._route(operations.VALIDATOR, _of_primary(lambda: staking_endpoints.get_validator)),
            self._route(operations.FORECAST, _of_primary(lambda: staking_endpoints.get_forecast)),
            self._route(operations.EVM_CHAINS, lambda: evm_endpoints.list_chains),
            self._route(operations.EVM_CHAIN, _of_chain(lambda: evm_endpoints.get_chain)),
            self._route(operations.EVM_BLOCK, _of_chain(lambda: evm_endpoints.get_block)),
            self._route(operations.ERC1155_TRANSFERS, _of_chain(lambda: evm_endpoints.list_erc1155_transfers)),
            self._route(operations.COLLECTIBLES, _of_chain(lambda: evm_endpoints.list_collectibles)),
            self._route(operations.DEPLOYMENTS, _of_chain(lambda: evm_endpoints.list_deployments)),
            self._route(operations.TOKENS, _of_chain(lambda: evm_endpoints.list_tokens)),
            self._route(operations.REINDEX, _of_chain(lambda: evm_endpoints.reindex)),
            self._route(operations.TOKEN, _of_chain(lambda: evm_endpoints.get_token)),
            self._route(operations.ICM_MESSAGES, lambda: icm_endpoints.list_messages),
            self._route(operations.ICM_MESSAGE, lambda: icm_endpoints.get_message),
            self._route(operations.ICM_MESSAGES_OF_ADDRESS, lambda: icm_endpoints.list_messages),
            self._route(operations.TELEPORTER_MESSAGES, lambda: icm_endpoints.list_messages),
            self._route(operations.TELEPORTER_MESSAGE, lambda: icm_endpoints.get_message),
            self._route(operations.TELEPORTER_MESSAGES_OF_ADDRESS, lambda: icm_endpoints.list_messages),
            self._route(operations.RPC_USAGE, lambda: usage_endpoint.get_usage, self._admit_usage),
            self._route(operations.EVENTS, lambda: partial(event_endpoints.listen, self.event_streams)),
            self._route(operations.WEBHOOKS, lambda: event_endpoints.list_or_add_webhooks, self._admit_admin, "POST"),
            self._route(operations.WEBHOOK_TEST, lambda: event_endpoints.test_webhook, self._admit_admin),
            self._route(operations.WEBHOOK, lambda: event_endpoints.remove_webhook, self._admit_admin),
            self._route(
                operations.SIGNING_BLOCKS, lambda: signing_block_endpoints.list_or_add, self._admit_admin, "POST"
            ),
            self._route(operations.SIGNING_BLOCK, lambda: signing_block_endpoints.remove, self._admit_admin),
        ]

    def metrics_routes(self) -> list[Route]:
        """Return the routes of endpoints 17 to 19."""
        admit = self.access.admit_to_metrics_api
        return [
            self._route(operations.AVG_TPS, lambda: metrics_endpoints.get_avg_tps, admit),
            self._route(operations.TOKEN_HOLDERS, _of_chain(lambda: metrics_endpoints.list_token_holders), admit),
            self._route(operations.NFT_HOLDERS, _of_chain(lambda: metrics_endpoints.list_nft_holders), admit),
        ]

    @cached_property
    def _contexts(self) -> request_context.ContextFactory:
        return request_context.ContextFactory(self.gate, self._api_settings, self.settings, self._now)

    @cached_property
    def event_streams(self) -> EventStreams:
        """The streams of events, by gRPC as well."""
        return EventStreams(self._stopping, event_endpoints.MAX_LISTENERS, event_endpoints.MAX_LISTENERS_PER_CLIENT)

    async def _admit_usage(self, request: Request, units: int) -> None:
        await self.access.admit(request, units, needs_key=self._usage_access.needs_key)
        self._usage_access.check(request)

    async def _admit_admin(self, request: Request, units: int) -> None:
        await self.access.admit(request, units)
        require_token(request, self._usage_access.admin_token)

    def _route(
        self,
        operation: operations.Operation,
        find_handler: FindHandler[request_context.RequestContext],
        admit: Admit | None = None,
        *other_methods: str,
    ) -> Route:
        admit = admit or self.access.admit

        async def endpoint(request: Request) -> Response:
            await admit(request, operation.units)
            return await find_handler()(await self._contexts.create(request, operation))

        return Route(operation.path, endpoint, methods=[operation.method, *other_methods])


def _of_primary(
    find_handler: FindHandler[primary_context.PrimaryNetworkContext],
) -> FindHandler[request_context.RequestContext]:
    """Return a handler of requests about the primary chains."""

    async def respond(context: request_context.RequestContext) -> Response:
        return await find_handler()(primary_context.PrimaryNetworkContext.of(context))

    return lambda: respond


def _of_chain(find_handler: FindHandler[evm_context.EvmContext]) -> FindHandler[request_context.RequestContext]:
    """Return a handler of requests about the EVM chain that the path names."""

    async def respond(context: request_context.RequestContext) -> Response:
        return await find_handler()(await evm_context.EvmContext.of(context))

    return lambda: respond
