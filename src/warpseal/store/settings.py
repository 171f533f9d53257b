"""Every default, unit and bound of the store; docs/store.md tells what they mean to an operator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

GIBIBYTE: Final = 1024**3
DAY_S: Final = 86_400.0
OFF: Final = "off"


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """What an operator may set about the store, and what it may cost.

    url: "" is store.db in the daemon's folder; else "sqlite:///<path>", "postgresql://...", or "off".
    max_bytes, max_age_s: of everything that may be evicted. The others: memory for writes that wait, how long
    anybody waits for the database, and how writes are gathered.
    """

    url: str = field(default="", repr=False)
    max_bytes: int = GIBIBYTE
    max_age_s: float = 30 * DAY_S

    max_queued_bytes: int = 64 * 1024 * 1024
    commit_timeout_s: float = 1.0
    load_timeout_s: float = 1.0
    gather_s: float = 0.5
    retry_first_s: float = 0.25
    retry_cap_s: float = 5.0
    stop_timeout_s: float = 5.0
    first_prune_s: float = 5.0
    prune_interval_s: float = 30.0
    prune_batch: int = 100
    max_addresses: int = 50_000
    readers: int = 2
    max_queued_reads: int = 64
    call_timeout_s: float = 30.0
    address_timeout_s: float = 5.0
