"""The index as callers ask it: every query one look in a reading thread, and how far the chains are from memory."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Final, TypeVar

import psycopg
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import SQLAlchemyError

from warpseal.chains.ids import Address
from warpseal.errors import StoreDown
from warpseal.history.blocks import Block, Blockchain
from warpseal.history.chains import PrimaryChain, PrimaryChains
from warpseal.history.ports import ChainFreshness
from warpseal.history.queries import BlockQuery, Page, PageRequest, RewardQuery, TransactionQuery, ValidationQuery
from warpseal.history.staking import Reward, Validation
from warpseal.history.transactions import Transaction
from warpseal.index import block_reader, staking_reader
from warpseal.index.checkpoint import ChainStatus, decode_status
from warpseal.index.database import MIGRATIONS, reading_index
from warpseal.index.key_streams import transaction_keys
from warpseal.index.keys import CHAINS
from warpseal.index.read_session import ReadCache, ReadSession
from warpseal.index.settings import MEBIBYTE, IndexSettings
from warpseal.index.tx_reader import TxReader
from warpseal.store.access import read_snapshot
from warpseal.store.migrate import read_version
from warpseal.store.reader import StoreReader
from warpseal.store.settings import StoreSettings
from warpseal.store.url import StoreKind, StoreUrl
from warpseal.warp.ids import ChainID

log = logging.getLogger(__name__)

T = TypeVar("T")
MOST_OUTPUTS: Final = 1_000
"""How many outputs the transactions of one page have together, unless it is a single one that has more."""

_READ_CACHE_BYTES: Final = 64 * MEBIBYTE


class Index:
    """Answers from an index that another process writes. `async with` opens and closes it; `run` keeps it fresh.

    now: unix seconds.
    """

    def __init__(
        self, url: StoreUrl, chains: PrimaryChains, settings: IndexSettings, now: Callable[[], float] = time.time
    ) -> None:
        self._url = url
        self._chains = chains
        self._settings = settings
        self._now = now
        self._engine: Engine = reading_index(url, settings)
        if url.kind is StoreKind.SQLITE:
            most_bytes = min(_READ_CACHE_BYTES, settings.cache_bytes // settings.readers)
            event.listen(self._engine.pool, "connect", _with_cache(most_bytes))
        bounds = StoreSettings(readers=settings.readers, max_queued_reads=settings.max_queued_reads)
        self._reader = StoreReader(self._engine, bounds, lambda: None, lambda error: url.redact(str(error)))
        self._memory = ReadCache()
        self._freshness: tuple[ChainFreshness, ...] = ()
        self._notes: dict[PrimaryChain, ChainStatus] = {}
        self._pages: dict[PrimaryChain, Counter[str]] = {}
        self._is_checked = False
        self._is_empty = False

    async def __aenter__(self) -> Index:
        with suppress(StoreDown):
            await self.refresh()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.close()

    async def run(self) -> None:
        """Look how far the chains are, again and again, until cancelled."""
        is_down = False
        while True:
            try:
                await self.refresh()
            except StoreDown as error:
                # Until the indexer has created the index, a failure to read it is no news.
                is_created = not self._is_empty and (self._url.path is None or self._url.path.exists())
                if is_created and not is_down:
                    log.warning("the index cannot be read", extra={"reason": error.reason})
                is_down = is_created
            else:
                is_down = False
            await asyncio.sleep(self._settings.refresh_s)

    async def refresh(self) -> None:
        """Look how far the chains are. Raises StoreDown."""
        before, (chains, notes) = self._freshness, await self._read(_chains)
        self._notes = {note.chain: note for note in notes}
        self._freshness = tuple(
            one if self._is_told(one.chain) else replace(one, is_node_behind=True) for one in chains
        )
        heights = {one.chain: one.height for one in self._freshness}
        if any(heights.get(one.chain, -1) < one.height for one in before):
            # The rows are being derived anew: keys mean something else now.
            self._memory.clear()

    def _is_told(self, chain: PrimaryChain) -> bool:
        """Tell whether what the node's height is was told lately; who indexes may be gone, or reach no node."""
        note = self._notes.get(chain)
        return note is not None and self._now() - note.reported_at <= self._settings.node_height_ttl_s

    def freshness(self) -> Sequence[ChainFreshness]:
        """Tell how far each indexed chain is, in the order P, X, C; from memory, at once."""
        return self._freshness

    def chain_statuses(self) -> Mapping[PrimaryChain, ChainStatus]:
        """Tell how indexing the chains stands, as who indexes last wrote."""
        return self._notes

    def page_counts(self) -> Mapping[PrimaryChain, Mapping[str, int]]:
        """Tell how many pages were asked for since the start, by chain and by what they list."""
        return self._pages

    async def transactions(self, query: TransactionQuery, page: PageRequest) -> Page[Transaction]:
        """Return transactions in order; a page ends early when its outputs reach 1,000. Raises StoreDown."""
        self._count(query.chain, "transactions")
        return await self._read(lambda reading: self._transactions(reading, query, page))

    async def blocks(self, query: BlockQuery, page: PageRequest) -> Page[Block]:
        """Return blocks, newest first. Raises StoreDown."""
        self._count(query.chain, "blocks")
        return await self._read(lambda reading: block_reader.blocks(reading, query, page))

    async def blockchain(self, chain_id: ChainID) -> Blockchain | None:
        """Return a blockchain of any subnet, None where the P-Chain knows none of this id. Raises StoreDown."""
        return await self._read(lambda reading: block_reader.blockchain(reading, chain_id))

    async def chains_of(
        self, addresses: Sequence[Address], evm_addresses: Sequence[bytes]
    ) -> tuple[Mapping[Address, frozenset[PrimaryChain]], Mapping[bytes, frozenset[PrimaryChain]]]:
        """Return the indexed chains that addresses and accounts have touched; none: left out. Raises StoreDown."""
        return await self._read(lambda reading: block_reader.chains_of(reading, addresses, evm_addresses))

    async def rewards(self, query: RewardQuery, page: PageRequest) -> Page[Reward]:
        """Return rewards that were paid, in order. Raises StoreDown."""
        self._count(PrimaryChain.P, "rewards")
        return await self._read(lambda reading: staking_reader.rewards(reading, query, page))

    async def validations(self, query: ValidationQuery, page: PageRequest) -> Page[Validation]:
        """Return the validations of a node, in order. Raises StoreDown."""
        self._count(PrimaryChain.P, "validations")
        return await self._read(lambda reading: staking_reader.validations(reading, query, page))

    def _count(self, chain: PrimaryChain, kind: str) -> None:
        self._pages.setdefault(chain, Counter())[kind] += 1

    def _transactions(self, reading: ReadSession, query: TransactionQuery, page: PageRequest) -> Page[Transaction]:
        after = _key(page)
        found = transaction_keys(reading, query, after, page.size + 1)
        values = TxReader(reading, self._chains)
        values.load_rows(found.keys)
        shown = _cut(found.keys[: page.size], values)
        more = shown[-1] if len(shown) < len(found.keys) else found.scanned_to
        return Page(values.of(shown), None if more is None else (more,))

    async def _read(self, query: Callable[[ReadSession], T]) -> T:
        return await self._reader.read(lambda connection: self._look(connection, query), self._settings.read_timeout_s)

    def _look(self, connection: Connection, query: Callable[[ReadSession], T]) -> T:
        """Ask for everything as of one moment."""
        try:
            if not self._is_checked:
                self._check(connection)
            self._memory.trim()
            with read_snapshot(connection):
                return query(ReadSession(connection, self._memory))
        except (sqlite3.Error, psycopg.Error, SQLAlchemyError) as error:
            self._is_checked = False
            raise StoreDown(self._url.redact(str(error)).partition("\n")[0]) from None

    def _check(self, connection: Connection) -> None:
        version = read_version(connection)
        self._is_empty = version is None
        if self._is_empty:
            raise StoreDown("the indexer has not created the index yet")
        if version != MIGRATIONS.head:
            raise StoreDown(f"the index has schema version {version}, and this program reads {MIGRATIONS.head}")
        self._memory.clear()
        self._is_checked = True


def _chains(reading: ReadSession) -> tuple[tuple[ChainFreshness, ...], list[ChainStatus]]:
    text = (
        "SELECT c.chain, c.height, coalesce(n.node_height, 0), c.time, coalesce(n.is_node_behind, 0), c.first_height,"
        " c.block_id FROM chains c LEFT JOIN notes n ON n.chain = c.chain WHERE c.height >= 0 ORDER BY c.chain"
    )
    fresh = [
        ChainFreshness(CHAINS[number], height, max(height, node), time, bool(is_behind), first_height, bytes(block_id))
        for number, height, node, time, is_behind, first_height, block_id in reading.rows(text)
    ]
    return tuple(fresh), [decode_status(row[0]) for row in reading.rows("SELECT body FROM notes ORDER BY chain")]


def _key(page: PageRequest) -> int | None:
    if page.after is None:
        return None
    (key,) = page.after
    assert isinstance(key, int)
    return key


def _cut(keys: Sequence[int], values: TxReader) -> Sequence[int]:
    """Return the first transactions, as many as have no more than 1,000 outputs together, and one at least."""
    total = 0
    for number, key in enumerate(keys):
        total += values.moved(key)
        if number and total > MOST_OUTPUTS:
            return keys[:number]
    return keys


def _with_cache(size_bytes: int) -> Callable[[sqlite3.Connection, object], None]:
    def connected(session: sqlite3.Connection, _: object) -> None:
        session.execute(f"PRAGMA cache_size = -{size_bytes // 1024}")

    return connected
