"""Settings of the health checks."""

from __future__ import annotations

from dataclasses import dataclass

from warpseal.runtime.settings import DAY_S, HOUR_S, Group, duration, setting


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """max_lag_s: age of the first missing block of a followed chain. *_disk_percent: free space of data-dir's disk."""

    check_frequency_s: float = setting(
        30.0,
        "health-check-frequency",
        duration(0.1, HOUR_S),
        "interval of the health checks, such as 30s, or in seconds",
        "DURATION",
        group=Group.HTTP,
        is_node=True,
    )
    max_lag_s: float = setting(
        120.0,
        "health-max-lag",
        duration(1, DAY_S),
        "lag beyond which a followed chain is unhealthy, such as 2m, or in seconds",
        "DURATION",
        group=Group.HTTP,
    )
    warn_disk_percent: int = 10
    fail_disk_percent: int = 3
