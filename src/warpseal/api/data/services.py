"""The services of the Data API."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, field

from warpseal.api.data.evm_chains import EvmChainDirectory
from warpseal.api.http.access import CallerKeys
from warpseal.api.http.startup_gate import StartupGate
from warpseal.events.feed import EventFeed
from warpseal.resources.aliases import ChainAliases
from warpseal.resources.chains import PrimaryChain, PrimaryChains
from warpseal.resources.interfaces import AssetPrices, NodeView, PrimaryNetworkIndex, UptimeSource
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


class GatedKeys:
    """The API keys of the key store; a lookup waits for the store while the daemon starts."""

    def __init__(self, gate: StartupGate[DataServices]) -> None:
        self._gate = gate

    async def find_key(self, digest: bytes) -> ApiKey | None:
        """Return an API key by its digest. Raises StillStarting, StoreDown."""
        services = await self._gate.wait()
        return await services.key_store.find_key(digest)


class DataServices(Struct, frozen=True):
    """The services of the Data API.

    index: None if nothing is indexed; prices: None without a source.

    aliases: other names of blockchains.
    uptime_source: None if only the node observes validators.
    indexed: the chains that the index has, or is going to have.
    evm: the EVM chains.
    metrics_database: None if there is none.
    usage: None if it is not recorded.
    forecasts: None without validators, as in benchmarks.
    events: None without a store.
    icm: None without EVM chains.
    signing_blocks: None in benchmarks.
    """

    network_id: int
    chains: PrimaryChains
    index: PrimaryNetworkIndex | None
    node: NodeView
    key_store: KeyStore
    prices: AssetPrices | None = None
    aliases: ChainAliases | None = None
    uptime_source: UptimeSource | None = None
    indexed: frozenset[PrimaryChain] = frozenset()
    evm: EvmChainDirectory = field(default_factory=EvmChainDirectory)
    metrics_database: MetricsDatabase | None = None
    usage: UsageSource | None = None
    forecasts: ForecastService | None = None
    events: EventFeed | None = None
    icm: MessageObstacles | None = None
    signing_blocks: SigningBlocks | None = None

    @property
    def is_mainnet(self) -> bool:
        """Whether the network is mainnet, whose id is 1."""
        return self.network_id == 1
