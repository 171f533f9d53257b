"""Token URIs, as contracts return them: documents inside the URI, and URLs to read them from.

Sources of truth: ERC-721, ERC-1155 (`{id}`), RFC 2397 (`data:`), multiformats (content ids of
IPFS). Contracts are hostile: every text is accepted.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from msgspec import Struct
from yarl import URL

from warpseal.chains.evm.facts import MetadataStatus
from warpseal.runtime.http_url import InvalidUrl, parse_http_url

MAX_URI_BYTES: Final = 1024 * 1024
MAX_URL_BYTES: Final = 16 * 1024
"""A longer URL is not requested: servers refuse lines of less than that."""

_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]*):", re.IGNORECASE)
_DATA: Final = re.compile(r"data:([^,]*),(.*)", re.IGNORECASE | re.DOTALL)
_IPFS: Final = re.compile(
    r"ipfs:/{0,3}(?:ipfs/)?([a-z0-9]{1,128})([/?].*)?", re.IGNORECASE | re.DOTALL
)
# Without a scheme an id has to be unmistakable: version 0 in base58, or version 1 in base32.
_BARE_IPFS: Final = re.compile(
    r"/?(?:ipfs/)?(Qm[1-9A-HJ-NP-Za-km-z]{44}|baf[a-z2-7]{40,125})([/?].*)?", re.DOTALL
)
_ARWEAVE: Final = re.compile(r"ar:/{0,2}([a-z0-9_-]{1,128})([/?].*)?", re.IGNORECASE | re.DOTALL)
_PATH_CHARACTERS: Final = "/%:@!$&'()*+,;=~"
_BARE_PERCENT: Final = re.compile("%(?![0-9a-f]{2})", re.IGNORECASE)
_TOKEN_ID: Final = re.compile(rb"(?i:\{id\}|%7Bid%7D)|\$TOKEN_ID")
_IPFS_PATH: Final = re.compile(
    r"https?://[^/?#]+/ipfs/([a-z0-9]{1,128}(?:[/?].*)?)", re.IGNORECASE | re.DOTALL
)
_IPFS_HOST: Final = re.compile(
    r"https?://([a-z0-9]{1,63})\.ipfs\.[^/?#]+(.*)", re.IGNORECASE | re.DOTALL
)
_WHITE_SPACE: Final = re.compile(rb"\s+")
_URL_SAFE: Final = bytes.maketrans(b"-_", b"+/")


class UnusableMetadata(Exception):
    """A token URI that names no document, or a document without fields.

    status: the status of the token.
    """

    def __init__(self, status: MetadataStatus, detail: str = "") -> None:
        super().__init__(detail or status.name)
        self.status = status


class Gateways(Struct, frozen=True):
    """Base URLs of HTTP gateways, without a slash at the end, in the order in which they are tried.

    `/ipfs/<CID>` is appended to IPFS gateways, and `/<transaction id>` to Arweave gateways.
    """

    ipfs: tuple[str, ...] = ()
    arweave: tuple[str, ...] = ()


class InlineDocument(Struct, frozen=True):
    """A document in the URI itself.

    contents: the possible readings of the document; the first that is JSON counts.
    """

    media_type: str
    contents: tuple[bytes, ...]


class RemoteDocument(Struct, frozen=True):
    """A document on a server.

    urls: the first URL that works counts; empty if no URL can reach the document.
    """

    urls: tuple[URL, ...]


def fill_token_id(text: bytes, token_id: int) -> bytes:
    """Replace `{id}` by the id in 64 lower-case hex digits, in a URI or a document of ERC-1155.

    Its other spellings are `{ID}`, `%7Bid%7D` and `$TOKEN_ID`.
    """
    return _TOKEN_ID.sub(b"%064x" % token_id, text)


def content_uri(uri: str) -> str | None:
    """Return a URI of IPFS or Arweave as ipfs://CID/path or ar://ID/path.

    Returns None if it is no such URI, or is too long.
    What follows the id is a path, also a `?` or a `#` in it. Each of its characters is
    percent-encoded once.
    """
    if len(uri) > MAX_URL_BYTES:
        return None
    for scheme, pattern in (("ipfs", _IPFS), ("ipfs", _BARE_IPFS), ("ar", _ARWEAVE)):
        if match := pattern.fullmatch(uri):
            path = match[2] or ""
            # Directly behind an id only a query can follow.
            if path.startswith("/"):
                path = quote(
                    _BARE_PERCENT.sub("%25", path), safe=_PATH_CHARACTERS, errors="replace"
                )
            return f"{scheme}://{match[1]}{path}"
    return None


def parse_token_uri(uri: str, gateways: Gateways) -> InlineDocument | RemoteDocument:
    """Return the place of the document. Raises UnusableMetadata.

    uri: URI without white space around it, with `{id}` replaced. An http(s) URL of an IPFS
        gateway is tried first, and then the configured gateways, since many gateways are gone.
    """
    if not uri or len(uri.encode(errors="replace")) > MAX_URI_BYTES:
        raise UnusableMetadata(MetadataStatus.INVALID_TOKEN_URI)
    if uri[0] in "{[":
        return InlineDocument("", (_encode(uri),))
    content = content_uri(uri)
    prefix = _SCHEME.match(content or uri)
    scheme = prefix[1].lower() if prefix else ""
    if len(uri) > MAX_URL_BYTES and scheme in ("http", "https", "ipfs", "ar"):
        return RemoteDocument(())
    match scheme:
        case "data":
            return _parse_data(uri)
        case "http" | "https":
            location = _ipfs_location(uri)
            bases = gateways.ipfs if location else ()
            return _parse_urls([uri, *(f"{base}/ipfs/{location}" for base in bases)])
        case "ipfs" if content:
            location = content.removeprefix("ipfs://")
            return _parse_urls([f"{base}/ipfs/{location}" for base in gateways.ipfs])
        case "ar" if content:
            location = content.removeprefix("ar://")
            return _parse_urls([f"{base}/{location}" for base in gateways.arweave])
        case "" | "ipfs" | "ar":
            raise UnusableMetadata(MetadataStatus.INVALID_TOKEN_URI)
        case _:
            raise UnusableMetadata(MetadataStatus.INVALID_TOKEN_URI_SCHEME)


def _ipfs_location(url: str) -> str:
    """Return the content id and path in the URL of an IPFS gateway; "" for another URL."""
    if match := _IPFS_PATH.match(url):
        return match[1]
    if match := _IPFS_HOST.match(url):
        return match[1] + match[2]
    return ""


def _parse_urls(texts: Iterable[str]) -> RemoteDocument:
    try:
        return RemoteDocument(tuple(dict.fromkeys(map(parse_http_url, texts))))
    except InvalidUrl as error:
        raise UnusableMetadata(MetadataStatus.INVALID_TOKEN_URI) from error


def _parse_data(uri: str) -> InlineDocument:
    """Return the document of a `data:` URI.

    Many contracts write JSON without percent-encoding it, with `%` and `#` in it, so the payload as
    it stands is the second reading.
    """
    match = _DATA.fullmatch(uri)
    if match is None:
        raise UnusableMetadata(MetadataStatus.INVALID_TOKEN_URI)
    media_type, *parameters = (part.strip().lower() for part in match[1].split(";"))
    payload, decoded = _encode(match[2]), unquote_to_bytes(_encode(match[2]))
    if "base64" not in parameters:
        return InlineDocument(media_type, tuple(dict.fromkeys((decoded, payload))))
    digits = _WHITE_SPACE.sub(b"", decoded).translate(_URL_SAFE).rstrip(b"=")
    padding = b"=" * (-len(digits) % 4)
    try:
        content = b64decode(digits + padding, validate=True)
    except binascii.Error as error:
        raise UnusableMetadata(MetadataStatus.INVALID_TOKEN_URI) from error
    return InlineDocument(media_type, (content,))


def _encode(text: str) -> bytes:
    return text.encode(errors="replace")
