"""What stands behind the Data API, and how its doors come to it while the daemon starts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, Protocol

from warpseal.api.data.page_tokens import EphemeralTokenKeys, TokenKeys
from warpseal.errors import StillStarting, WarpsealError
from warpseal.history.aliases import ChainAliases
from warpseal.history.chains import PrimaryChain, PrimaryChains
from warpseal.history.ports import NodeView, PriceSource, PrimaryNetworkIndex, UptimeSource
from warpseal.store.api_keys import ApiKey

PATIENCE_S: Final = 15.0


class KeyStore(TokenKeys, Protocol):
    """The keys of callers, and those that seal page tokens."""

    async def key_of(self, digest: bytes) -> ApiKey | None:
        """Return an API key by its digest, revoked or not. Raises StoreDown."""
        ...


class EphemeralKeys(EphemeralTokenKeys):
    """What a daemon without a store has: no API keys, and page tokens that end with the process."""

    async def key_of(self, digest: bytes) -> ApiKey | None:
        """Return None."""
        return None


@dataclass(frozen=True, slots=True)
class DataServices:
    """Everything behind the Data API. index: None where nothing is indexed; prices: None where there is no source.

    aliases: other names of blockchains. observed: None where nobody observes validators but the node. indexed: the
    chains that the index has, or is going to have.
    """

    network_id: int
    chains: PrimaryChains
    index: PrimaryNetworkIndex | None
    node: NodeView
    secrets: KeyStore
    prices: PriceSource | None = None
    aliases: ChainAliases | None = None
    observed: UptimeSource | None = None
    indexed: frozenset[PrimaryChain] = frozenset()


class DataOpening:
    """Closed until `open`; requests that come early wait for at most `patience_s`."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._services: DataServices | None = None
        self._is_open = asyncio.Event()
        self._reason: WarpsealError = StillStarting()

    def open(self, services: DataServices) -> None:
        """Let everybody in who waits."""
        self._services = services
        self._is_open.set()

    def unavailable(self, reason: WarpsealError) -> None:
        """Note why it is still closed, for those whose time runs out."""
        self._reason = reason

    async def services(self) -> DataServices:
        """Return the services as soon as they are there. Raises what keeps them away."""
        if self._services is None:
            try:
                async with asyncio.timeout(self._patience_s):
                    await self._is_open.wait()
            except TimeoutError:
                raise self._reason from None
        assert self._services is not None
        return self._services
