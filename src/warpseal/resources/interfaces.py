"""The interfaces of the Data API's sources: the index, the node, observed uptimes and prices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from warpseal.chains.ids import Address
from warpseal.resources.blocks import Blockchain, PrimaryNetworkBlock
from warpseal.resources.chains import PrimaryChain
from warpseal.resources.outputs import Asset
from warpseal.resources.progress import ChainProgress
from warpseal.resources.queries import (
    BlockQuery,
    Page,
    PageRequest,
    RewardQuery,
    TransactionQuery,
    ValidationQuery,
)
from warpseal.resources.transactions import Reward, Transaction, Validation
from warpseal.warp.ids import ChainID, NodeID

P = TypeVar("P", bound=Page[Any])


class PrimaryNetworkIndex(Protocol):
    """The history of the indexed chains. Every query raises StoreDown if the index cannot be read.

    Pages are stable: later items never shift earlier positions.
    """

    def progress(self) -> Sequence[ChainProgress]:
        """Return the progress, from memory, of each chain with a block or a status, in P, X, C."""

    def damage(self) -> str | None:
        """Return why the index is damaged; None if it is not, as far as is known."""

    async def transactions(self, query: TransactionQuery, page: PageRequest) -> Page[Transaction]:
        """Return transactions in order; a page ends early when its outputs reach 1,000."""

    async def blocks(self, query: BlockQuery, page: PageRequest) -> Page[PrimaryNetworkBlock]:
        """Return blocks, newest first."""

    async def blockchain(self, chain_id: ChainID) -> Blockchain | None:
        """Return a blockchain of any subnet, None if the P-Chain has none with this id."""

    async def chains_of(
        self, addresses: Sequence[Address], evm_addresses: Sequence[bytes]
    ) -> tuple[Mapping[Address, frozenset[PrimaryChain]], Mapping[bytes, frozenset[PrimaryChain]]]:
        """Return the indexed chains that each address and each account has touched.

        An address without any is left out or has an empty set.
        """

    async def rewards(self, query: RewardQuery, page: PageRequest) -> Page[Reward]:
        """Return rewards that were paid, in order."""

    async def validations(self, query: ValidationQuery, page: PageRequest) -> Page[Validation]:
        """Return the validations of a node, in order."""

    async def page(self, kind: str, query: Callable[[Any], P]) -> P:
        """Return a page that a query of `warpseal.index` reads in one snapshot, and count it.

        kind: name of the listed items of the P-Chain, under which the page is counted.
        """


class Connectivity(Struct, frozen=True):
    """The connectivity of a validator, in percent.

    benched_p, benched_x, benched_c: 100 if the node benches the validator for requests of that
        chain, else 0.
    version: the version of its node.
    """

    uptime: float
    reachability: float
    benched_p: float = 0.0
    benched_x: float = 0.0
    benched_c: float = 0.0
    version: str | None = None


class ObservedUptime(Struct, frozen=True):
    """The uptime of a validator as this daemon observed it, 0..100 percent of the observed time."""

    uptime: float
    reachability: float


class UptimeSource(Protocol):
    """The uptimes that this daemon observed."""

    async def reach(self, node_id: NodeID, since_unix_s: int) -> ObservedUptime | None:
        """Return the uptime of a validator since a time.

        Returns None if the validator was not observed for long enough.
        """


class NodeView(Protocol):
    """The replies of the node. All methods raise NodeUnavailable."""

    async def blockchain(self, chain_id: ChainID) -> Blockchain | None:
        """Return a blockchain without the block that created it."""

    async def validations(self, node_id: NodeID) -> Sequence[Validation]:
        """Return the active validations of a node."""

    async def connectivity(self, node_id: NodeID) -> Connectivity:
        """Return the connectivity of a validator."""


class AssetPrices(Protocol):
    """Prices of assets. Any asset can have the name AVAX, so implementations compare ids."""

    async def price(self, asset: Asset, currency: str, at_unix_s: int) -> str | None:
        """Return the decimal price of a whole unit; None if it is unknown.

        currency: three lower-case letters.
        """
