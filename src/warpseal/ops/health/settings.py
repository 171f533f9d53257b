"""Every default, unit and bound of the health checks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """What an operator may set about health.

    check_frequency_s: between two rounds of all checks. max_lag_s: how old the first block may be that a followed
    chain misses. warn_disk_percent, fail_disk_percent: of the space on the disk of the data folder.
    """

    check_frequency_s: float = 30.0
    max_lag_s: float = 120.0
    warn_disk_percent: int = 10
    fail_disk_percent: int = 3
