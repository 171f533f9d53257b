"""Metadata of NFTs: token URIs -> documents inside them or URLs to read them from -> the fields that responses show.

Sources of truth: ERC-721 and ERC-1155 (`{id}`, metadata schemas), the further spellings that marketplaces accept, and
RFC 2397 (`data:`). Contracts and servers are hostile: every text is accepted.
"""

from __future__ import annotations

import binascii
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import Struct
from yarl import URL

from warpseal.chains.evm.facts import MetadataStatus

MAX_DOCUMENT_BYTES: Final = 1024 * 1024
MAX_LEVELS: Final = 64
"""Levels of lists and objects inside each other."""
MAX_DECIMALS: Final = 255

_BOM: Final = b"\xef\xbb\xbf"
_SHOWN_URI: Final = re.compile(r"https?://[^\s/?#]|ipfs://[^\s]|ar://[^\s]|data:(?:image|audio|video)/", re.IGNORECASE)
_SVG: Final = re.compile(r"(?:<\?xml[^>]*>\s*)?<svg[\s>]", re.IGNORECASE)


class NftFields(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """Fields of a metadata document; None: absent. attributes, properties: JSON text.

    No text has a NUL, which PostgreSQL refuses. A URI is http(s), ipfs, ar, or data of an image, audio or video.
    """

    name: str | None = None
    symbol: str | None = None
    image_uri: str | None = None
    description: str | None = None
    animation_uri: str | None = None
    external_url: str | None = None
    background: str | None = None
    attributes: str | None = None
    decimals: int | None = None
    properties: str | None = None


def parse_document(content: bytes, token_id: int | None = None) -> NftFields:
    """Return the fields of a JSON document. Raises UnusableMetadata.

    token_id: of an ERC-1155 token, whose documents have `{id}` in place of it; None: nothing is replaced.
    """
    if token_id is not None:
        content = fill_token_id(content, token_id)
    if len(content) > MAX_DOCUMENT_BYTES:
        raise UnusableMetadata(MetadataStatus.METADATA_CONTENT_TOO_LARGE)
    try:
        document: Any = msgspec.json.decode(content.removeprefix(_BOM).strip())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnusableMetadata(MetadataStatus.INVALID_METADATA_JSON) from error
    if not _is_shallow(content, document):
        raise UnusableMetadata(MetadataStatus.INVALID_METADATA_JSON)
    if not isinstance(document, dict):
        raise UnusableMetadata(MetadataStatus.INVALID_METADATA)
    values: dict[str, Any] = {}
    for key, value in document.items():
        values.setdefault(key.lower().replace("_", "").replace("-", ""), value)
    return NftFields(**{name: _first_usable(values, read, keys) for name, (read, keys) in _FIELDS.items()})


def image_document(uri: str) -> NftFields:
    """Return the fields of a token whose URI is an image instead of a document."""
    return NftFields(image_uri=_uri(uri))


def _is_shallow(content: bytes, document: Any) -> bool:
    """Return whether no list and no object is deeper than the limit."""
    if content.count(b"[") + content.count(b"{") <= MAX_LEVELS:
        return True
    level = _containers([document])
    for _ in range(MAX_LEVELS):
        level = _containers(
            child for value in level for child in (value.values() if isinstance(value, dict) else value)
        )
        if not level:
            return True
    return False


def _containers(values: Iterable[Any]) -> list[dict[str, Any] | list[Any]]:
    return [value for value in values if isinstance(value, dict | list)]


def _first_usable(values: dict[str, Any], read: Callable[[Any], str | int | None], keys: Iterable[str]) -> Any:
    readings = (read(values[key]) for key in keys if key in values)
    return next((reading for reading in readings if reading not in (None, "")), None)


def _text(value: Any) -> str | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return value.replace("\0", "") if isinstance(value, str) else None


def _uri(value: Any) -> str | None:
    if not isinstance(value, str):
        return None
    uri = value.replace("\0", "").strip()
    if _SVG.match(uri):
        return "data:image/svg+xml;base64," + b64encode(uri.encode()).decode()
    return uri if _SHOWN_URI.match(uri) else None


def _json_text(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _decimals(value: Any) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 3:
        value = int(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number and value == int(value) and 0 <= value <= MAX_DECIMALS else None


# For each field, its reader and its keys in lower case, without `_` and `-`. The first key with a usable value counts.
_FIELDS: Final[Mapping[str, tuple[Callable[[Any], str | int | None], tuple[str, ...]]]] = {
    "name": (_text, ("name",)),
    "symbol": (_text, ("symbol",)),
    "image_uri": (_uri, ("image", "imageurl", "imageuri", "imagedata")),
    "description": (_text, ("description",)),
    "animation_uri": (_uri, ("animationurl", "animationuri", "animation")),
    "external_url": (_uri, ("externalurl", "externaluri", "externallink")),
    "background": (_text, ("backgroundcolor", "background")),
    "attributes": (_json_text, ("attributes", "traits")),
    "decimals": (_decimals, ("decimals",)),
    "properties": (_json_text, ("properties",)),
}


MAX_URI_BYTES: Final = 1024 * 1024
MAX_URL_BYTES: Final = 16 * 1024
"""A longer URL is not requested: servers refuse lines of less than that."""

_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]*):", re.IGNORECASE)
_DATA: Final = re.compile(r"data:([^,]*),(.*)", re.IGNORECASE | re.DOTALL)
_IPFS: Final = re.compile(r"ipfs:/{0,2}(?:ipfs/)?([a-z0-9]{1,128}(?:[/?].*)?)", re.IGNORECASE | re.DOTALL)
_ARWEAVE: Final = re.compile(r"ar:/{0,2}([a-z0-9_-]{1,128}(?:[/?].*)?)", re.IGNORECASE | re.DOTALL)
_IPFS_PATH: Final = re.compile(r"https?://[^/?#]+/ipfs/([a-z0-9]{1,128}(?:[/?].*)?)", re.IGNORECASE | re.DOTALL)
_IPFS_HOST: Final = re.compile(r"https?://([a-z0-9]{1,63})\.ipfs\.[^/?#]+(.*)", re.IGNORECASE | re.DOTALL)
_WHITE_SPACE: Final = re.compile(rb"\s+")
_URL_SAFE: Final = bytes.maketrans(b"-_", b"+/")


class UnusableMetadata(Exception):
    """A token URI that names no document, or a document without fields. status: the status of the token."""

    def __init__(self, status: MetadataStatus, detail: str = "") -> None:
        super().__init__(detail or status.name)
        self.status = status


@dataclass(frozen=True, slots=True)
class Gateways:
    """Base URLs of HTTP gateways, without a slash at the end, in the order in which they are tried.

    `/ipfs/<CID>` is appended to those of IPFS, and `/<transaction id>` to those of Arweave.
    """

    ipfs: tuple[str, ...] = ()
    arweave: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class InlineDocument:
    """A document in the URI itself. contents: its readings, the first that is JSON counts."""

    media_type: str
    contents: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class RemoteDocument:
    """A document on a server. urls: the first that works counts; none: it cannot be reached."""

    urls: tuple[URL, ...]


def fill_token_id(text: bytes, token_id: int) -> bytes:
    """Replace `{id}` by the id in 64 lower-case hex digits, as ERC-1155 wants it in URIs and in documents."""
    return text.replace(b"{id}", b"%064x" % token_id)


def parse_token_uri(uri: str, gateways: Gateways) -> InlineDocument | RemoteDocument:
    """Return where the document is. Raises UnusableMetadata.

    uri: without white space around it; `{id}` is replaced. An http(s) URL of an IPFS gateway is tried first, and then
    the configured gateways, since many gateways are gone.
    """
    if not uri or len(uri.encode(errors="replace")) > MAX_URI_BYTES:
        raise UnusableMetadata(MetadataStatus.INVALID_TOKEN_URI)
    if uri[0] in "{[":
        return InlineDocument("", (_encode(uri),))
    scheme = _SCHEME.match(uri)
    if len(uri) > MAX_URL_BYTES and scheme is not None and scheme[1].lower() in ("http", "https", "ipfs", "ar"):
        return RemoteDocument(())
    match scheme[1].lower() if scheme else "":
        case "data":
            return _parse_data(uri)
        case "http" | "https":
            path, host = _IPFS_PATH.match(uri), _IPFS_HOST.match(uri)
            content = path[1] if path else host[1] + host[2] if host else ""
            return _parse_urls(uri, *(f"{base}/ipfs/{content}" for base in gateways.ipfs if content))
        case "ipfs" if content := _IPFS.fullmatch(uri):
            return _parse_urls(*(f"{base}/ipfs/{content[1]}" for base in gateways.ipfs))
        case "ar" if content := _ARWEAVE.fullmatch(uri):
            return _parse_urls(*(f"{base}/{content[1]}" for base in gateways.arweave))
        case "" | "ipfs" | "ar":
            raise UnusableMetadata(MetadataStatus.INVALID_TOKEN_URI)
        case _:
            raise UnusableMetadata(MetadataStatus.INVALID_TOKEN_URI_SCHEME)


def parse_http_url(text: str) -> URL:
    """Return an http(s) URL with a host, percent-encoded. Raises ValueError."""
    url = URL(text)
    if url.scheme not in ("http", "https") or not url.raw_host or not url.port:
        raise ValueError("expected http(s):// and a host")
    return url


def _parse_urls(*texts: str) -> RemoteDocument:
    try:
        return RemoteDocument(tuple(dict.fromkeys(map(parse_http_url, texts))))
    except ValueError as error:
        raise UnusableMetadata(MetadataStatus.INVALID_TOKEN_URI) from error


def _parse_data(uri: str) -> InlineDocument:
    """Return the document of a `data:` URI.

    Many contracts write JSON without percent-encoding it, with `%` and `#` in it, so the payload as it stands is the
    second reading.
    """
    match = _DATA.fullmatch(uri)
    if match is None:
        raise UnusableMetadata(MetadataStatus.INVALID_TOKEN_URI)
    media_type, *parameters = (part.strip().lower() for part in match[1].split(";"))
    payload, decoded = _encode(match[2]), unquote_to_bytes(_encode(match[2]))
    if "base64" not in parameters:
        return InlineDocument(media_type, tuple(dict.fromkeys((decoded, payload))))
    digits = _WHITE_SPACE.sub(b"", decoded).translate(_URL_SAFE).rstrip(b"=")
    try:
        return InlineDocument(media_type, (b64decode(digits + b"=" * (-len(digits) % 4), validate=True),))
    except binascii.Error as error:
        raise UnusableMetadata(MetadataStatus.INVALID_TOKEN_URI) from error


def _encode(text: str) -> bytes:
    return text.encode(errors="replace")
