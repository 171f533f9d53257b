"""Reads metadata documents: the fields behind a token URI, or the status that names the failure.

A URL that a contract names is hostile: it may lead into the network of the operator
(`upstream/address_policy`), send without end, or never respond. Redirects are followed here, each
one checked like the first URL.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from yarl import URL

from warpseal.chains.evm.nft_document import (
    Medium,
    NftFields,
    detect_medium,
    medium_document,
    parse_document,
)
from warpseal.chains.evm.token_uri import InlineDocument, RemoteDocument, UnusableMetadata
from warpseal.indexer.settings import MetadataSettings
from warpseal.resources.evm import MetadataStatus
from warpseal.runtime.http_session import aiohttp, read_body
from warpseal.runtime.http_url import parse_http_url
from warpseal.runtime.process import error_words
from warpseal.runtime.settings import DAY_S
from warpseal.upstream.address_policy import AddressPolicy, AddressRefused
from warpseal.upstream.checked_resolver import checked_session
from warpseal.upstream.limits import parse_retry_after

if TYPE_CHECKING:
    from dns import asyncresolver as dns_client

_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))


class FetchFailed(UnusableMetadata):
    """A document could not be read.

    status: unreachable, throttled or too large.
    detail: the reason for the log.
    retry_after_s: the delay that the server asks for, None without one.
    """

    def __init__(
        self, status: MetadataStatus, detail: str, retry_after_s: float | None = None
    ) -> None:
        super().__init__(status, detail)
        self.retry_after_s = retry_after_s


class FetchLane(StrEnum):
    """Requests of one lane share slots.

    BACKGROUND leaves slots free, so that a reindex never waits for it.
    """

    BACKGROUND = "background"
    REINDEX = "reindex"


class FetchedDocument(Struct, frozen=True):
    """The response of a server.

    content: the document; only its beginning, or nothing, if it is an image or another medium.
    """

    media_type: str
    content: bytes


class DocumentFetcher:
    """Reads documents for all chains of a process.

    Each lane has slots of its own, which bound its requests at a time, in all and per host.
    """

    def __init__(
        self, session: aiohttp.ClientSession, policy: AddressPolicy, settings: MetadataSettings
    ) -> None:
        self._session = session
        self._policy = policy
        self._settings = settings
        background_requests = settings.max_requests - settings.reindex_requests
        self._slots = {
            FetchLane.BACKGROUND: asyncio.Semaphore(background_requests),
            FetchLane.REINDEX: asyncio.Semaphore(settings.reindex_requests),
        }
        # Hosts without requests take no memory.
        self._host_slots: dict[tuple[FetchLane, str], asyncio.Semaphore] = {}
        self._host_users: Counter[tuple[FetchLane, str]] = Counter()

    async def fetch(self, url: URL, lane: FetchLane, timeout_s: float) -> FetchedDocument:
        """Return the document of a URL. Raises FetchFailed.

        timeout_s: time that all requests together may take; waiting for slots is extra.
        """
        clock = asyncio.get_running_loop().time
        for _ in range(self._settings.max_redirects + 1):
            try:
                self._policy.check_url(url)
            except AddressRefused as error:
                raise FetchFailed(MetadataStatus.UNREACHABLE_TOKEN_URI, str(error)) from error
            async with self._host_slot(lane, url.raw_host or ""), self._slots[lane]:
                started_at = clock()
                target = await self._request(url, timeout_s)
                timeout_s -= clock() - started_at
            if isinstance(target, FetchedDocument):
                return target
            url = target
        raise FetchFailed(MetadataStatus.UNREACHABLE_TOKEN_URI, "too many redirects")

    @asynccontextmanager
    async def _host_slot(self, lane: FetchLane, host: str) -> AsyncIterator[None]:
        """Hold a slot of a host, as soon as one is free."""
        key = lane, host
        limit = self._settings.requests_per_host
        slots = self._host_slots.setdefault(key, asyncio.Semaphore(limit))
        self._host_users[key] += 1
        try:
            async with slots:
                yield
        finally:
            self._host_users[key] -= 1
            if not self._host_users[key]:
                del self._host_users[key], self._host_slots[key]

    async def _request(self, url: URL, timeout_s: float) -> FetchedDocument | URL:
        """Return the document, or the URL to which a redirect leads."""
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._session.get(url, allow_redirects=False) as response,
            ):
                if response.status in _REDIRECTS:
                    return parse_http_url(response.headers.get("Location", ""), base=url)
                if not 200 <= response.status < 300:
                    raise _status_failure(response)
                media_type = response.content_type.lower()
                is_medium = detect_medium(media_type, b"") is not None
                return FetchedDocument(media_type, b"" if is_medium else await self._read(response))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise FetchFailed(
                MetadataStatus.UNREACHABLE_TOKEN_URI,
                f"{error_words(error)}: {error.__cause__ or error}"[:200],
            ) from error

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        """Return the decompressed body, or the beginning of a medium.

        No more than the limit is ever in memory.
        """
        media_type = response.content_type.lower()

        def is_medium(beginning: bytes) -> bool:
            return detect_medium(media_type, beginning) is not None

        content = await read_body(response, self._settings.max_document_bytes, is_medium)
        if content is None:
            raise FetchFailed(
                MetadataStatus.METADATA_CONTENT_TOO_LARGE, "the document is too large"
            )
        return content


def _status_failure(response: aiohttp.ClientResponse) -> FetchFailed:
    status = MetadataStatus.UNREACHABLE_TOKEN_URI
    if response.status == 429:
        status = MetadataStatus.THROTTLED_TOKEN_URI
    retry_after_s = None
    if response.status in (429, 503):
        retry_after_s = parse_retry_after(response.headers.get("Retry-After"), time.time(), DAY_S)
    return FetchFailed(status, f"status {response.status}", retry_after_s)


@asynccontextmanager
async def open_fetcher(
    settings: MetadataSettings,
    policy: AddressPolicy | None = None,
    dns_resolver: dns_client.Resolver | None = None,
) -> AsyncIterator[DocumentFetcher]:
    """Hold a fetcher.

    policy: the servers that may be called; None: the policy of the settings.
    """
    policy = policy or AddressPolicy(settings.exempt_servers)
    async with checked_session(policy, dns_resolver) as session:
        yield DocumentFetcher(session, policy, settings)


log = logging.getLogger(__name__)

# The failure of the URL that came furthest is reported: the last of these.
_PROGRESS: Final = (
    MetadataStatus.UNREACHABLE_TOKEN_URI,
    MetadataStatus.THROTTLED_TOKEN_URI,
    MetadataStatus.METADATA_CONTENT_TOO_LARGE,
    MetadataStatus.INVALID_METADATA_JSON,
    MetadataStatus.INVALID_METADATA,
)


class DocumentResult(Struct, frozen=True):
    """The outcome of an attempt to read a document.

    fields: fields of the document; None unless the status is INDEXED.
    retry_after_s: the delay that the server asks for; None without one.
    """

    status: MetadataStatus
    fields: NftFields | None = None
    retry_after_s: float | None = None


def read_inline(document: InlineDocument, uri: str, filled_id: int | None) -> DocumentResult:
    """Return the result of a document inside its URI.

    filled_id: the id that takes the place of `{id}` in the document of an ERC-1155 token.
    """
    return _furthest(
        _parse(document.media_type, content, uri, filled_id) for content in document.contents
    )


async def read_remote(
    fetcher: DocumentFetcher,
    document: RemoteDocument,
    uri: str,
    filled_id: int | None,
    lane: FetchLane,
    timeout_s: float,
) -> DocumentResult:
    """Return the result of a document on a server.

    timeout_s: time that its URLs share, which are tried in order.
    """
    failures: list[DocumentResult] = []
    page: DocumentResult | None = None
    for url in document.urls:
        try:
            response = await fetcher.fetch(url, lane, timeout_s / len(document.urls))
            result = _parse(response.media_type, response.content, uri, filled_id)
            if detect_medium(response.media_type, response.content) is Medium.PAGE:
                # The host of a gateway that is gone may answer with a page of its own.
                page = page or result
                continue
        except FetchFailed as error:
            # The path of a URL may hold a key.
            log.debug(
                "metadata document was not read", extra={"host": url.host, "reason": str(error)}
            )
            result = DocumentResult(error.status, retry_after_s=error.retry_after_s)
        if result.fields is not None:
            return result
        failures.append(result)
    return page or _furthest(failures)


def _parse(media_type: str, content: bytes, uri: str, filled_id: int | None) -> DocumentResult:
    medium = detect_medium(media_type, content)
    fields = NftFields() if medium is None else medium_document(medium, uri)
    if fields != NftFields():
        return DocumentResult(MetadataStatus.INDEXED, fields)
    try:
        return DocumentResult(MetadataStatus.INDEXED, parse_document(content, filled_id))
    except UnusableMetadata as error:
        return DocumentResult(error.status)


def _furthest(results: Iterable[DocumentResult]) -> DocumentResult:
    """Return the first result with fields, else the failure that came furthest."""
    # Without any result there is no gateway for the URI, so the document is unreachable.
    failure = DocumentResult(MetadataStatus.UNREACHABLE_TOKEN_URI)
    for result in results:
        if result.fields is not None:
            return result
        failure = max(failure, result, key=lambda result: _PROGRESS.index(result.status))
    return failure
