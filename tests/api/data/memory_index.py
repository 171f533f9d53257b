"""An index of the primary chains in memory: the plainest implementation of the API's queries."""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

from tests.api.data.values import (
    Block,
    CTransaction,
    PTransaction,
    Transaction,
    Utxo,
    block_resource,
    resource_of,
)
from warpseal.chains.ids import Address
from warpseal.index.database import index_url, reading_index, writing_index
from warpseal.index.read_session import ReadSession
from warpseal.index.settings import IndexSettings
from warpseal.resources import transactions as resources
from warpseal.resources.base import SortOrder
from warpseal.resources.blocks import Blockchain, PrimaryNetworkBlock
from warpseal.resources.chains import PUBLIC_CHAINS, PrimaryChain
from warpseal.resources.interfaces import Connectivity, ObservedUptime
from warpseal.resources.outputs import Asset
from warpseal.resources.progress import ChainProgress
from warpseal.resources.queries import (
    BlockQuery,
    Page,
    PageRequest,
    RewardQuery,
    TimeRange,
    TransactionQuery,
    ValidationQuery,
)
from warpseal.resources.text import NetworkText
from warpseal.resources.transactions import (
    ActiveState,
    CompletedState,
    PendingState,
    RemovedState,
    Reward,
    Validation,
)
from warpseal.store.url import StoreUrl
from warpseal.warp.ids import ChainID, NodeID

P = TypeVar("P", bound=Page[Any])
T = TypeVar("T")
FUJI = NetworkText(5, PUBLIC_CHAINS[5])
MAX_UTXOS = 1_000
SEEN = Connectivity(99.5, 98.25, 1.5, 0.0, 2.0, "1.14.0")
_STATES: Mapping[str, type[Any]] = {
    "pending": PendingState,
    "active": ActiveState,
    "completed": CompletedState,
    "removed": RemovedState,
}


@dataclass
class MemoryIndex:
    """Everything in the order in which it happened."""

    chains: list[ChainProgress] = field(default_factory=list)
    txs: list[Transaction] = field(default_factory=list)
    all_blocks: list[Block] = field(default_factory=list)
    blockchains: list[Blockchain] = field(default_factory=list)
    all_rewards: list[Reward] = field(default_factory=list)
    all_validations: list[Validation] = field(default_factory=list)
    error: Exception | None = None
    damaged: str | None = None
    text: NetworkText = FUJI
    # Queries of rows read an index; the default one is empty.
    url: str | None = None

    def progress(self) -> Sequence[ChainProgress]:
        return self.chains

    def damage(self) -> str | None:
        return self.damaged

    async def transactions(
        self, query: TransactionQuery, page: PageRequest
    ) -> Page[resources.Transaction]:
        def matches(tx: Transaction) -> bool:
            return (
                tx.chain is query.chain
                and _within(tx.time, query.times)
                and (not query.kinds or tx.kind in query.kinds)
                and (not (query.addresses or query.evm_addresses) or _touches(tx, query))
                and (query.validation_id is None or query.validation_id in _validations_of(tx))
            )

        matching_page = self._page(
            self.txs, matches, query.order, page, lambda tx: len(tx.consumed) + len(tx.emitted)
        )
        return Page(
            tuple(resource_of(tx, self.text) for tx in matching_page.items), matching_page.next
        )

    async def blocks(self, query: BlockQuery, page: PageRequest) -> Page[PrimaryNetworkBlock]:
        def matches(block: Block) -> bool:
            return block.chain is query.chain and _within(block.time, query.times)

        matching_page = self._page(self.all_blocks, matches, SortOrder.DESC, page)
        return Page(
            tuple(block_resource(block) for block in matching_page.items), matching_page.next
        )

    async def blockchain(self, chain_id: ChainID) -> Blockchain | None:
        return next((chain for chain in self.blockchains if chain.chain_id == chain_id), None)

    async def chains_of(
        self, addresses: Sequence[Address], evm_addresses: Sequence[bytes]
    ) -> tuple[Mapping[Address, frozenset[PrimaryChain]], Mapping[bytes, frozenset[PrimaryChain]]]:
        return (
            {
                address: frozenset(tx.chain for tx in self.txs if address in _addresses_of(tx))
                for address in addresses
            },
            {
                account: frozenset(tx.chain for tx in self.txs if account in _accounts_of(tx))
                for account in evm_addresses
            },
        )

    async def rewards(self, query: RewardQuery, page: PageRequest) -> Page[Reward]:
        def matches(reward: Reward) -> bool:
            return (
                not query.addresses or not set(query.addresses).isdisjoint(reward.addresses)
            ) and (not query.node_ids or reward.node_id in query.node_ids)

        return self._page(self.all_rewards, matches, query.order, page)

    async def validations(self, query: ValidationQuery, page: PageRequest) -> Page[Validation]:
        def matches(one: Validation) -> bool:
            return one.node_id == query.node_id and (
                query.status is None or isinstance(one.state, _STATES[query.status])
            )

        return self._page(self.all_validations, matches, query.order, page)

    async def page(self, kind: str, query: Callable[[ReadSession], P]) -> P:
        if self.error is not None:
            raise self.error
        engine = reading_index(*_place(self.url or _empty_index()))
        with engine.connect() as connection:
            return query(ReadSession(connection))

    def _page(
        self,
        items: Sequence[T],
        matches: Callable[[T], bool],
        order: SortOrder,
        page: PageRequest,
        weight: Callable[[T], int] = lambda _: 0,
    ) -> Page[T]:
        """Positions are places in the list."""
        if self.error is not None:
            raise self.error
        places = [place for place, item in enumerate(items) if matches(item)]
        if order is SortOrder.DESC:
            places.reverse()
        if page.after is not None:
            (after,) = page.after
            assert isinstance(after, int)
            places = [
                place
                for place in places
                if (place < after if order is SortOrder.DESC else place > after)
            ]
        page_places = _first_page([(place, weight(items[place])) for place in places], page.size)
        more = len(page_places) < len(places)
        return Page(
            tuple(items[place] for place in page_places), (page_places[-1],) if more else None
        )


@cache
def _empty_index() -> str:
    """Return the URL of an index without blocks, which lasts as long as the process."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    url = f"sqlite:///{folder.name}/index.db"
    writing_index(*_place(url)).dispose()
    return url


def _place(url: str) -> tuple[StoreUrl, IndexSettings]:
    settings = IndexSettings(url=url)
    return index_url(settings, None), settings


def _first_page(places: Iterable[tuple[int, int]], size: int) -> list[int]:
    page_places: list[int] = []
    total = 0
    for place, weight in places:
        if len(page_places) == size or (page_places and total + weight > MAX_UTXOS):
            break
        page_places.append(place)
        total += weight
    return page_places


def _within(time: int, times: TimeRange) -> bool:
    return (times.since is None or times.since <= time) and (
        times.until is None or time <= times.until
    )


def _utxos_of(tx: Transaction) -> Sequence[Utxo]:
    return (*tx.consumed, *tx.emitted)


def _addresses_of(tx: Transaction) -> set[bytes]:
    return {address for utxo in _utxos_of(tx) for address in utxo.addresses}


def _accounts_of(tx: Transaction) -> set[bytes]:
    if not isinstance(tx, CTransaction):
        return set()
    return {evm_input.address for evm_input in tx.evm_inputs} | {
        evm_output.address for evm_output in tx.evm_outputs
    }


def _touches(tx: Transaction, query: TransactionQuery) -> bool:
    return not (
        _addresses_of(tx).isdisjoint(query.addresses)
        and _accounts_of(tx).isdisjoint(query.evm_addresses)
    )


def _validations_of(tx: Transaction) -> set[bytes]:
    return (
        {change.validation_id for change in tx.l1_changes}
        if isinstance(tx, PTransaction)
        else set()
    )


@dataclass
class MemoryNode:
    """The responses of a node."""

    blockchains: list[Blockchain] = field(default_factory=list)
    active: list[Validation] = field(default_factory=list)
    seen: Connectivity = SEEN
    error: Exception | None = None

    async def blockchain(self, chain_id: ChainID) -> Blockchain | None:
        if self.error is not None:
            raise self.error
        return next((chain for chain in self.blockchains if chain.chain_id == chain_id), None)

    async def validations(self, node_id: NodeID) -> Sequence[Validation]:
        if self.error is not None:
            raise self.error
        return [item for item in self.active if item.node_id == node_id]

    async def connectivity(self, node_id: NodeID) -> Connectivity:
        if self.error is not None:
            raise self.error
        return self.seen


@dataclass
class FixedReach:
    """What we observed ourselves, of validations that began at or after a moment."""

    seen: ObservedUptime
    since: int = 0

    async def reach(self, node_id: NodeID, since_unix_s: int) -> ObservedUptime | None:
        return self.seen if since_unix_s >= self.since else None


@dataclass
class FixedPrices:
    """Fixed prices of one asset, by currency."""

    asset: Asset
    by_currency: Mapping[str, str]

    async def price(self, asset: Asset, currency: str, at_unix_s: int) -> str | None:
        return self.by_currency.get(currency) if asset == self.asset else None
