"""The reader of an EVM chain's index: each query runs in one snapshot in a reading thread."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

from warpseal.index.evm import holder_queries, icm_queries, queries
from warpseal.index.evm.database import MIGRATIONS
from warpseal.index.evm.queries import EvmPage as EvmPage
from warpseal.index.evm.records import MissingResults, ReindexOutcome, ReindexResult
from warpseal.index.evm.requests import RequestWriter
from warpseal.index.read_session import ReadSession, ReplicatedReader
from warpseal.index.settings import IndexSettings
from warpseal.resources.evm import DailyTps, EvmBlock
from warpseal.resources.progress import EvmChainProgress
from warpseal.store.errors import StoreDown
from warpseal.store.url import StoreUrl
from warpseal.warp.ids import ChainID

P = ParamSpec("P")
T = TypeVar("T")


def _query(
    query: Callable[Concatenate[ReadSession, float, P], T], kind: str = ""
) -> Callable[Concatenate[EvmIndex, P], Coroutine[Any, Any, T]]:
    """Return the method that runs a query on keys of the current epoch.

    kind: of the items of its pages.
    """

    async def run(index: EvmIndex, /, *args: P.args, **kwargs: P.kwargs) -> T:
        now = index._now()
        if kind:
            index._page_counts[kind] += 1

        def read(session: ReadSession) -> T:
            queries.keep_epoch(session)
            return query(session, now, *args, **kwargs)

        return await index._reader.read(read)

    return run


class EvmIndex:
    """Reads an index that another process writes; `async with` opens and closes it.

    It writes requests only.

    now: unix seconds. Every method raises StoreDown, queries also while the index does not exist.
        The functions of queries.py, holder_queries.py and icm_queries.py say what the methods of
        their names return.
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
        """Return why the index is damaged; None if it is not, as far as is known."""
        return self._reader.damage.reason

    async def progress(self) -> EvmChainProgress | None:
        """Return the progress of the chain; None before the indexer has begun with it, or while
        there is no index.
        """
        oldest = self._now() - self._settings.node_height_ttl_s
        return await self._read_or_none(lambda session: queries.read_progress(session, oldest))

    async def waiting_requests(self) -> Mapping[str, int]:
        """Return the number of requests that wait for the indexer, by kind; empty while there is no
        index.
        """
        return await self._read_or_none(queries.count_requests) or {}

    def page_counts(self) -> Mapping[str, int]:
        """Return the number of pages that were read since the start, by the kind of their items."""
        return self._page_counts

    async def block(self, number_or_hash: int | bytes) -> EvmBlock | None:
        """Return a block; None if it is not indexed."""
        return await self._reader.read(lambda session: queries.block(session, number_or_hash))

    async def daily_tps(self, first_day: int, last_day: int) -> DailyTps | None:
        """Return the transactions per second of days, both ends included; None before the first
        block.
        """
        self._page_counts["daily_tps"] += 1
        return await self._reader.read(
            lambda session: queries.daily_tps(session, first_day, last_day)
        )

    erc1155_transfers = _query(queries.erc1155_transfers, "erc1155_transfers")
    collectibles = _query(queries.collectibles, "collectibles")
    tokens = _query(queries.tokens, "tokens")
    token = _query(queries.token)
    deployments = _query(queries.deployments, "deployments")
    holders_above = _query(holder_queries.holders_above, "token_holders")
    unlisted_kind = _query(holder_queries.unlisted_kind)
    nft_holders = _query(holder_queries.nft_holders, "nft_holders")
    icm_page = _query(icm_queries.icm_page, "icm_messages")
    icm_messages = _query(icm_queries.icm_messages)
    icm_changes = _query(icm_queries.icm_changes)
    find_icm_message = _query(icm_queries.find_icm_message)
    icm_after = _query(icm_queries.icm_after)
    _token_keys = _query(queries.token_keys)

    async def icm_since(self) -> int | None:
        """Return the time from which on ICM messages are known; None without one, or if they are
        not kept.
        """
        return await self._read_or_none(icm_queries.icm_since)

    async def icm_stuck(self, since: Mapping[ChainID, int]) -> Mapping[ChainID, int]:
        """Return how many sent ICM messages are stuck, by destination, 10,000 at most; left out
        without any.

        since: what `icm_since` returns for the index of each destination.
        """
        return await self._read_or_none(lambda session: icm_queries.icm_stuck(session, since)) or {}

    async def request(self, missing: MissingResults) -> None:
        """Ask the indexer for what a page lacks. Requests beyond a bound are dropped."""
        await self._requests.request(missing, int(self._now()))

    async def reindex(self, contract: bytes, token_id: int) -> ReindexResult:
        """Ask the indexer to fetch a token's metadata now; once per hour and token over all
        daemons.

        A request is stored before this returns.
        """
        keys = await self._token_keys(contract, token_id)
        if not keys:
            return ReindexResult(ReindexOutcome.UNKNOWN_TOKEN)
        return await self._requests.reindex(keys, int(self._now()))

    async def _read_or_none(self, query: Callable[[ReadSession], T]) -> T | None:
        """Return the result of a query; None while there is no index."""
        try:
            return await self._reader.read(query)
        except StoreDown:
            if self._reader.exists and not self._reader.is_empty:
                raise
            return None
