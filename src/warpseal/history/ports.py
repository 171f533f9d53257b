"""What callers may ask of an index of the primary chains, and of the node where there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from warpseal.chains.ids import Address
from warpseal.history.blocks import Blockchain, PrimaryNetworkBlock
from warpseal.history.chains import PrimaryChain
from warpseal.history.outputs import Asset
from warpseal.history.queries import BlockQuery, Page, PageRequest, RewardQuery, TransactionQuery, ValidationQuery
from warpseal.history.staking import Reward, Validation
from warpseal.history.transactions import Transaction
from warpseal.warp.ids import ChainID, NodeID


@dataclass(frozen=True, slots=True)
class ChainFreshness:
    """How far one chain is indexed. node_height: the node's tip as it last told. time: unix seconds of `height`.

    is_node_behind: the node is not bootstrapped, or behind a second one, so its own tip proves nothing.
    first_height: below it nothing is indexed. block_id: of the block at `height`, 32 bytes; None: not told.
    """

    chain: PrimaryChain
    height: int
    node_height: int
    time: int
    is_node_behind: bool = False
    first_height: int = 0
    block_id: bytes | None = None

    def lag_s(self, now: float) -> int:
        """Return the age of the newest indexed block in seconds; 0 where it is the node's newest, and believed."""
        if self.height >= self.node_height and not self.is_node_behind:
            return 0
        return max(0, int(now) - self.time)


class PrimaryNetworkIndex(Protocol):
    """The history of the chains that are indexed. Every query raises StoreDown when nothing can be read.

    Pages are stable: items that come later never shift what a position stands behind.
    """

    def freshness(self) -> Sequence[ChainFreshness]:
        """Tell how far each indexed chain is, in the order P, X, C; from memory, at once."""
        ...

    async def transactions(self, query: TransactionQuery, page: PageRequest) -> Page[Transaction]:
        """Return transactions in order; a page ends early when its outputs reach 1,000."""
        ...

    async def blocks(self, query: BlockQuery, page: PageRequest) -> Page[PrimaryNetworkBlock]:
        """Return blocks, newest first."""
        ...

    async def blockchain(self, chain_id: ChainID) -> Blockchain | None:
        """Return a blockchain of any subnet, None where the P-Chain knows none of this id."""
        ...

    async def chains_of(
        self, addresses: Sequence[Address], evm_addresses: Sequence[bytes]
    ) -> tuple[Mapping[Address, frozenset[PrimaryChain]], Mapping[bytes, frozenset[PrimaryChain]]]:
        """Return the indexed chains that each address, and each account, has touched; none: left out or empty."""
        ...

    async def rewards(self, query: RewardQuery, page: PageRequest) -> Page[Reward]:
        """Return rewards that were paid, in order."""
        ...

    async def validations(self, query: ValidationQuery, page: PageRequest) -> Page[Validation]:
        """Return the validations of a node, in order."""
        ...


@dataclass(frozen=True, slots=True)
class Connectivity:
    """How a validator is reached, in percent of 0..100. benched: of the requests of each chain. version: its node's."""

    uptime: float
    reachability: float
    benched_p: float = 0.0
    benched_x: float = 0.0
    benched_c: float = 0.0
    version: str | None = None


@dataclass(frozen=True, slots=True)
class ObservedUptime:
    """How a validator was reached by ourselves, in percent of 0..100 of the time in which we observed it."""

    uptime: float
    reachability: float


class UptimeSource(Protocol):
    """What we observed ourselves."""

    async def reach(self, node_id: NodeID, since_unix_s: int) -> ObservedUptime | None:
        """Tell how a validator was reached since then; None where we did not observe it for long enough."""
        ...


class NodeView(Protocol):
    """What the node can tell by itself. Both raise NodeUnavailable."""

    async def blockchain(self, chain_id: ChainID) -> Blockchain | None:
        """Return a blockchain without the block that created it."""
        ...

    async def validations(self, node_id: NodeID) -> Sequence[Validation]:
        """Return the active validations of a node."""
        ...

    async def connectivity(self, node_id: NodeID) -> Connectivity:
        """Tell how a validator is reached."""
        ...


class AssetPrices(Protocol):
    """What assets were worth. Anybody can call an asset AVAX: go by its id."""

    async def price(self, asset: Asset, currency: str, at_unix_s: int) -> str | None:
        """Return the price of one whole unit in a currency (three lower-case letters), decimal; None: not known."""
        ...
