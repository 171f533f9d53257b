"""The Data API over an index in memory, served on loopback."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import aiohttp
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.types import ASGIApp

from tests.api.data import samples
from tests.api.data.memory_index import MemoryIndex, MemoryNode
from tests.api.fixtures import SETTINGS, serving
from warpseal.api.data.endpoint_needs import EndpointNeeds, KeyStore
from warpseal.api.data.evm_chains import EvmChainDirectory
from warpseal.api.data.network import AvalancheNetwork
from warpseal.api.data.routes import DataApi
from warpseal.api.data.settings import DataApiSettings
from warpseal.api.http.access import UsageAccess
from warpseal.api.http.cors import CorsMiddleware
from warpseal.api.http.errors import NotFound
from warpseal.api.http.middleware import ErrorMiddleware, RequestLog
from warpseal.api.http.settings import ApiSettings
from warpseal.api.http.startup_gate import StartupGate
from warpseal.events.feed import EventFeed
from warpseal.icm.obstacles import MessageObstacles
from warpseal.metrics.registry import Metrics
from warpseal.resources.aliases import ChainAliases
from warpseal.resources.chains import PrimaryChain
from warpseal.resources.interfaces import AssetPrices, UptimeSource
from warpseal.store.api_key import ApiKey
from warpseal.store.database import Database
from warpseal.store.settings import StoreSettings
from warpseal.store.signing_blocks import SigningBlocks
from warpseal.store.url import OFF
from warpseal.usage.database import MetricsDatabase
from warpseal.usage.source import UsageSource
from warpseal.validators.forecast.service import ForecastService

DATA = DataApiSettings()
NETWORK = "/v1/networks/fuji"
P_TXS = NETWORK + "/blockchains/p-chain/transactions"
P_BLOCKS = NETWORK + "/blockchains/p-chain/blocks"


@dataclass
class MemoryKeyStore:
    """Keys in memory."""

    keys: dict[bytes, ApiKey] = field(default_factory=dict)
    sealing: tuple[bytes, ...] = (b"\x11" * 32,)
    error: Exception | None = None
    looked_up: int = 0

    async def token_keys(self) -> tuple[bytes, ...]:
        return self.sealing

    async def find_key(self, digest: bytes) -> ApiKey | None:
        self.looked_up += 1
        if self.error is not None:
            raise self.error
        return self.keys.get(digest)


@dataclass
class Clock:
    """A clock that a test sets."""

    now: float = samples.NOW

    def __call__(self) -> float:
        return self.now


@dataclass
class DataApiSetup:
    """An API with everything behind it.

    network_id: None means that it is not known yet.
    """

    settings: ApiSettings = SETTINGS
    data: DataApiSettings = DATA
    network_id: int = samples.NETWORK_ID
    index: MemoryIndex | None = field(
        default_factory=lambda: MemoryIndex(chains=list(samples.FRESH))
    )
    node: MemoryNode = field(default_factory=MemoryNode)
    key_store: KeyStore = field(default_factory=MemoryKeyStore)
    prices: AssetPrices | None = None
    uptime_source: UptimeSource | None = None
    clock: Clock = field(default_factory=Clock)
    is_open: bool = True
    indexed: frozenset[PrimaryChain] = frozenset()
    evm: EvmChainDirectory = field(default_factory=EvmChainDirectory)
    metrics: MetricsDatabase | None = None
    usage: UsageSource | None = None
    usage_access: UsageAccess = field(default_factory=UsageAccess)
    aliases: ChainAliases = field(default_factory=ChainAliases)
    forecasts: ForecastService | None = None
    events: EventFeed | None = None
    icm: MessageObstacles | None = None
    signing_blocks: SigningBlocks = field(
        default_factory=lambda: SigningBlocks(Database(StoreSettings(url=OFF)))
    )
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def app(self) -> ASGIApp:
        gate = StartupGate[EndpointNeeds](timeout_s=0.05)
        if self.is_open:
            gate.open(self.needs())
        api = DataApi(
            gate,
            self.settings,
            self.data,
            self.clock,
            self.clock,
            self.usage_access,
            stopping=self.stopping,
        )
        routes = [*api.routes(), *api.metrics_routes()]
        return Starlette(
            routes=routes,
            middleware=[
                Middleware(
                    RequestLog,
                    metrics=Metrics(),
                    paths={route.endpoint: route.path for route in routes},
                ),
                Middleware(CorsMiddleware, settings=self.settings),
                Middleware(ErrorMiddleware),
            ],
            exception_handlers={404: _no_such_route},
        )

    def needs(self) -> EndpointNeeds:
        network = AvalancheNetwork(
            self.network_id, samples.CHAINS, self.node, self.aliases, self.index, self.indexed
        )
        return EndpointNeeds(
            network=network,
            evm=self.evm,
            key_store=self.key_store,
            signing_blocks=self.signing_blocks,
            metrics_database=self.metrics,
            prices=self.prices,
            uptimes=self.uptime_source,
            forecasts=self.forecasts,
            obstacles=self.icm,
            usage=self.usage,
            feed=self.events,
        )

    def with_settings(self, **changes: Any) -> DataApiSetup:
        return dataclasses.replace(self, settings=replace(self.settings, **changes))

    def with_data(self, **changes: Any) -> DataApiSetup:
        return dataclasses.replace(self, data=replace(self.data, **changes))


async def _no_such_route(request: Request, error: Exception) -> NoReturn:
    raise NotFound("no such path")


@asynccontextmanager
async def client_of(setup: DataApiSetup, **options: Any) -> AsyncIterator[aiohttp.ClientSession]:
    """Serve a setup and talk to it."""
    async with (
        serving(setup.app(), setup.settings) as server,
        aiohttp.ClientSession(server.url, **options) as client,
    ):
        yield client


async def get(setup: DataApiSetup, path: str, status: int = 200, **params: Any) -> Any:
    """Ask once and return the decoded body; the status must be `status`."""
    async with client_of(setup) as client, client.get(path, params=params) as response:
        assert response.status == status, await response.text()
        return await response.json()


def indexed(**parts: Any) -> DataApiSetup:
    """A setup whose index holds these."""
    return DataApiSetup(index=MemoryIndex(chains=list(samples.FRESH), **parts))
