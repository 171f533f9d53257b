"""The reader of the index: queries run in a thread, the progress of chains is in memory."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

from msgspec.structs import replace

from warpseal.chains.ids import Address
from warpseal.index import block_reader, staking_reader, tx_reader
from warpseal.index.checkpoint import ProgressRow, decode_status
from warpseal.index.database import MIGRATIONS
from warpseal.index.errors import IndexDamaged
from warpseal.index.keys import CHAINS
from warpseal.index.read_session import ReadSession, ReplicatedReader
from warpseal.index.settings import IndexSettings
from warpseal.index.validator_sets import ValidatorSetReader
from warpseal.resources.blocks import Blockchain, PrimaryNetworkBlock
from warpseal.resources.chains import PrimaryChain
from warpseal.resources.progress import NOT_BEGUN, ChainProgress
from warpseal.resources.queries import (
    BlockQuery,
    Page,
    PageRequest,
    RewardQuery,
    TransactionQuery,
    ValidationQuery,
)
from warpseal.resources.text import NetworkText
from warpseal.resources.transactions import Reward, Transaction, Validation
from warpseal.store.errors import StoreDown
from warpseal.store.url import StoreUrl
from warpseal.warp.ids import ChainID

log = logging.getLogger(__name__)

P = TypeVar("P", bound=Page[Any])
T = TypeVar("T")

_FAILURES_UNTIL_WARNING: Final = 2


class Index:
    """Reads an index that another process writes.

    `async with` opens and closes it; `run` keeps the freshness current.

    text: spells ids and addresses in transactions, which cannot be read before it is set.
    now: unix seconds. validator_sets: the sets of all subnets.
    """

    def __init__(
        self,
        url: StoreUrl,
        text: NetworkText | None,
        settings: IndexSettings,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.text = text
        self._settings = settings
        self._now = now
        # Signing reads with threads and a queue of its own: no number of pages keeps it from the
        # index.
        half = replace(settings, cache_bytes=settings.cache_bytes // 2)
        self._reader = ReplicatedReader(url, half, MIGRATIONS, _read_heights)
        self._signing_reader = ReplicatedReader(
            url, half, MIGRATIONS, _read_heights, self._reader.damage
        )
        self.validator_sets = ValidatorSetReader(self._signing_reader)
        self._progress: tuple[ChainProgress, ...] = ()
        self._page_counts: dict[PrimaryChain, Counter[str]] = {}

    async def __aenter__(self) -> Index:
        with suppress(StoreDown):
            await self.refresh()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reader.close()
        self._signing_reader.close()

    async def run(self) -> None:
        """Refresh the progress of the chains periodically, until cancelled."""
        failures = 0
        while True:
            # Until the indexer has created the index, a failure to read it is no news; nor is one
            # while it is created.
            exists = self._reader.exists
            try:
                await self.refresh()
            except IndexDamaged:
                pass  # It is logged already.
            except StoreDown as error:
                failures = failures + 1 if exists and not self._reader.is_empty else 0
                if failures == _FAILURES_UNTIL_WARNING:
                    log.warning("the index cannot be read", extra={"reason": error.reason})
            else:
                failures = 0
            await asyncio.sleep(self._settings.refresh_s)

    async def refresh(self) -> None:
        """Load the progress of the chains. Raises StoreDown."""
        before, chains = self._progress, await self._reader.read(_read_progress)
        self._reader.damage.forget()
        # An old report means that the indexer is stopped, or reaches no node.
        oldest = self._now() - self._settings.node_height_ttl_s
        progress = []
        for chain in chains:
            is_old = chain.height is not None and chain.reported_at < oldest
            progress.append(replace(chain, is_node_behind=True) if is_old else chain)
        self._progress = tuple(progress)
        heights = {chain.chain: _height(chain) for chain in self._progress}
        if any(heights.get(chain.chain, -1) < _height(chain) for chain in before):
            # The indexer rebuilds the rows: keys have another meaning now.
            self._reader.cache.clear()
            self._signing_reader.cache.clear()

    def progress(self) -> Sequence[ChainProgress]:
        """Return the progress of each chain that has a block or a status, in the order P, X, C."""
        return self._progress

    def damage(self) -> str | None:
        """Return why the index is damaged; None if it is not, as far as is known."""
        return self._reader.damage.reason

    def page_counts(self) -> Mapping[PrimaryChain, Mapping[str, int]]:
        """Return the number of pages requested since the start, by chain and kind of items."""
        return self._page_counts

    async def transactions(self, query: TransactionQuery, page: PageRequest) -> Page[Transaction]:
        """Return transactions in order; a page ends early when its outputs reach 1,000.

        Raises StoreDown.
        """
        text = self.text
        assert text is not None
        return await self.page(
            "transactions",
            lambda session: tx_reader.transactions(session, text, query, page),
            query.chain,
        )

    async def blocks(self, query: BlockQuery, page: PageRequest) -> Page[PrimaryNetworkBlock]:
        """Return blocks, newest first. Raises StoreDown."""
        return await self.page(
            "blocks", lambda session: block_reader.blocks(session, query, page), query.chain
        )

    async def blockchain(self, chain_id: ChainID) -> Blockchain | None:
        """Return a blockchain of any subnet, None if the P-Chain has none with this id.

        Raises StoreDown.
        """
        return await self._reader.read(lambda session: block_reader.blockchain(session, chain_id))

    async def chains_of(
        self, addresses: Sequence[Address], evm_addresses: Sequence[bytes]
    ) -> tuple[Mapping[Address, frozenset[PrimaryChain]], Mapping[bytes, frozenset[PrimaryChain]]]:
        """Return the indexed chains that addresses and accounts have touched; none: left out.

        Raises StoreDown.
        """
        return await self._reader.read(
            lambda session: block_reader.chains_of(session, addresses, evm_addresses)
        )

    async def rewards(self, query: RewardQuery, page: PageRequest) -> Page[Reward]:
        """Return rewards that were paid, in order. Raises StoreDown."""
        return await self.page(
            "rewards", lambda session: staking_reader.rewards(session, query, page)
        )

    async def validations(self, query: ValidationQuery, page: PageRequest) -> Page[Validation]:
        """Return the validations of a node, in order. Raises StoreDown."""
        return await self.page(
            "validations", lambda session: staking_reader.validations(session, query, page)
        )

    async def read(self, query: Callable[[ReadSession], T]) -> T:
        """Return the result of a query of signing in one snapshot. Raises StoreDown."""
        return await self._signing_reader.read(query)

    async def page(
        self, kind: str, query: Callable[[ReadSession], P], chain: PrimaryChain = PrimaryChain.P
    ) -> P:
        """Return a page that a query reads in one snapshot, and count it. Raises StoreDown.

        kind: kind of the items.
        chain: chain that has the items.
        """
        self._page_counts.setdefault(chain, Counter())[kind] += 1
        return await self._reader.read(query)


def _height(chain: ChainProgress) -> int:
    return -1 if chain.height is None else chain.height


def _read_heights(session: ReadSession) -> Mapping[str, int]:
    """Return the height of each primary chain, -1 before its first block."""
    heights = dict(session.rows("SELECT chain, height FROM chains"))
    return {chain.value: heights.get(number, -1) for number, chain in enumerate(CHAINS)}


def _read_progress(session: ReadSession) -> tuple[ChainProgress, ...]:
    """Return the progress of each chain that has a block or a status, in the order P, X, C."""
    rows = session.rows("SELECT chain, body FROM chain_status")
    statuses = {number: decode_status(body) for number, body in rows}
    rows = session.rows(
        "SELECT chain, height, time, first_height, block_id FROM chains WHERE height >= 0"
    )
    blocks = {number: _BlockRow(*row) for number, *row in rows}
    return tuple(
        _combine(chain, blocks.get(number), statuses.get(number))
        for number, chain in enumerate(CHAINS)
        if number in blocks or number in statuses
    )


class _BlockRow(NamedTuple):
    """The newest indexed block of a chain, and the height of its first one."""

    height: int
    time: int
    first_height: int
    block_id: bytes


def _combine(
    chain: PrimaryChain, block: _BlockRow | None, status: ProgressRow | None
) -> ChainProgress:
    if status is None:
        progress = ChainProgress(chain=chain.value, waiting=NOT_BEGUN)
    else:
        progress = status.as_progress()
    if block is None:
        return progress
    return replace(
        progress,
        # A damaged row may hold text in a column of numbers, which must not reach a caller's
        # arithmetic.
        first_height=int(block.first_height),
        height=block.height,
        block_id=bytes(block.block_id),
        block_time=int(block.time),
        node_height=max(block.height, progress.node_height or 0),
    )
