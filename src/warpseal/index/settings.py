"""Every default, unit and bound of the index; docs/index.md tells what they mean to an operator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

MEBIBYTE: Final = 1024**2


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """What the index may cost, and how long anybody waits for it.

    url: "" is index.db in the daemon's folder; else "sqlite:///<path>", or "postgresql://...", where it has a schema
    of its own. cache_bytes: of pages of a SQLite file, of the process that writes, and at most of all who
    read in one process. recent_outputs, known_addresses: what the writer remembers. raw_bytes: of blocks that are
    compressed together. readers: connections that read; read_wait_s: how long anybody waits for an answer; refresh_s:
    how often the heights are looked at; believed_s: how long a node's height is believed after it was told.
    """

    url: str = field(default="", repr=False)
    cache_bytes: int = 256 * MEBIBYTE
    recent_outputs: int = 200_000
    known_addresses: int = 200_000
    raw_bytes: int = 256 * 1024

    readers: int = 2
    max_queued_reads: int = 64
    read_timeout_s: float = 10.0
    refresh_s: float = 0.5
    node_height_ttl_s: float = 60.0
