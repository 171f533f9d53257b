"""Fetches the metadata of the NFTs of one chain in the background: token URI, document, fields.

Reindex requests have their own slots. Then come the tokens that pages showed, retries and changed
metadata, new mints, and with the mode `all` the rest. The index keeps what is to be fetched; little
of it is in memory here.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from warpseal.chains.evm.contract_calls import decode_uri, owner_of_call, token_uri_call, uri_call
from warpseal.chains.evm.facts import TokenStandard
from warpseal.chains.evm.nft_document import BLANKS
from warpseal.chains.evm.token_uri import (
    RemoteDocument,
    UnusableMetadata,
    fill_token_id,
    parse_token_uri,
)
from warpseal.index.evm.records import FetchReason, TokenDocument, TokenToFetch
from warpseal.indexer.evm.chain import EvmChainContext, wait_for
from warpseal.indexer.evm.document_queue import DocumentQueue, QueuedDocument
from warpseal.indexer.evm.fetcher import (
    DocumentFetcher,
    DocumentResult,
    FetchLane,
    read_inline,
    read_remote,
)
from warpseal.indexer.evm.nodes import CallResult, ContractCall, EvmCaller, NoResult
from warpseal.indexer.settings import MetadataSettings
from warpseal.resources.evm import MetadataStatus
from warpseal.runtime.retry import Backoff, Retrier
from warpseal.store.errors import StoreDown
from warpseal.upstream.endpoint import MetadataMode

log = logging.getLogger(__name__)

_BATCH: Final = 32
_MAX_REINDEXED: Final = 256
_MAX_REINDEX_CALLS: Final = 32
_MAX_UNWRITTEN: Final = 32
_MAX_QUEUED_BYTES: Final = 16 * 1024 * 1024
# Time for the last steps of a reindex request after its document.
_WRITE_S: Final = 0.5
_STORE_DOWN: Final = Backoff(1.0, 10.0)


class _TokenUri(Struct, frozen=True):
    """The URI of a token.

    result: the outcome, if no server has to be called.
    document: the URLs of the document, if a server has to be called.
    """

    token: TokenToFetch
    uri: str
    result: DocumentResult | None = None
    document: RemoteDocument | None = None

    @property
    def filled_id(self) -> int | None:
        return self.token.token_id if self.token.standard is TokenStandard.ERC1155 else None


class MetadataFetcher:
    """A background task of one chain.

    fetcher: the reader of documents that all chains share.
    """

    def __init__(
        self,
        chain: EvmChainContext,
        caller: EvmCaller,
        fetcher: DocumentFetcher,
        settings: MetadataSettings,
    ) -> None:
        self._chain = chain
        self._caller = caller
        self._background_caller = caller.in_background()
        self._fetcher = fetcher
        self._settings = settings
        self._reasons = [FetchReason.SHOWN, FetchReason.DUE, FetchReason.MINTED]
        if chain.settings.metadata is MetadataMode.ALL:
            self._reasons.append(FetchReason.REST)
        self._queue_changed = asyncio.Event()
        self._blocks_written = chain.subscribe()
        self._reindex_calls = asyncio.Semaphore(_MAX_REINDEX_CALLS)
        self._retrier = Retrier(_STORE_DOWN, {StoreDown: "index"})
        self._reset()

    async def run(self) -> None:
        """Fetch until cancelled; return at once if the chain's metadata is not fetched."""
        if self._chain.settings.metadata is MetadataMode.OFF:
            return
        await self._chain.write(lambda writer: writer.documents.forget())
        self._reset()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._serve_reindex_requests())
            tasks.create_task(self._collect([FetchReason.SHOWN], self._chain.tokens_requested))
            tasks.create_task(self._collect(self._reasons[1:], self._blocks_written))
            tasks.create_task(self._dispatch())
            tasks.create_task(self._write_outcomes())

    def _reset(self) -> None:
        """Forget the queue and the outcomes of an earlier run."""
        settings, levels = self._settings, len(self._reasons)
        self._queue: DocumentQueue[_TokenUri] = DocumentQueue(
            levels,
            settings.max_queued,
            _MAX_QUEUED_BYTES,
            settings.max_queued_per_contract,
            settings.requests_per_host,
        )
        self._outcomes: asyncio.Queue[TokenDocument] = asyncio.Queue(_MAX_UNWRITTEN)
        # Keys of tokens whose URI is read in the background, and of those whose document is
        # requested.
        self._reading: set[int] = set()
        self._fetching: set[int] = set()

    # Reindex requests

    async def _serve_reindex_requests(self) -> None:
        slots, wake = asyncio.Semaphore(_MAX_REINDEXED), self._chain.reindex_requested
        async with asyncio.TaskGroup() as tasks:
            while True:
                wake.clear()
                await slots.acquire()
                tokens = await self._tokens_to_fetch(FetchReason.REINDEX, 1)
                if not tokens:
                    slots.release()
                    await wait_for(wake, self._settings.idle_s)
                for token in tokens:
                    tasks.create_task(self._reindex(token)).add_done_callback(
                        lambda _: slots.release()
                    )

    async def _reindex(self, token: TokenToFetch) -> None:
        """Fetch the metadata of one token, and write an outcome in time, whatever came of it."""
        now, most_s = time.time(), self._settings.reindex_s
        requested_at = now if token.requested_at is None else token.requested_at
        # At least a second for an old request, and the whole time if the clock was set back.
        left_s = min(max(requested_at + most_s - now, 1.0), most_s)
        deadline = asyncio.get_running_loop().time() + left_s
        uri, result = "", DocumentResult(MetadataStatus.UNKNOWN)
        try:
            async with asyncio.timeout_at(deadline):
                async with self._reindex_calls:
                    (token_uri,) = await self._read_uris(self._caller, [token])
                uri = token_uri.uri
                result = token_uri.result or await self._read_document(
                    token_uri, FetchLane.REINDEX, deadline
                )
        except TimeoutError:
            log.debug(
                "reindex request timed out",
                extra={"chain": self._chain.name, "token": token.token_id},
            )
        # Not before the request, which may be later than the second in which it was made.
        await self._finish(token, uri, result, math.ceil(time.time()))

    # Everything else

    async def _collect(self, reasons: Sequence[FetchReason], wake: asyncio.Event) -> None:
        """Read the URIs of tokens, the most urgent first, and queue documents on servers."""
        settings = self._settings
        levels = [self._reasons.index(reason) for reason in reasons]
        while True:
            # Before the reads, so that no token is missed.
            wake.clear()
            for reason in reasons:
                if await self._collect_batch(reason):
                    # The most urgent reason again: there may be new tokens for it.
                    break
            else:
                is_crowded = any(self._queue.crowded(level) for level in levels)
                await wait_for(wake, settings.crowded_s if is_crowded else settings.idle_s)

    async def _collect_batch(self, reason: FetchReason) -> bool:
        """Return whether there was any work for this reason."""
        if reason in (FetchReason.MINTED, FetchReason.REST) and not self._chain.is_caught_up:
            return False
        level = self._reasons.index(reason)
        room = self._queue.room(level)
        if not room:
            # Some documents of other hosts get a chance, although one host is slower than its
            # documents come.
            await asyncio.sleep(self._settings.full_queue_s)
        tokens = await self._tokens_to_fetch(
            reason, min(_BATCH, room or _BATCH // 2), self._queue.crowded(level)
        )
        if reason is FetchReason.SHOWN:
            unqueued = [token for token in tokens if not await self._move_up(token, level)]
            self._reading.difference_update(token.key for token in unqueued)
            for token_uri in await self._read_uris(self._caller, unqueued):
                await self._queue_document(token_uri, level)
        else:
            self._reading.update(token.key for token in tokens)
            for token_uri in await self._read_uris(self._background_caller, tokens):
                # Unless a page has shown the token since.
                if token_uri.token.key in self._reading:
                    self._reading.discard(token_uri.token.key)
                    await self._queue_document(token_uri, level)
        return bool(tokens)

    async def _move_up(self, token: TokenToFetch, level: int) -> bool:
        """Make a token that a page shows more urgent.

        Return whether its document waits, or is requested now.
        """
        waiting = self._queue.remove(token.contract, lambda job: job.token.key == token.key)
        if waiting is not None:
            await self._add(level, waiting)
        return waiting is not None or token.key in self._fetching

    async def _queue_document(self, token_uri: _TokenUri, level: int) -> None:
        """Queue a document that is on a server; finish a token without such a document."""
        if token_uri.document is None:
            assert token_uri.result is not None
            await self._finish(token_uri.token, token_uri.uri, token_uri.result, int(time.time()))
            return
        host = next((url.raw_host or "" for url in token_uri.document.urls), "")
        contract, size_bytes = token_uri.token.contract, len(token_uri.uri)
        await self._add(level, QueuedDocument(host, contract, size_bytes, token_uri))

    async def _add(self, level: int, fetch: QueuedDocument[_TokenUri]) -> None:
        for displaced in self._queue.add(level, fetch):
            await self._postpone(displaced)
        self._queue_changed.set()

    async def _dispatch(self) -> None:
        """Begin requests as slots become free."""
        slots = asyncio.Semaphore(self._settings.max_requests)
        async with asyncio.TaskGroup() as tasks:
            while True:
                await slots.acquire()
                while (fetch := self._queue.take()) is None:
                    self._queue_changed.clear()
                    await self._queue_changed.wait()
                tasks.create_task(self._fetch(fetch)).add_done_callback(lambda _: slots.release())

    async def _fetch(self, fetch: QueuedDocument[_TokenUri]) -> None:
        key = fetch.job.token.key
        self._fetching.add(key)
        try:
            result = await self._read_document(fetch.job, FetchLane.BACKGROUND)
            await self._finish(fetch.job.token, fetch.job.uri, result, int(time.time()))
        finally:
            self._fetching.discard(key)
            self._queue.finish(fetch)
            self._queue_changed.set()

    async def _postpone(self, token_uri: _TokenUri) -> None:
        """Return a token to the index, since too many documents of its host wait."""
        token = token_uri.token
        next_attempt_at = int(time.time() + self._settings.postponed_s)
        await self._outcomes.put(
            TokenDocument(
                token.contract,
                token.token_id,
                MetadataStatus.UNINDEXED,
                0,
                next_attempt_at=next_attempt_at,
                attempts=token.attempts,
                standard=token.standard,
            )
        )

    # Steps of both

    async def _tokens_to_fetch(
        self, reason: FetchReason, limit: int, skip: frozenset[bytes] = frozenset()
    ) -> Sequence[TokenToFetch]:
        now = int(time.time())

        async def read() -> Sequence[TokenToFetch]:
            return await self._chain.write(
                lambda writer: writer.documents.to_fetch(reason, limit, now, skip)
            )

        return await self._retrier.call(read)

    async def _read_uris(
        self, caller: EvmCaller, tokens: Sequence[TokenToFetch]
    ) -> list[_TokenUri]:
        """Return the URIs of tokens, in their order."""
        calls: list[ContractCall] = []
        for token in tokens:
            make_call = uri_call if token.standard is TokenStandard.ERC1155 else token_uri_call
            calls.append(ContractCall(token.contract, make_call(token.token_id)))
        outputs = await caller.call_all(calls, self._chain.height) if calls else []
        reverted = [
            token
            for token, output in zip(tokens, outputs, strict=True)
            if isinstance(output, NoResult) and token.standard is TokenStandard.ERC721
        ]
        owner_calls = [
            ContractCall(token.contract, owner_of_call(token.token_id)) for token in reverted
        ]
        owners = await caller.call_all(owner_calls, self._chain.height) if owner_calls else []
        owner_of = {token.key: owner for token, owner in zip(reverted, owners, strict=True)}
        uris: list[_TokenUri] = []
        for token, output in zip(tokens, outputs, strict=True):
            if isinstance(output, bytes):
                try:
                    uris.append(self._parse_uri(token, output))
                except Exception:
                    # A fault of this program in the metadata of one token must not stop all others.
                    log.exception("token URI was not parsed", extra={"chain": self._chain.name})
                    uris.append(_TokenUri(token, "", DocumentResult(MetadataStatus.UNKNOWN)))
                # Parsing a large document takes milliseconds.
                await asyncio.sleep(0)
            else:
                status = _status_without_uri(token, output, owner_of.get(token.key))
                uris.append(_TokenUri(token, "", DocumentResult(status)))
        return uris

    def _parse_uri(self, token: TokenToFetch, output: bytes) -> _TokenUri:
        uri = (decode_uri(output) or "").replace("\0", "").strip(BLANKS)
        if token.standard is TokenStandard.ERC1155:
            uri = fill_token_id(uri.encode(), token.token_id).decode()
        try:
            document = parse_token_uri(uri, self._settings.gateways)
        except UnusableMetadata as error:
            # An id that takes the place of `{id}` again and again may make the URI very long.
            stored_uri = uri if len(uri) <= len(output) else ""
            return _TokenUri(token, stored_uri, DocumentResult(error.status))
        if isinstance(document, RemoteDocument):
            return _TokenUri(token, uri, document=document)
        token_uri = _TokenUri(token, uri)
        return replace(token_uri, result=read_inline(document, uri, token_uri.filled_id))

    async def _read_document(
        self, token_uri: _TokenUri, lane: FetchLane, deadline: float = math.inf
    ) -> DocumentResult:
        """Return the result of a document on a server.

        deadline: time of the event loop's clock at which the outcome has to be written.
        """
        assert token_uri.document is not None
        left_s = deadline - asyncio.get_running_loop().time() - _WRITE_S
        timeout_s = max(_WRITE_S, min(self._settings.timeout_s, left_s))
        try:
            return await read_remote(
                self._fetcher,
                token_uri.document,
                token_uri.uri,
                token_uri.filled_id,
                lane,
                timeout_s,
            )
        except Exception:
            log.exception("metadata fetch failed", extra={"chain": self._chain.name})
            return DocumentResult(MetadataStatus.UNKNOWN)

    async def _finish(
        self, token: TokenToFetch, uri: str, result: DocumentResult, updated_at: int
    ) -> None:
        attempts = 0 if result.status is MetadataStatus.INDEXED else token.attempts + 1
        delays = self._settings.retry_delays_s
        next_attempt_at = None
        if 0 < attempts <= len(delays):
            delay_s = max(delays[attempts - 1], result.retry_after_s or 0.0)
            next_attempt_at = updated_at + math.ceil(delay_s)
        await self._outcomes.put(
            TokenDocument(
                token.contract,
                token.token_id,
                result.status,
                updated_at,
                uri,
                result.fields,
                next_attempt_at,
                attempts,
                token.standard,
            )
        )

    async def _write_outcomes(self) -> None:
        while True:
            documents = [await self._outcomes.get()]
            while not self._outcomes.empty():
                documents.append(self._outcomes.get_nowait())

            async def write(documents: Sequence[TokenDocument] = tuple(documents)) -> None:
                await self._chain.write(lambda writer: writer.documents.write(documents))

            await self._retrier.call(write)


def _status_without_uri(
    token: TokenToFetch, output: CallResult, owner: CallResult
) -> MetadataStatus:
    """Return the status of a token whose contract returned no URI.

    output: the result of the call for the URI; None if no node answered.
    owner: the result of `ownerOf` of ERC-721, after a revert. ERC-1155 has no such call, but the
        index has the holders.
    """
    if output is None:
        return MetadataStatus.UNKNOWN
    if token.standard is TokenStandard.ERC1155:
        return MetadataStatus.INVALID_TOKEN_URI if token.is_held else MetadataStatus.MISSING_TOKEN
    if owner is None:
        return MetadataStatus.UNKNOWN
    if isinstance(owner, NoResult):
        return MetadataStatus.MISSING_TOKEN
    return MetadataStatus.INVALID_TOKEN_URI
