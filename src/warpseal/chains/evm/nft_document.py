"""Metadata documents of NFTs: the JSON of any server -> the fields that responses show.

Sources of truth: the metadata schemas of ERC-721 and ERC-1155, and the further spellings that marketplaces accept.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from warpseal.chains.evm.facts import MetadataStatus
from warpseal.chains.evm.token_uri import UnusableMetadata, fill_token_id

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

    token_id: ID of an ERC-1155 token, whose documents have `{id}` in place of it; None: nothing is replaced.
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
