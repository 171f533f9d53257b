"""The services behind the Data API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from warpseal.api.data.page_tokens import EphemeralTokenKeys, TokenKeys
from warpseal.history.aliases import ChainAliases
from warpseal.history.chains import PrimaryChain, PrimaryChains
from warpseal.history.ports import NodeView, PriceSource, PrimaryNetworkIndex, UptimeSource
from warpseal.store.api_key import ApiKey


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
