"""Metadata documents of NFTs: the JSON of any server -> the fields that responses show.

Sources of truth: the metadata schemas of ERC-721 and ERC-1155, and the further spellings that
marketplaces accept.
"""

from __future__ import annotations

import json
import math
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Struct

from warpseal.chains.evm.facts import MetadataStatus
from warpseal.chains.evm.token_uri import UnusableMetadata, content_uri, fill_token_id

MAX_DOCUMENT_BYTES: Final = 1024 * 1024
MAX_LEVELS: Final = 64
"""Levels of lists and objects inside each other."""
MAX_DECIMALS: Final = 255
# Python converts no more digits, to either side.
_MAX_DIGITS: Final = 4_300

DETECTED_BYTES: Final = 512
"""The most bytes at the beginning of a response that `detect_medium` needs."""

BLANKS: Final = " \t\r\n\v\f\0\x85\u00a0\u200b\u200c\u200d\u2028\u2029\u2060\u3000\ufeff"
"""Characters around documents and token URIs that editors and web pages leave there."""

_BOM: Final = b"\xef\xbb\xbf"
_SHOWN_URI: Final = re.compile(
    r"https?://[^\s/?#]|ipfs://[^\s]|ar://[^\s]|data:(?:image|audio|video|model)/", re.IGNORECASE
)
_SVG: Final = re.compile(r"(?:<\?xml[^>]*>\s*)?<svg[\s/>]", re.IGNORECASE)
_IMAGE_START: Final = re.compile(
    rb"\x89PNG\r\n|\xff\xd8\xff|GIF8[79]a|RIFF....WEBP|....ftyp(?:avi[fs]|hei[cx]|mif1)"
    rb"|(?i:(?:<[?!](?:xml|--|doctype)[^>]*>|\s)*+<svg[\s/>])",
    re.DOTALL,
)
_ANIMATION_START: Final = re.compile(
    rb"....ftyp|\x1aE\xdf\xa3|OggS|ID3|\xff[\xf2\xf3\xfb]|fLaC|RIFF....(?:WAVE|AVI )|glTF",
    re.DOTALL,
)
_PAGE_TYPES: Final = ("text/html", "application/xhtml+xml")


class Medium(StrEnum):
    """What a token URI leads to in place of a document.

    ANIMATION: video, audio or a 3D model; PAGE: of HTML.
    """

    IMAGE = "image"
    ANIMATION = "animation"
    PAGE = "page"


class NftFields(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """Fields of a metadata document; None: absent.

    attributes, properties: JSON text.

    No text has a NUL, which PostgreSQL refuses. A URI is http(s), ipfs, ar, or data of an image,
    audio, video or model.
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


def detect_medium(media_type: str, start: bytes) -> Medium | None:
    """Return the medium of a response, by its media type or its first bytes.

    Returns None if the response may be a document. Servers send documents as HTML as well, so a
    page has to begin with a tag.
    """
    kind, _, _ = media_type.partition("/")
    text_start = start[:DETECTED_BYTES].removeprefix(_BOM).lstrip()
    if kind == "image" or _IMAGE_START.match(text_start):
        return Medium.IMAGE
    if kind in ("video", "audio", "model") or _ANIMATION_START.match(start):
        return Medium.ANIMATION
    if media_type in _PAGE_TYPES and text_start.startswith(b"<"):
        return Medium.PAGE
    return None


def parse_document(content: bytes, token_id: int | None = None) -> NftFields:
    """Return the fields of a JSON document. Raises UnusableMetadata.

    A value that cannot be used does not hide the others. A document of such values alone is no
    JSON.

    token_id: ID of an ERC-1155 token, whose documents have `{id}` in place of it; None for other
        tokens.
    """
    if token_id is not None:
        content = fill_token_id(content, token_id)
    if len(content) > MAX_DOCUMENT_BYTES:
        raise UnusableMetadata(MetadataStatus.METADATA_CONTENT_TOO_LARGE)
    document, is_whole = _decode(content)
    if not isinstance(document, dict):
        raise UnusableMetadata(MetadataStatus.INVALID_METADATA)
    may_be_deep = content.count(b"[") + content.count(b"{") > MAX_LEVELS
    values: dict[str, list[Any]] = {}
    for key, value in document.items():
        if may_be_deep and not _is_shallow(value, MAX_LEVELS - 1):
            is_whole = False
            continue
        values.setdefault(key.lower().replace("_", "").replace("-", ""), []).append(value)
    usable: dict[str, Any] = {}
    for name, (parse, keys) in _FIELDS.items():
        usable[name] = _first_usable(values, parse, keys)
    fields = NftFields(**usable)
    if not is_whole and fields == NftFields():
        raise UnusableMetadata(MetadataStatus.INVALID_METADATA_JSON)
    return fields


def medium_document(medium: Medium, uri: str) -> NftFields:
    """Return the fields of a token whose URI is a medium instead of a document.

    No field is set if the URI is not shown.
    """
    if medium is Medium.IMAGE:
        return image_document(uri)
    return NftFields(animation_uri=_uri(uri))


def image_document(uri: str) -> NftFields:
    """Return the fields of a token whose URI is an image instead of a document."""
    return NftFields(image_uri=_uri(uri))


def _decode(content: bytes) -> tuple[Any, bool]:
    """Return the JSON value, and whether all values in it have a meaning. Raises UnusableMetadata.

    Numbers beyond all bounds are None, and texts may have lone surrogates.
    """
    try:
        text = content.decode().strip(BLANKS)
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(text), True
        value = json.loads(text, parse_int=_integer, parse_float=_finite, parse_constant=_finite)
        return value, False
    except (ValueError, RecursionError) as error:
        raise UnusableMetadata(MetadataStatus.INVALID_METADATA_JSON) from error


def _integer(digits: str) -> int | None:
    return int(digits) if len(digits) <= _MAX_DIGITS else None


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


def _is_shallow(value: Any, levels: int) -> bool:
    """Return whether no list and no object is deeper than that."""
    containers = [value] if isinstance(value, dict | list) else []
    for _ in range(levels):
        children: list[Any] = []
        for container in containers:
            children += container.values() if isinstance(container, dict) else container
        containers = [child for child in children if isinstance(child, dict | list)]
        if not containers:
            return True
    return False


def _first_usable(
    values: dict[str, list[Any]], read: Callable[[Any], str | int | None], keys: Iterable[str]
) -> Any:
    readings = (read(value) for key in keys for value in values.get(key, ()))
    return next((reading for reading in readings if reading not in (None, "")), None)


def _text(value: Any) -> str | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return value.replace("\0", "") if isinstance(value, str) else None


def _uri(value: Any) -> str | None:
    if not isinstance(value, str):
        return None
    uri = value.strip().strip(BLANKS).replace("\0", "")
    if _SVG.match(uri):
        return "data:image/svg+xml;base64," + b64encode(uri.encode(errors="replace")).decode()
    return content_uri(uri) or (uri if _SHOWN_URI.match(uri) else None)


def _json_text(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _container_text(value: Any) -> str | None:
    return _json_text(value) if isinstance(value, list | dict) else None


def _decimals(value: Any) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 3:
        value = int(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number and value == int(value) and 0 <= value <= MAX_DECIMALS else None


# For each field, its reader and its keys in lower case, without `_` and `-`. The first key with a
# usable value counts.
_FIELDS: Final[Mapping[str, tuple[Callable[[Any], str | int | None], tuple[str, ...]]]] = {
    "name": (_text, ("name",)),
    "symbol": (_text, ("symbol",)),
    "image_uri": (_uri, ("image", "imageurl", "imageuri", "imagedata")),
    "description": (_text, ("description",)),
    "animation_uri": (_uri, ("animationurl", "animationuri", "animation", "video", "file")),
    "external_url": (_uri, ("externalurl", "externaluri", "externallink")),
    "background": (_text, ("backgroundcolor", "background")),
    "attributes": (_container_text, ("attributes", "traits")),
    "decimals": (_decimals, ("decimals",)),
    "properties": (_json_text, ("properties",)),
}
