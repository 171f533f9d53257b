"""Requests of a daemon to the indexer, written into the chain's index between its transactions."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from warpseal.index import bulk
from warpseal.index.database import file_number
from warpseal.index.evm.keys import RequestKind, collection_of
from warpseal.index.evm.records import MissingResults, ReindexOutcome, ReindexResult
from warpseal.index.evm.schema import REQUESTS
from warpseal.index.settings import IndexSettings
from warpseal.store.connection import Connection, DriverError
from warpseal.store.engine import redacted_reason, writing_engine
from warpseal.store.errors import StoreDown
from warpseal.store.locks import has_writer
from warpseal.store.reader import StoreReader
from warpseal.store.settings import StoreSettings
from warpseal.store.url import StoreUrl

T = TypeVar("T")

REINDEX_INTERVAL_S: Final = 3_600
"""Time during which an accepted reindex request of a token excludes others, seconds."""
MAX_WAITING: Final = 10_000
"""Requests of one kind that wait for the indexer."""
MAX_WAITING_REINDEXES: Final = 256

# The indexer's transactions take the file for up to a few seconds.
_WAIT_S: Final = 8.0
_PAUSE_S: Final = 0.02
_WAITING: Final = """
    SELECT count(*)
    FROM (SELECT 1 FROM requests WHERE kind = ? LIMIT ?) AS waiting
"""
# Atomic on both databases, whichever other daemon does the same.
_ACCEPT: Final = """
    INSERT INTO reindexes (token, accepted_at)
    VALUES (?, ?)
    ON CONFLICT (token) DO UPDATE
    SET accepted_at = excluded.accepted_at
    WHERE reindexes.accepted_at <= ?
    RETURNING token
"""
_FORGET_ACCEPTED: Final = "DELETE FROM reindexes WHERE accepted_at <= ?"
_ACCEPTED_AT: Final = "SELECT accepted_at FROM reindexes WHERE token = ?"
_CONTRACTS: Final = "SELECT contract FROM collections WHERE number IN {keys}"


class RequestWriter:
    """Writes requests of one daemon, one at a time in a thread of its own."""

    def __init__(self, url: StoreUrl, settings: IndexSettings) -> None:
        self._url = url
        self._engine = writing_engine(url)
        self._opened_file = 0
        bounds = StoreSettings(readers=1, max_queued_reads=settings.max_queued_reads)
        self._thread = StoreReader(
            self._engine, bounds, lambda error: StoreDown(redacted_reason(url, error))
        )

    def close(self) -> None:
        """Cancel the waiting requests, and close the connection."""
        self._thread.close()

    async def request(self, missing: MissingResults, now: int) -> None:
        """Add requests for missing results, unless they wait already. Raises StoreDown."""
        tokens = missing.tokens | missing.old_tokens
        contracts = missing.contracts | missing.old_contracts
        requests = ((RequestKind.CONTRACT, contracts), (RequestKind.SHOWN_TOKEN, tokens))

        def write(connection: Connection) -> None:
            for kind, subjects in requests:
                if subjects and _count_waiting(connection, kind, MAX_WAITING) < MAX_WAITING:
                    bulk.insert_new(
                        connection,
                        REQUESTS,
                        [(int(kind), subject, now) for subject in sorted(subjects)],
                    )

        if missing:
            await self._write(write)

    async def reindex(self, tokens: Sequence[int], now: int) -> ReindexResult:
        """Add reindex requests for the tokens with one id, at least one, if an indexer runs.

        Raises StoreDown.
        """

        def write(connection: Connection) -> ReindexResult:
            if not has_writer(connection, self._url.path):
                return ReindexResult(ReindexOutcome.NO_INDEXER)
            ended_at = now - REINDEX_INTERVAL_S
            connection.run(_FORGET_ACCEPTED, ended_at)
            # Before the token is accepted: an accepted request excludes others for an hour, so it
            # must not be dropped.
            waiting = _count_waiting(connection, RequestKind.REINDEX, MAX_WAITING_REINDEXES)
            if waiting >= MAX_WAITING_REINDEXES:
                return ReindexResult(ReindexOutcome.BUSY)
            if not connection.fetch(_ACCEPT, tokens[0], now, ended_at):
                wait_s = connection.value(_ACCEPTED_AT, tokens[0]) - ended_at
                retry_after_s = min(max(wait_s, 1), REINDEX_INTERVAL_S)
                return ReindexResult(ReindexOutcome.TOO_EARLY, retry_after_s)
            requests = [(int(RequestKind.REINDEX), token, now) for token in tokens]
            bulk.upsert(connection, REQUESTS, requests)
            # The contract is called again as well.
            collections = {collection_of(token) for token in tokens}
            contracts = bulk.run(connection, _CONTRACTS, collections)
            rows = [(int(RequestKind.CONTRACT), contract, now) for (contract,) in contracts]
            bulk.insert_new(connection, REQUESTS, rows)
            return ReindexResult(ReindexOutcome.ACCEPTED)

        return await self._write(write)

    async def _write(self, change: Callable[[Connection], T]) -> T:
        def run(connection: Connection) -> T:
            until = time.monotonic() + _WAIT_S
            while True:
                try:
                    with connection.begin():
                        return change(connection)
                except DriverError as error:
                    code = getattr(error.cause, "sqlite_errorcode", 0) & 0xFF
                    is_busy = code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
                    if not is_busy or time.monotonic() >= until:
                        raise
                    time.sleep(_PAUSE_S)

        if self._url.path is not None:
            file = file_number(self._url.path)
            if not file:
                raise StoreDown("the indexer has not created the index yet")
            if file != self._opened_file:
                # The file was made again, and the open connection would write into the old one.
                self._engine.dispose()
                self._opened_file = file
        return await self._thread.read(run, _WAIT_S + 1.0)


def _count_waiting(connection: Connection, kind: RequestKind, most: int) -> int:
    return int(connection.value(_WAITING, int(kind), most))
