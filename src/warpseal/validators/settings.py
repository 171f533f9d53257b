"""What an operator may set about validator sets and the subnets that are followed."""

from __future__ import annotations

from dataclasses import dataclass

from warpseal.warp.ids import SubnetID

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ValidatorSettings:
    """Durations in seconds, sizes in bytes, balances in nAVAX.

    max_p_chain_lookback: blocks behind the proposed height whose sets may still be fetched; negative means any.
    tracked_subnet_ids are followed always, beside the Primary Network. current_refresh_s: between two looks at who
    validates a tracked subnet; what was seen is told for twice as long.
    """

    tracked_subnet_ids: tuple[SubnetID, ...] = ()
    validator_refresh_period_s: float = 60.0
    max_p_chain_lookback: int = 1_000

    height_poll_s: float = 2.0
    height_stale_after_s: float = 60.0
    max_height_ahead: int = 10
    set_cache_bytes: int = 64 * MEBIBYTE
    key_cache_keys: int = 50_000
    activity_refresh_s: float = 3.0
    current_refresh_s: float = 5.0
    min_balance_navax: int = 2_048
    untrack_unused_after_s: float = 600.0
    max_tracked_by_request: int = 500
