"""Settings of the observed uptime of nodes and validations."""

from __future__ import annotations

from dataclasses import dataclass

from warpseal.runtime.settings import DAY_S


@dataclass(frozen=True, slots=True)
class UptimeSettings:
    """Durations in seconds.

    retention_s: of hourly records, and of validations that ended. heartbeat_s: interval of reading the clock;
    max_gap_s: a longer gap between two readings counts for no node. unconfirmed_s: time for which a validation counts
    that no node confirms. recent_s: window of which a full day must be observed. max_queued_hours: records in memory
    that no store accepts.
    """

    retention_s: float = 30 * DAY_S

    heartbeat_s: float = 1.0
    max_gap_s: float = 5.0
    refresh_s: float = 5.0
    write_s: float = 60.0
    retry_s: float = 5.0
    prune_s: float = 3_600.0
    unconfirmed_s: float = 300.0
    recent_s: float = 3 * DAY_S
    max_validations: int = 20_000
    max_nodes: int = 50_000
    max_queued_hours: int = 100_000
