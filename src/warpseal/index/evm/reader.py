"""The reader of an EVM chain's index: each query runs in one snapshot in a reading thread."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from warpseal.index.evm import holder_queries, icm_queries, queries
from warpseal.index.evm.database import MIGRATIONS
from warpseal.index.evm.queries import EvmPage as EvmPage
from warpseal.index.evm.records import (
    HolderPage,
    IcmBatch,
    IcmKeys,
    IcmPosition,
    IcmQuery,
    MessageChange,
    MissingResults,
    ReceivedMessage,
    ReindexOutcome,
    ReindexResult,
    SentMessage,
)
from warpseal.index.evm.requests import RequestWriter
from warpseal.index.read_session import ReadSession, ReplicatedReader
from warpseal.index.settings import IndexSettings
from warpseal.resources.evm import (
    CollectibleBalance,
    CollectibleQuery,
    DailyTps,
    DeployedContract,
    Erc1155Query,
    Erc1155Transfer,
    ErcType,
    EvmBlock,
    HolderQuery,
    NftToken,
)
from warpseal.resources.progress import EvmChainProgress
from warpseal.resources.queries import PageRequest
from warpseal.store.errors import StoreDown
from warpseal.store.url import StoreUrl
from warpseal.warp.ids import ChainID

T = TypeVar("T")


class EvmIndex:
    """Reads an index that another process writes; `async with` opens and closes it.

    It writes requests only. Every method raises StoreDown, queries also while the index does not
    exist.

    now: returns unix seconds.
    """

    def __init__(
        self, url: StoreUrl, settings: IndexSettings, now: Callable[[], float] = time.time
    ) -> None:
        self._settings = settings
        self._now = now
        self._reader = ReplicatedReader(url, settings, MIGRATIONS, queries.read_heights)
        self._requests = RequestWriter(url, settings)
        self._page_counts: Counter[str] = Counter()

    async def __aenter__(self) -> EvmIndex:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._requests.close()
        self._reader.close()

    def damage(self) -> str | None:
        """Return why the index is damaged; None while no read has met damage."""
        return self._reader.damage.reason

    def page_counts(self) -> Mapping[str, int]:
        """Return the number of pages that were read since the start, by the kind of their items."""
        return self._page_counts

    # State

    async def progress(self) -> EvmChainProgress | None:
        """Return the progress of the chain; None before the indexer has begun with it."""
        oldest = self._now() - self._settings.node_height_ttl_s
        return await self._read_or_none(lambda session: queries.read_progress(session, oldest))

    async def waiting_requests(self) -> Mapping[str, int]:
        """Return the number of requests that wait for the indexer, by kind."""
        return await self._read_or_none(queries.count_requests) or {}

    # Blocks and contracts

    async def block(self, number_or_hash: int | bytes) -> EvmBlock | None:
        """Return a block; None if it is not indexed."""
        return await self._reader.read(lambda session: queries.block(session, number_or_hash))

    async def daily_tps(self, first_day: int, last_day: int) -> DailyTps | None:
        """Return the transactions per second of days; None before the first block.

        first_day, last_day: days since 1970, both included.
        """
        self._page_counts["daily_tps"] += 1
        return await self._reader.read(
            lambda session: queries.daily_tps(session, first_day, last_day)
        )

    async def deployments(self, address: bytes, page: PageRequest) -> EvmPage[DeployedContract]:
        """Return the contracts that an address created, as sender or as contract, newest first."""
        self._page_counts["deployments"] += 1
        now = self._now()
        return await self._query(lambda session: queries.deployments(session, now, address, page))

    # NFTs

    async def erc1155_transfers(
        self, query: Erc1155Query, page: PageRequest
    ) -> EvmPage[Erc1155Transfer]:
        """Return ERC-1155 transfers of an address by block, log index and position."""
        self._page_counts["erc1155_transfers"] += 1
        now = self._now()
        return await self._query(
            lambda session: queries.erc1155_transfers(session, now, query, page)
        )

    async def collectibles(
        self, query: CollectibleQuery, page: PageRequest
    ) -> EvmPage[CollectibleBalance]:
        """Return the NFTs that an address holds, by first appearance of contract, then of token."""
        self._page_counts["collectibles"] += 1
        now = self._now()
        return await self._query(lambda session: queries.collectibles(session, now, query, page))

    async def tokens(self, contract: bytes, page: PageRequest) -> EvmPage[NftToken]:
        """Return the tokens of a collection that are held, by first appearance."""
        self._page_counts["tokens"] += 1
        now = self._now()
        return await self._query(lambda session: queries.tokens(session, now, contract, page))

    async def token(self, contract: bytes, token_id: int) -> EvmPage[NftToken]:
        """Return one token, held or not, as a page; an empty page if the token is unknown."""
        now = self._now()
        return await self._query(lambda session: queries.token(session, now, contract, token_id))

    # Holders

    async def holders_above(
        self, query: HolderQuery, page: PageRequest, at_block: int | None = None
    ) -> HolderPage | None:
        """Return holders of an ERC-20 token; None if the index does not have their balances.

        at_block: the block after which balances are shown; None: the last one. The page names it.
        """
        self._page_counts["token_holders"] += 1
        return await self._query(
            lambda session: holder_queries.holders_above(session, query, page, at_block)
        )

    async def unlisted_kind(self, contract: bytes) -> ErcType | None:
        """Return the kind of a contract that keeps its ERC-20 balances from being listed."""
        return await self._query(lambda session: holder_queries.unlisted_kind(session, contract))

    async def nft_holders(
        self, contract: bytes, page: PageRequest, at_block: int | None = None
    ) -> HolderPage | None:
        """Return holders of a collection; None if the index no longer has the state of the block.

        at_block: see `holders_above`.
        """
        self._page_counts["nft_holders"] += 1
        now = self._now()
        return await self._query(
            lambda session: holder_queries.nft_holders(session, now, contract, page, at_block)
        )

    # ICM messages

    async def icm_page(self, query: IcmQuery, before: IcmPosition | None, limit: int) -> IcmKeys:
        """Return keys of messages, newest first; a page may be short.

        before: position of a message of any chain; None: the page begins with the newest message.
        """
        self._page_counts["icm_messages"] += 1
        return await self._query(
            lambda session: icm_queries.icm_page(session, query, before, limit)
        )

    async def icm_messages(
        self, keys: Collection[int]
    ) -> Mapping[int, SentMessage | ReceivedMessage]:
        """Return messages by their keys; those that are not there are left out."""
        return await self._query(lambda session: icm_queries.icm_messages(session, keys))

    async def icm_changes(self, key: int) -> Sequence[MessageChange]:
        """Return the sending of a message with its fee, and its newest changes; oldest first."""
        return await self._query(lambda session: icm_queries.icm_changes(session, key))

    async def find_icm_message(self, raw_id: bytes) -> SentMessage | ReceivedMessage | None:
        """Return the message with an id, as it was sent here, else as it was received here."""
        return await self._query(lambda session: icm_queries.find_icm_message(session, raw_id))

    async def icm_after(self, position: int, limit: int) -> IcmBatch:
        """Return the events of messages behind a key, in order.

        limit: number of rows that are read of each kind.
        """
        return await self._query(lambda session: icm_queries.icm_after(session, position, limit))

    async def icm_since(self) -> int | None:
        """Return the time from which on ICM messages are indexed; None if they are not."""
        return await self._read_or_none(icm_queries.icm_since)

    async def icm_stuck(self, since: Mapping[ChainID, int]) -> Mapping[ChainID, int]:
        """Return the number of stuck ICM messages by destination, 10,000 at most.

        Destinations without any are left out.

        since: the result of `icm_since` for the index of each destination.
        """
        return await self._read_or_none(lambda session: icm_queries.icm_stuck(session, since)) or {}

    # Requests to the indexer

    async def request(self, missing: MissingResults) -> None:
        """Ask the indexer for the missing results of a page.

        Requests beyond a bound are dropped.
        """
        await self._requests.request(missing, int(self._now()))

    async def reindex(self, contract: bytes, token_id: int) -> ReindexResult:
        """Ask the indexer to fetch a token's metadata now.

        All daemons together may ask once an hour for a token. A request is stored before this
        returns.
        """
        keys = await self._query(lambda session: queries.token_keys(session, contract, token_id))
        if not keys:
            return ReindexResult(ReindexOutcome.UNKNOWN_TOKEN)
        return await self._requests.reindex(keys, int(self._now()))

    def _query(self, query: Callable[[ReadSession], T]) -> Coroutine[Any, Any, T]:
        """Read the result of a query that names rows by cached keys.

        It returns the coroutine of the reader, so that a request costs no second one.
        """

        def read(session: ReadSession) -> T:
            # Cached keys of an index that was made again would name other rows.
            queries.keep_epoch(session)
            return query(session)

        return self._reader.read(read)

    async def _read_or_none(self, query: Callable[[ReadSession], T]) -> T | None:
        """Return the result of a query; None while there is no index."""
        try:
            return await self._reader.read(query)
        except StoreDown:
            if self._reader.exists and not self._reader.is_empty:
                raise
            return None
