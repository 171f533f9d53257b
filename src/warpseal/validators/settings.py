"""Settings of validator sets, tracked subnets and observed uptimes."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from warpseal.runtime.settings import (
    DAY_S,
    HOUR_S,
    MEBIBYTE,
    Group,
    Settings,
    choice,
    integer,
    invalid_setting,
    list_of,
    seconds,
    setting,
    text,
)
from warpseal.warp.ids import MalformedID, SubnetID, parse_id


def subnet_id(value: Any, path: str) -> SubnetID:
    """Accept a subnet id in base58-check, or hex with 0x."""
    try:
        return SubnetID(parse_id(text(value, path)))
    except MalformedID as error:
        raise invalid_setting(path, f"not a subnet id: {error}") from error


class SetSource(StrEnum):
    """The source of validator sets.

    BOTH: the index, else the nodes; the other one is compared behind the request.
    """

    NODE = "node"
    BOTH = "both"
    INDEX = "index"


class ValidatorSettings(Settings, frozen=True):
    """Durations in seconds, sizes in bytes, balances in nAVAX.

    max_p_chain_lookback: greatest number of blocks behind the proposed height.
    set_source: source of validator sets; None if the operator does not set it.
    tracked_subnet_ids: subnets that are always tracked, like the Primary Network.
    current_refresh_s: interval of reading the current validators of a tracked subnet; a result is
        served for twice as long.
    forecast_ttl_s: time for which a forecast is served again.
    forecast_refresh_s: interval of the forecasts of tracked subnets.
    forecast_stale_after_s: age at which a forecast of a tracked subnet is dropped.
    """

    tracked_subnet_ids: tuple[SubnetID, ...] = setting(
        (),
        "tracked-subnet-ids",
        list_of(subnet_id),
        "subnets whose validators stay connected",
        "IDS",
        group=Group.NETWORK,
        is_reference=True,
    )
    ready_subnet_ids: tuple[SubnetID, ...] = setting(
        (),
        "ready-subnets",
        list_of(subnet_id),
        "subnets that count for /ready and /health; none: the Primary Network and the tracked ones",
        "IDS",
        group=Group.NETWORK,
    )
    validator_refresh_period_s: float = setting(
        60.0,
        "validator-refresh-period-seconds",
        seconds(1, HOUR_S),
        "interval of refreshing the tracked validator sets, seconds",
        "SECONDS",
        group=Group.NETWORK,
        is_reference=True,
    )
    max_p_chain_lookback: int = setting(
        1_000,
        "max-p-chain-lookback",
        integer(-(10**18), 10**18),
        "oldest requested height, blocks behind the proposed one; negative: any",
        group=Group.NETWORK,
        is_reference=True,
    )

    set_source: SetSource | None = setting(
        None,
        "validator-sets",
        choice(SetSource),
        "source of validator sets: node, both or index; unset: both with an index of the P-Chain,"
        " else node",
        "SOURCE",
        group=Group.NETWORK,
    )

    height_poll_s: float = 2.0
    height_stale_after_s: float = 60.0
    max_height_ahead: int = 10
    set_cache_bytes: int = 64 * MEBIBYTE
    key_cache_keys: int = 50_000
    activity_refresh_s: float = 3.0
    current_refresh_s: float = 5.0
    forecast_ttl_s: float = 5.0
    forecast_refresh_s: float = 30.0
    forecast_stale_after_s: float = 300.0
    min_balance_navax: int = 2_048
    untrack_unused_after_s: float = 600.0
    max_tracked_by_request: int = 500


class UptimeSettings(Settings, frozen=True):
    """Settings of observed uptimes; durations in seconds.

    retention_s: retention of hourly records, and of validations that ended.
    heartbeat_s: interval of reading the clock.
    max_gap_s: longest gap between two readings that counts for a node.
    unconfirmed_s: time for which a validation counts that no node confirms.
    recent_s: window of which a full day must be observed.
    max_queued_hours: greatest number of records in memory while no store accepts them.
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
