"""Settings of the index database; docs/index.md says what they mean to an operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from warpseal.runtime.settings import MEBIBYTE, Group, integer, setting
from warpseal.store.settings import database_url
from warpseal.store.url import redacted_url


def index_url(value: Any, path: str) -> str:
    """Accept the URL of the index."""
    return database_url(value, path, "to index nothing, leave out index-chains and every index of evm-chains")


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """url: empty: index.db in the daemon's folder; a PostgreSQL database gets a schema for the index.

    cache_bytes: memory for SQLite pages of the writing process, and the most for all readers of one process.
    recent_outputs, known_addresses: entries in the writer's memory. raw_bytes: of blocks that are compressed together.
    readers: connections that read. refresh_s: interval at which the heights are read. node_height_ttl_s: lifetime of
    the last known height of a node.
    """

    url: str = setting(
        "",
        "index-url",
        index_url,
        "URL of the index, sqlite:///PATH or postgresql://USER@HOST/NAME; unset: a file in data-dir",
        "URL",
        group=Group.INDEX,
        display=redacted_url,
    )
    cache_bytes: int = setting(
        256 * MEBIBYTE,
        "index-cache-bytes",
        integer(MEBIBYTE, 10**12),
        "memory for pages of the index, bytes",
        group=Group.INDEX,
    )
    recent_outputs: int = 200_000
    known_addresses: int = 200_000
    raw_bytes: int = 256 * 1024

    readers: int = 2
    max_queued_reads: int = 64
    read_timeout_s: float = 10.0
    refresh_s: float = 0.5
    node_height_ttl_s: float = 60.0
