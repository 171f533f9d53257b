"""Every default, unit and bound of signed messages by transaction."""

from __future__ import annotations

from dataclasses import dataclass

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class L1Settings:
    """What an operator may set (the first), and what is fixed; times in seconds.

    eager_l1_messages: aggregate what is accepted about tracked subnets, unasked.
    miss_kept_s: how long an unknown transaction is not looked up again. kept_transactions: derived ones in memory.
    look_up_s: patience with one look at an epoch, or at what is true, before it counts as no answer.
    truth_kept_s: how long such a look serves. watch_s: how often it is repeated while validators are asked.
    bootstrap_indices: initial validators of a subnet that are tried. subnets_kept_s: how long the list of subnets
    serves. logs_s: patience with the logs of the manager's chain, per request.
    eager_quorum: percent. eager_at_once: aggregations. eager_for_s: how long one is tried again.
    """

    eager_l1_messages: bool = False

    miss_ttl_s: float = 1.0
    max_cached_transactions: int = 16_384
    lookup_timeout_s: float = 1.0
    validity_ttl_s: float = 1.0
    recheck_interval_s: float = 2.0
    bootstrap_indices: int = 1_024
    subnets_ttl_s: float = 600.0
    logs_timeout_s: float = 5.0
    eager_quorum: int = 67
    eager_max_concurrency: int = 4
    eager_retry_for_s: float = 12 * HOUR_S
