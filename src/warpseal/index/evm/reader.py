"""The reader of an EVM chain's index: each query runs in one snapshot in a reading thread."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Concatenate, ParamSpec, TypeVar

from warpseal.index.checkpoint import ChainStatus
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
from warpseal.index.read_session import ReadSession
from warpseal.index.replicas import ReplicatedReader
from warpseal.index.settings import IndexSettings
from warpseal.resources.evm import (
    CollectibleBalance,
    CollectibleQuery,
    DailyTps,
    DeployedContract,
    Erc1155Query,
    Erc1155Transfer,
    EvmBlock,
    EvmFreshness,
    HolderQuery,
    NftToken,
)
from warpseal.resources.queries import PageRequest
from warpseal.store.errors import StoreDown
from warpseal.store.url import StoreUrl
from warpseal.warp.ids import ChainID

P = ParamSpec("P")
T = TypeVar("T")


class EvmIndex:
    """Reads an index that another process writes; `async with` opens and closes it. It writes requests only.

    now: unix seconds. Every method raises StoreDown, queries also while the index does not exist.
    """

    def __init__(self, url: StoreUrl, settings: IndexSettings, now: Callable[[], float] = time.time) -> None:
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
        """Return why the index is damaged; None if it is not, as far as is known."""
        return self._reader.damage()

    async def freshness(self) -> EvmFreshness | None:
        """Return how far the chain is indexed; None before its first block, or while there is no index."""
        oldest = self._now() - self._settings.node_height_ttl_s
        return await self._read_or_none(lambda session: queries.freshness(session, oldest))

    async def status(self) -> ChainStatus | None:
        """Return the status that the indexer wrote last; None if it wrote none."""
        return await self._read_or_none(queries.read_status)

    async def waiting_requests(self) -> Mapping[str, int]:
        """Return the number of requests that wait for the indexer, by kind; empty while there is no index."""
        return await self._read_or_none(queries.count_requests) or {}

    def page_counts(self) -> Mapping[str, int]:
        """Return the number of pages that were read since the start, by the kind of their items."""
        return self._page_counts

    async def block(self, number_or_hash: int | bytes) -> EvmBlock | None:
        """Return a block; None if it is not indexed."""
        return await self._reader.read(lambda session: queries.block(session, number_or_hash))

    async def daily_tps(self, first_day: int, last_day: int) -> DailyTps | None:
        """Return the transactions per second of days, both ends included; None before the first block."""
        self._page_counts["daily_tps"] += 1
        return await self._reader.read(lambda session: queries.daily_tps(session, first_day, last_day))

    async def erc1155_transfers(self, query: Erc1155Query, page: PageRequest) -> EvmPage[Erc1155Transfer]:
        """Return transfers by block, log index and position; one to oneself once."""
        return await self._page("erc1155_transfers", queries.erc1155_transfers, query, page)

    async def collectibles(self, query: CollectibleQuery, page: PageRequest) -> EvmPage[CollectibleBalance]:
        """Return what an address holds, by first appearance of the contract, then of the token.

        If the index begins above block 0, ERC-1155 tokens whose balance may be 0 are among them: only a node knows.
        """
        return await self._page("collectibles", queries.collectibles, query, page)

    async def tokens(self, contract: bytes, page: PageRequest) -> EvmPage[NftToken]:
        """Return the tokens of a collection that are held, by first appearance; none for an unknown contract."""
        return await self._page("tokens", queries.tokens, contract, page)

    async def token(self, contract: bytes, token_id: int) -> EvmPage[NftToken]:
        """Return one token, held or not, as a page of one; an empty page if it is unknown."""
        return await self._query(queries.token, contract, token_id)

    async def deployments(self, address: bytes, page: PageRequest) -> EvmPage[DeployedContract]:
        """Return the creations by an address, as sender or as creating contract, newest first."""
        return await self._page("deployments", queries.deployments, address, page)

    async def holders_above(
        self, query: HolderQuery, page: PageRequest, at_block: int | None = None
    ) -> HolderPage | None:
        """Return holders of an ERC-20 token as they were after a block, None for the last one; the page names it.

        Returns None if the index keeps no balances, or no longer the block's. A page may be short.
        """
        return await self._page("token_holders", holder_queries.holders_above, query, page, at_block)

    async def nft_holders(self, contract: bytes, page: PageRequest, at_block: int | None = None) -> HolderPage | None:
        """Return holders of a collection, and their numbers of NFTs, as they were after a block, None for the last one.

        Returns None if the index no longer has the block's. A page may be short.
        """
        return await self._page("nft_holders", holder_queries.nft_holders, contract, page, at_block)

    async def icm_page(self, query: IcmQuery, before: IcmPosition | None, limit: int) -> IcmKeys:
        """Return keys of ICM messages behind a position, newest first; none if they are not kept. A page may be short.

        before: of a message of any chain; None: from the newest one on.
        """
        return await self._page("icm_messages", icm_queries.icm_page, query, before, limit)

    async def icm_messages(self, keys: Sequence[int]) -> Mapping[int, SentMessage | ReceivedMessage]:
        """Return ICM messages by their keys, as far as they are there."""
        return await self._query(icm_queries.icm_messages, keys)

    async def icm_changes(self, key: int) -> Sequence[MessageChange]:
        """Return the sending of a message with its fee, and its newest changes; oldest first."""
        return await self._query(icm_queries.icm_changes, key)

    async def find_icm_message(self, message_id: bytes) -> SentMessage | ReceivedMessage | None:
        """Return an ICM message that the chain sent, else one that it received of a source that was not indexed."""
        return await self._query(icm_queries.find_icm_message, message_id)

    async def icm_since(self) -> int | None:
        """Return the time from which on ICM messages are known; None without one, or if they are not kept."""
        return await self._read_or_none(icm_queries.icm_since)

    async def icm_stuck(self, since: Mapping[ChainID, int]) -> Mapping[ChainID, int]:
        """Return how many sent ICM messages are stuck, by destination, 10,000 at most; left out without any.

        since: what `icm_since` returns for the index of each destination.
        """
        return await self._read_or_none(lambda session: icm_queries.icm_stuck(session, since)) or {}

    async def icm_after(self, position: int, limit: int) -> IcmBatch:
        """Return what happened to messages on this chain behind a key, in order."""
        return await self._query(icm_queries.icm_after, position, limit)

    async def request(self, missing: MissingResults) -> None:
        """Ask the indexer for what a page lacks. Requests beyond a bound are dropped."""
        await self._requests.request(missing, int(self._now()))

    async def reindex(self, contract: bytes, token_id: int) -> ReindexResult:
        """Ask the indexer to fetch a token's metadata now; once per hour and token over all daemons.

        A request is stored before this returns.
        """
        keys = await self._query(queries.token_keys, contract, token_id)
        if not keys:
            return ReindexResult(ReindexOutcome.UNKNOWN_TOKEN)
        return await self._requests.reindex(keys, int(self._now()))

    async def _page(
        self, kind: str, query: Callable[Concatenate[ReadSession, float, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        self._page_counts[kind] += 1
        return await self._query(query, *args, **kwargs)

    async def _query(
        self, query: Callable[Concatenate[ReadSession, float, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a query on keys of the current epoch."""
        now = self._now()

        def run(session: ReadSession) -> T:
            queries.keep_epoch(session)
            return query(session, now, *args, **kwargs)

        return await self._reader.read(run)

    async def _read_or_none(self, query: Callable[[ReadSession], T]) -> T | None:
        """Return the result of a query; None while there is no index."""
        try:
            return await self._reader.read(query)
        except StoreDown:
            if self._reader.exists and not self._reader.is_empty:
                raise
            return None
