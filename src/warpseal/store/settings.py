"""Settings of the store; docs/store.md says what they mean to an operator."""

from __future__ import annotations

from typing import Any

from warpseal.runtime.settings import (
    DAY_S,
    GIBIBYTE,
    MEBIBYTE,
    Group,
    Settings,
    integer,
    invalid_setting,
    seconds,
    setting,
    text,
)
from warpseal.store.url import (
    DATABASE_SCHEMES,
    MalformedStoreUrl,
    StoreUrl,
    is_server,
    redacted_url,
)


def store_url(value: Any, path: str) -> str:
    """Accept the URL of a store, or "off"."""
    try:
        return StoreUrl.parse(text(value, path)).text
    except MalformedStoreUrl as error:
        raise invalid_setting(path, str(error)) from error


def database_url(value: Any, path: str, off: str) -> str:
    """Accept the URL of a database that cannot be turned off by its URL.

    off: text of an error, which says how the database is turned off.
    """
    if text(value, path).partition(":")[0] not in DATABASE_SCHEMES:
        raise invalid_setting(path, f'expected "sqlite:///PATH" or "postgresql://..."; {off}')
    return store_url(value, path)


def replica_url(value: Any, path: str) -> str:
    """Accept the URL of a server that follows another one."""
    if not is_server(text(value, path)):
        raise invalid_setting(path, 'expected "postgresql://...": a replica is a PostgreSQL server')
    # Of several hosts only the primary would be used.
    if "," in value.rpartition("@")[2]:
        raise invalid_setting(path, "expected one host: each replica has a URL of its own")
    return store_url(value, path)


class StoreSettings(Settings, frozen=True):
    """The settings of the store.

    url: URL of the store; an empty text stands for store.db in the daemon's folder.
    max_bytes, max_age_s: bounds of all rows that may be evicted.
    events_max_bytes, events_max_age_s: bounds of the event log.
    The other fields are timeouts, bounds of what waits in memory, and the grouping of writes.
    """

    url: str = setting(
        "",
        "store-url",
        store_url,
        "URL of the store, sqlite:///PATH, postgresql://USER@HOST/NAME or off; unset: a file in"
        " data-dir",
        "URL",
        group=Group.STORE,
        display=redacted_url,
    )
    max_bytes: int = setting(
        GIBIBYTE,
        "store-max-bytes",
        integer(MEBIBYTE, 10**15),
        "size of the evictable part of the store, about, bytes",
        group=Group.STORE,
    )
    max_age_s: float = setting(
        30 * DAY_S,
        "store-max-age-seconds",
        seconds(60, 100 * 366 * DAY_S),
        "retention of evictable rows since their last use, seconds",
        "SECONDS",
        group=Group.STORE,
    )

    max_queued_bytes: int = 64 * MEBIBYTE
    commit_timeout_s: float = 1.0
    load_timeout_s: float = 1.0
    gather_s: float = 0.5
    flush_s: float = 1.0
    log_bytes: int = 4 * MEBIBYTE
    retry_first_s: float = 0.25
    retry_cap_s: float = 2.0
    stop_timeout_s: float = 5.0
    first_prune_s: float = 5.0
    prune_interval_s: float = 30.0
    prune_batch: int = 100
    max_addresses: int = 50_000
    events_max_bytes: int = 64 * MEBIBYTE
    events_max_age_s: float = 7 * DAY_S
    readers: int = 2
    max_queued_reads: int = 64
    call_timeout_s: float = 30.0
    address_timeout_s: float = 5.0
