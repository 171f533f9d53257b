"""The three primary chains: their names, and their blockchain ids on a network.

Source of truth: avalanchego `genesis/` for the ids of mainnet and fuji; the P-Chain's id is the
same on every network.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct

from warpseal.warp.ids import P_CHAIN, ChainID, parse_id


class PrimaryChain(StrEnum):
    """One of the three chains that every node of the Primary Network runs."""

    P = "p-chain"
    X = "x-chain"
    C = "c-chain"


class PrimaryChains(Struct, frozen=True):
    """The blockchain ids of the X- and C-Chain of one network."""

    x: ChainID
    c: ChainID

    def id_of(self, chain: PrimaryChain) -> ChainID:
        """Return a chain's blockchain id."""
        return {PrimaryChain.P: P_CHAIN, PrimaryChain.X: self.x, PrimaryChain.C: self.c}[chain]

    def of_id(self, chain_id: bytes) -> PrimaryChain | None:
        """Return the chain with this id; None if it is no primary chain."""
        return next((chain for chain in PrimaryChain if self.id_of(chain) == chain_id), None)


def _chains(x: str, c: str) -> PrimaryChains:
    return PrimaryChains(ChainID(parse_id(x)), ChainID(parse_id(c)))


PUBLIC_CHAINS: Final[Mapping[int, PrimaryChains]] = {
    1: _chains(
        "2oYMBNV4eNHyqk2fjjV5nVQLDbtmNJzq5s3qs3Lo6ftnC6FByM",
        "2q9e4r6Mu3U68nU1fYjgbR6JvwrRx36CohpAX5UQxse55x1Q5",
    ),
    5: _chains(
        "2JVSBoinj9C2J33VntvzYtVJNZdN2NKiwwKjcumHUWEb5DbBrm",
        "yH8D7ThNJkxmtkuv2jgBa4P1Rn3Qpr4pPr7QYNfcdoS6k6HWp",
    ),
}
"""The chains by network ID; the chains of any other network follow from its genesis."""

PUBLIC_C_CHAIN_EVM_IDS: Final[Mapping[int, int]] = {1: 43114, 5: 43113}
"""The chain id of the C-Chain's EVM by network id."""
