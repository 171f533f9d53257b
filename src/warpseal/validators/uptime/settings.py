"""Every default, unit and bound of what is observed."""

from __future__ import annotations

from dataclasses import dataclass

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class UptimeSettings:
    """What an operator may set about what is observed, and what it may cost. Durations in seconds.

    keep_s: of hours, and of validations that ended. beat_s: between two looks at the clock; max_gap_s: a longer time
    without one is credited to nobody. unconfirmed_s: how long a validation counts that nobody confirms.
    max_waiting_hours: rows in memory that no store takes. recent_s: where a full day must be observed.
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
