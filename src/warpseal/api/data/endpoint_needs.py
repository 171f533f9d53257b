"""The objects that the endpoints of the Data API need of the daemon, and the keys among them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from warpseal.api.data.endpoints import EndpointRow
from warpseal.api.data.evm_chains import EvmChainDirectory
from warpseal.api.data.network import AvalancheNetwork
from warpseal.api.http.access import CallerKeys
from warpseal.events.feed import EventFeed
from warpseal.resources.interfaces import AssetPrices, UptimeSource
from warpseal.store.api_key import ApiKey

if TYPE_CHECKING:
    # The ports listen before the libraries of databases are loaded.
    from warpseal.icm.obstacles import MessageObstacles
    from warpseal.store.signing_blocks import SigningBlocks
    from warpseal.usage.database import MetricsDatabase
    from warpseal.usage.source import UsageSource
    from warpseal.validators.forecast.service import ForecastService


class KeyStore(CallerKeys, Protocol):
    """The API keys of callers, and the keys that sign page tokens."""

    async def token_keys(self) -> Sequence[bytes]:
        """Return the keys of 32 bytes: the first one signs, all of them verify. Raises StoreDown.

        They are the same for every daemon on one store, and after a restart.
        """


class EphemeralKeys:
    """The keys of a daemon without a store: no API keys, and a token key that lasts as long as the
    process.
    """

    def __init__(self) -> None:
        self._key = os.urandom(32)

    async def token_keys(self) -> Sequence[bytes]:
        """Return the one key."""
        return (self._key,)

    async def find_key(self, digest: bytes) -> ApiKey | None:
        """Return None."""
        return None


class EndpointNeeds(Struct, frozen=True):
    """An object for each name in the `needs` of rows, and those that contexts are made of.

    The gate of the Data API opens with it. Handlers do not see it: a handler takes the objects that
    its row names as arguments, so its signature says all that it reads beside the context.

    network, evm: Every context has both.
    key_store: Its keys admit callers and sign page tokens.
    metrics_database: The page tokens of the Metrics API are its rows; None if there is none.
    prices: None without a source of prices.
    uptimes: None if only the node observes validators.
    forecasts: None without validators.
    obstacles: The obstacles of ICM messages; None without EVM chains.
    usage: None if usage is not recorded.
    feed: The feed of the event log; None without a store.
    """

    network: AvalancheNetwork
    evm: EvmChainDirectory
    key_store: KeyStore
    signing_blocks: SigningBlocks
    metrics_database: MetricsDatabase | None = None
    prices: AssetPrices | None = None
    uptimes: UptimeSource | None = None
    forecasts: ForecastService | None = None
    obstacles: MessageObstacles | None = None
    usage: UsageSource | None = None
    feed: EventFeed | None = None

    def arguments(self, endpoint: EndpointRow) -> list[Any]:
        """Return the objects that the handler of a row takes behind its context."""
        return [getattr(self, name) for name in endpoint.needs]
