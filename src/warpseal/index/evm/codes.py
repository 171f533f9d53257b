"""Numbers of the values of enumerations in columns, and texts in columns. Numbers are never given to another value."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from warpseal.resources.evm import ErcType, MetadataStatus

ERC_TYPES: Final = (ErcType.UNKNOWN, ErcType.ERC20, ErcType.ERC721, ErcType.ERC1155)
STATUSES: Final = (
    MetadataStatus.UNINDEXED,
    MetadataStatus.INDEXED,
    MetadataStatus.UNKNOWN,
    MetadataStatus.MISSING_TOKEN,
    MetadataStatus.INVALID_TOKEN_URI,
    MetadataStatus.INVALID_TOKEN_URI_SCHEME,
    MetadataStatus.UNREACHABLE_TOKEN_URI,
    MetadataStatus.THROTTLED_TOKEN_URI,
    MetadataStatus.METADATA_CONTENT_TOO_LARGE,
    MetadataStatus.INVALID_METADATA,
    MetadataStatus.INVALID_METADATA_JSON,
)


class RequestKind(IntEnum):
    """What a daemon asks the indexer for."""

    CONTRACT = 0
    SHOWN_TOKEN = 1
    REINDEX = 2


def encode_text(text: str) -> bytes:
    """Return the bytes of a text that a contract or a server gave; PostgreSQL's own texts have no zero character."""
    return text.encode("utf-8", "replace")


def decode_text(raw: bytes) -> str:
    """Return the text of a column."""
    return bytes(raw).decode("utf-8", "replace")
