"""Reads metadata documents: from the token URI of a contract to the fields, or to the status that names the failure.

A URL that a contract names is hostile: it may lead into the network of the operator (SSRF), send without end, or never
respond. Every address of a host must be global, and the connection goes to an address that was checked; redirects are
followed here, each one checked like the first URL. Source of the address ranges: the IANA special-purpose registries,
RFC 6052, 3056.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import socket
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from msgspec import Struct
from yarl import URL

from warpseal.chains.evm.nft_document import NftFields, image_document, parse_document
from warpseal.chains.evm.token_uri import InlineDocument, RemoteDocument, UnusableMetadata, parse_http_url
from warpseal.indexer.evm.metadata_settings import ExemptServer, MetadataSettings
from warpseal.resources.evm import MetadataStatus
from warpseal.runtime.http_session import aiohttp, new_session
from warpseal.runtime.lazy import LazyModule
from warpseal.runtime.locks import AsyncSemaphore
from warpseal.runtime.process import error_words
from warpseal.runtime.settings import DAY_S
from warpseal.upstream.limits import parse_retry_after

if TYPE_CHECKING:
    from dns import asyncresolver as dns_client
    from dns import exception as dns_errors
else:
    dns_client = LazyModule("dns.asyncresolver")
    dns_errors = LazyModule("dns.exception")

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

IMAGE: Final = "image/"

_GLOBAL_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
# For documentation; the module ipaddress of Python 3.11 to 3.13 does not know it.
_DOCUMENTATION: Final = ipaddress.IPv6Network("3fff::/20")
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_PORTS: Final = frozenset((80, 443))
_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))
_MAX_ADDRESSES: Final = 8
_DNS_TIMEOUT_S: Final = 5.0
_KEEP_ALIVE_S: Final = 5.0
_AUTO_DETECT: Final = 32 + zlib.MAX_WBITS
"""zlib's window bits for gzip or zlib, whichever the data begins with."""


class FetchFailed(UnusableMetadata):
    """A document could not be read.

    status: unreachable, throttled or too large. detail: the reason for the log.
    retry_after_s: the delay that the server asks for, None without one.
    """

    def __init__(self, status: MetadataStatus, detail: str, retry_after_s: float | None = None) -> None:
        super().__init__(status, detail)
        self.retry_after_s = retry_after_s


class FetchLane(StrEnum):
    """Requests of one lane share slots. BACKGROUND leaves slots free, so that a reindex never waits for it."""

    BACKGROUND = "background"
    REINDEX = "reindex"


class FetchedDocument(Struct, frozen=True):
    """The response of a server. content: empty if the media type is an image, which is not read."""

    media_type: str
    content: bytes


def is_global_address(address: IpAddress) -> bool:
    """Return whether an address belongs to the public Internet; an IPv4 address inside an IPv6 one decides alone."""
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not address.is_multicast and not address.is_reserved
    inner = address.ipv4_mapped or address.sixtofour
    if address in _NAT64:
        inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if inner is not None:
        return is_global_address(inner)
    return address.is_global and address in _GLOBAL_UNICAST and address not in _DOCUMENTATION


class AddressPolicy(Struct, frozen=True):
    """Which servers may be reached. exempt: servers whose addresses are not checked."""

    exempt: frozenset[ExemptServer] = frozenset()
    ports: frozenset[int] = _PORTS
    is_allowed: Callable[[IpAddress], bool] = is_global_address

    def is_exempt(self, host: str, port: int) -> bool:
        """Return whether a server is configured, so that it may be at any address and port."""
        return any(server.host == host and server.port in (port, None) for server in self.exempt)

    def _check_exempt(self, url: URL) -> None:
        """Raise FetchFailed if no configuration allows this path of a server that is configured."""
        # A server may decode the path once more than this client does.
        path = unquote(unquote(url.raw_path))
        paths = [
            server.path for server in self.exempt if server.host == url.raw_host and server.port in (url.port, None)
        ]
        if not any(path.startswith(own) for own in paths) or ".." in re.split(r"[/\\]", path):
            raise FetchFailed(MetadataStatus.UNREACHABLE_TOKEN_URI, "refused: a path outside of the gateway's own")

    def check_url(self, url: URL) -> None:
        """Raise FetchFailed if a URL may not be requested. Hosts that are names are checked when they are resolved."""
        host, port = url.raw_host or "", url.port or 0
        if url.raw_user is not None or url.raw_password is not None:
            raise FetchFailed(MetadataStatus.UNREACHABLE_TOKEN_URI, "refused: userinfo in the URL")
        if self.is_exempt(host, port):
            self._check_exempt(url)
            return
        if port not in self.ports:
            raise FetchFailed(MetadataStatus.UNREACHABLE_TOKEN_URI, f"refused: port {port}")
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            # Sockets take 127.1 for an address, aiohttp any host with a colon: no resolver would see it.
            if ":" in host or "%" in host or host.replace(".", "").isdigit():
                raise FetchFailed(MetadataStatus.UNREACHABLE_TOKEN_URI, f"refused: host {host[:80]}") from None
            return
        if "%" in host:
            raise FetchFailed(MetadataStatus.UNREACHABLE_TOKEN_URI, "refused: an address with a zone")
        self.check_addresses([address])

    def check_addresses(self, addresses: Sequence[IpAddress]) -> None:
        """Raise FetchFailed unless every address may be reached."""
        refused = next((address for address in addresses if not self.is_allowed(address)), None)
        if refused is not None:
            raise FetchFailed(MetadataStatus.UNREACHABLE_TOKEN_URI, f"refused: address {refused}")


class CheckedResolver(aiohttp.abc.AbstractResolver):
    """Resolves names by DNS alone, not by files of this machine; aiohttp connects to the addresses that it returns.

    Configured hosts are resolved as the machine does it, since they may have a name only there.
    """

    def __init__(self, policy: AddressPolicy, dns_resolver: dns_client.Resolver | None = None) -> None:
        self._policy = policy
        self._dns = dns_resolver
        self._system = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[aiohttp.abc.ResolveResult]:
        """Return the addresses of a host. Raises OSError, also if one of them may not be reached."""
        if self._policy.is_exempt(host, port):
            return await self._system.resolve(host, port, family)
        try:
            addresses = await self._lookup(host)
        except dns_errors.DNSException as error:
            raise OSError(f"no DNS: {error}") from error
        try:
            self._policy.check_addresses(addresses)
        except FetchFailed as error:
            raise OSError(str(error)) from error
        return [_result(host, port, address) for address in addresses[:_MAX_ADDRESSES]]

    async def _lookup(self, host: str) -> list[IpAddress]:
        """Return the IPv6 and IPv4 addresses of a host; those of one kind if the other lookup fails."""
        # The DNS servers of the machine may change, so its resolver is made for each lookup.
        resolver = self._dns or dns_client.Resolver()
        lookups = [resolver.resolve(host, kind, lifetime=_DNS_TIMEOUT_S, search=False) for kind in ("AAAA", "A")]
        results = await asyncio.gather(*lookups, return_exceptions=True)
        records = [record for result in results if not isinstance(result, BaseException) for record in result]
        if not records and isinstance(failure := results[-1], BaseException):
            raise OSError(f"{error_words(failure)}: {host}")
        return [ipaddress.ip_address(record.address) for record in records]

    async def close(self) -> None:
        """Do nothing: no socket outlives a lookup."""


def _result(host: str, port: int, address: IpAddress) -> aiohttp.abc.ResolveResult:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return aiohttp.abc.ResolveResult(hostname=host, host=str(address), port=port, family=family, proto=0, flags=flags)


class DocumentFetcher:
    """Reads documents for all chains of a process: a bounded number of requests at a time, in all and per host.

    Both lanes have their own slots, in all and per host.
    """

    def __init__(self, session: aiohttp.ClientSession, policy: AddressPolicy, settings: MetadataSettings) -> None:
        self._session = session
        self._policy = policy
        self._settings = settings
        self._slots = {
            FetchLane.BACKGROUND: AsyncSemaphore(settings.max_requests - settings.reindex_requests),
            FetchLane.REINDEX: AsyncSemaphore(settings.reindex_requests),
        }
        self._host_slots = HostSlots(settings.requests_per_host)

    async def fetch(self, url: URL, lane: FetchLane, timeout_s: float) -> FetchedDocument:
        """Return the document of a URL. Raises FetchFailed. timeout_s: of all requests; waiting for slots is extra."""
        clock = asyncio.get_running_loop().time
        for _ in range(self._settings.max_redirects + 1):
            self._policy.check_url(url)
            async with self._host_slots.hold((lane, url.raw_host or "")), self._slots[lane]:
                started_at = clock()
                target = await self._request(url, timeout_s)
                timeout_s -= clock() - started_at
            if isinstance(target, FetchedDocument):
                return target
            url = target
        raise FetchFailed(MetadataStatus.UNREACHABLE_TOKEN_URI, "too many redirects")

    async def _request(self, url: URL, timeout_s: float) -> FetchedDocument | URL:
        """Return the document, or the URL to which a redirect leads."""
        try:
            async with asyncio.timeout(timeout_s), self._session.get(url, allow_redirects=False) as response:
                if response.status in _REDIRECTS:
                    return parse_http_url(str(url.join(URL(response.headers.get("Location", "")))))
                if not 200 <= response.status < 300:
                    raise _status_failure(response)
                media_type = response.content_type.lower()
                is_image = media_type.startswith(IMAGE)
                return FetchedDocument(media_type, b"" if is_image else await self._read(response))
        except (aiohttp.ClientError, OSError, ValueError, zlib.error) as error:
            raise FetchFailed(
                MetadataStatus.UNREACHABLE_TOKEN_URI, f"{error_words(error)}: {error.__cause__ or error}"[:200]
            ) from error

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        """Return the decompressed body, of which no more than the limit is ever held."""
        limit = self._settings.max_document_bytes
        encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise FetchFailed(MetadataStatus.UNREACHABLE_TOKEN_URI, f"content encoding {encoding[:32]}")
        decoder = None if encoding in ("", "identity") else zlib.decompressobj(_AUTO_DETECT)
        received, content = response.content_length or 0, bytearray()
        if received > limit:
            raise FetchFailed(MetadataStatus.METADATA_CONTENT_TOO_LARGE, "the document is too large")
        received = 0
        async for chunk in response.content.iter_any():
            received += len(chunk)
            content += chunk if decoder is None else decoder.decompress(chunk, limit + 1 - len(content))
            if max(received, len(content)) > limit:
                raise FetchFailed(MetadataStatus.METADATA_CONTENT_TOO_LARGE, "the document is too large")
        if decoder is not None and not decoder.eof:
            raise FetchFailed(MetadataStatus.UNREACHABLE_TOKEN_URI, "the compressed body is cut off")
        return bytes(content)


def _status_failure(response: aiohttp.ClientResponse) -> FetchFailed:
    status = MetadataStatus.THROTTLED_TOKEN_URI if response.status == 429 else MetadataStatus.UNREACHABLE_TOKEN_URI
    retry_after_s = None
    if response.status in (429, 503):
        retry_after_s = parse_retry_after(response.headers.get("Retry-After"), time.time(), DAY_S)
    return FetchFailed(status, f"status {response.status}", retry_after_s)


class HostSlots:
    """A bounded number of holders per lane and host; hosts without holders take no memory."""

    def __init__(self, per_host: int) -> None:
        self._per_host = per_host
        self._semaphores: dict[tuple[FetchLane, str], AsyncSemaphore] = {}
        self._users: Counter[tuple[FetchLane, str]] = Counter()

    @asynccontextmanager
    async def hold(self, key: tuple[FetchLane, str]) -> AsyncIterator[None]:
        """Hold a slot of a host, as soon as one is free."""
        if key not in self._semaphores:
            self._semaphores[key] = AsyncSemaphore(self._per_host)
        self._users[key] += 1
        try:
            async with self._semaphores[key]:
                yield
        finally:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key], self._semaphores[key]


@asynccontextmanager
async def open_fetcher(
    settings: MetadataSettings,
    policy: AddressPolicy | None = None,
    dns_resolver: dns_client.Resolver | None = None,
) -> AsyncIterator[DocumentFetcher]:
    """Hold a fetcher. policy: that of the settings unless given."""
    policy = policy or AddressPolicy(settings.exempt_servers)
    resolver = CheckedResolver(policy, dns_resolver)
    connector = aiohttp.TCPConnector(resolver=resolver, limit=0, keepalive_timeout=_KEEP_ALIVE_S)
    async with new_session(connector) as session:
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
    """What an attempt to read a document led to. fields: only if the status is INDEXED.

    retry_after_s: that the server asks to wait, else None.
    """

    status: MetadataStatus
    fields: NftFields | None = None
    retry_after_s: float | None = None


def read_inline(document: InlineDocument, uri: str, filled_id: int | None) -> DocumentResult:
    """Return what a document inside its URI holds. filled_id: takes the place of `{id}` in it, of ERC-1155 tokens."""
    return _furthest(_parse(document.media_type, content, uri, filled_id) for content in document.contents)


async def read_remote(
    fetcher: DocumentFetcher,
    document: RemoteDocument,
    uri: str,
    filled_id: int | None,
    lane: FetchLane,
    timeout_s: float,
) -> DocumentResult:
    """Return what a document on a server holds. timeout_s: shared by its URLs, which are tried in order."""
    failures: list[DocumentResult] = []
    for url in document.urls:
        try:
            response = await fetcher.fetch(url, lane, timeout_s / len(document.urls))
            result = _parse(response.media_type, response.content, uri, filled_id)
        except FetchFailed as error:
            # The path of a URL may hold a key.
            log.debug("metadata document was not read", extra={"host": url.host, "reason": str(error)})
            result = DocumentResult(error.status, retry_after_s=error.retry_after_s)
        if result.fields is not None:
            return result
        failures.append(result)
    return _furthest(failures)


def _parse(media_type: str, content: bytes, uri: str, filled_id: int | None) -> DocumentResult:
    if media_type.startswith(IMAGE):
        return DocumentResult(MetadataStatus.INDEXED, image_document(uri))
    try:
        return DocumentResult(MetadataStatus.INDEXED, parse_document(content, filled_id))
    except UnusableMetadata as error:
        return DocumentResult(error.status)


def _furthest(results: Iterable[DocumentResult]) -> DocumentResult:
    """Return the first result with fields, else the failure that came furthest; no gateway at all is no way there."""
    failure = DocumentResult(MetadataStatus.UNREACHABLE_TOKEN_URI)
    for result in results:
        if result.fields is not None:
            return result
        failure = max(failure, result, key=lambda result: _PROGRESS.index(result.status))
    return failure
