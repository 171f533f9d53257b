"""Settings of usage and of the metrics database; docs/usage-metrics.md explains them."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from warpseal.runtime.settings import (
    DAY_S,
    GIBIBYTE,
    MEBIBYTE,
    Group,
    Settings,
    boolean,
    choice,
    setting,
)
from warpseal.store.settings import database_url
from warpseal.store.url import redacted_url

FOREVER: Final = 0.0
"""The retention of rows that are never removed."""


class UsageReaders(StrEnum):
    """The callers that may read the usage.

    KEYS: callers with an API key.
    ADMIN: callers with the admin token.
    """

    ANYONE = "anyone"
    KEYS = "keys"
    ADMIN = "admin"


def metrics_url(value: Any, path: str) -> str:
    """Accept the URL of the metrics database."""
    return database_url(value, path, "usage-enabled turns the recording on and off")


class UsageSettings(Settings, frozen=True):
    """Recording of usage, and the database that keeps it.

    url: URL of the database; "" stands for metrics.db beside the store.
    max_bytes: bound of stored sums.
    max_waiting_bytes: bound of sums in memory while the database is down.
    max_combinations: bound of label combinations in a bucket.
    """

    enabled: bool = setting(
        False,
        "usage-enabled",
        boolean,
        "recording of the usage of forwarded RPC routes, also without gateway-nodes",
        "BOOL",
        group=Group.STORE,
    )
    flush_s: float = 5.0
    url: str = setting(
        "",
        "metrics-db-url",
        metrics_url,
        "URL of the metrics database, sqlite:///PATH or postgresql://USER@HOST/NAME; unset:"
        " metrics.db by store.db",
        "URL",
        group=Group.STORE,
        display=redacted_url,
    )
    max_bytes: int = 4 * GIBIBYTE
    hour_retention_s: float = 90 * DAY_S
    day_retention_s: float = 800 * DAY_S
    week_retention_s: float = FOREVER
    month_retention_s: float = FOREVER
    readers: UsageReaders = setting(
        UsageReaders.ANYONE,
        "usage-readers",
        choice(UsageReaders),
        "callers that may read the usage: anyone, keys (with an API key) or admin (with"
        " admin-token)",
        "CALLERS",
        group=Group.HTTP,
    )

    max_waiting_bytes: int = 64 * MEBIBYTE
    max_combinations: int = 20_000
    prune_interval_s: float = 60.0
    reading_threads: int = 2
    call_timeout_s: float = 10.0
    query_timeout_s: float = 8.0
    stop_timeout_s: float = 5.0
