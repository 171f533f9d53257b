"""The three primary chains: their names, their blockchain ids on a network, and how far each is
read and indexed.

Source of truth: avalanchego `genesis/` for the ids of mainnet and fuji; the P-Chain's id is the
same on every network.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import UNSET, Struct, UnsetType

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


class ChainFreshness(Struct, frozen=True):
    """How far one chain is indexed.

    node_height: the tip that the node reported last.
    time: unix seconds of `height`.

    is_node_behind: the node is not bootstrapped, or behind a second one, so its own tip proves
        nothing.
    first_height: no block below it is indexed.
    block_id: ID of the block at `height`, 32 bytes, if known.
    """

    chain: PrimaryChain
    height: int
    node_height: int
    time: int
    is_node_behind: bool = False
    first_height: int = 0
    block_id: bytes | None = None

    def lag_s(self, now: float) -> int:
        """Return the age of the newest indexed block in seconds; 0 if a node that is not behind has
        no newer one.
        """
        if self.height >= self.node_height and not self.is_node_behind:
            return 0
        return max(0, int(now) - self.time)


class IndexedChainState(Struct, frozen=True, kw_only=True, rename="camel"):
    """How far a chain is indexed.

    waiting: why it waits.
    stopped: why no more blocks are read.

    internal_height: of an EVM chain, the block up to which creations inside of transactions are
        complete.
    internal_gap: the first block that no node can trace.
    """

    height: str | UnsetType = UNSET
    node_height: str | UnsetType = UNSET
    lag_blocks: int | UnsetType = UNSET
    first_height: str | UnsetType = UNSET
    waiting: str | UnsetType = UNSET
    blocks_per_second: float | UnsetType = UNSET
    eta_seconds: int | UnsetType = UNSET
    stopped: str | UnsetType = UNSET
    stopped_at: str | UnsetType = UNSET
    internal_height: str | UnsetType = UNSET
    internal_gap: str | UnsetType = UNSET


class FollowerState(Struct, frozen=True, kw_only=True, rename="camel"):
    """How far the daemon has read the P-Chain for L1 transactions; unknown fields are left out.

    off: it does not read it.
    first_height: all blocks from there to `height` were read.
    target_height: the end of the backfill.
    backfilled: 0 to 1.
    leader: whether this daemon reads for all that share the store.
    stopped: why it reads no more blocks.
    waiting_for: nodes or store.
    """

    off: bool | UnsetType = UNSET
    height: str | UnsetType = UNSET
    node_height: str | UnsetType = UNSET
    lag_blocks: int | UnsetType = UNSET
    first_height: str | UnsetType = UNSET
    target_height: str | UnsetType = UNSET
    backfilled: float | UnsetType = UNSET
    blocks_per_second: float | UnsetType = UNSET
    eta_seconds: int | UnsetType = UNSET
    leader: bool | UnsetType = UNSET
    stopped: str | UnsetType = UNSET
    stopped_at: str | UnsetType = UNSET
    waiting_for: str | UnsetType = UNSET


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
"""Chains by network ID; the chains of any other network follow from its genesis."""

PUBLIC_C_CHAIN_EVM_IDS: Final[Mapping[int, int]] = {1: 43114, 5: 43113}
"""By network id: the chain id of the C-Chain's EVM."""
