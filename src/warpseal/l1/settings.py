"""Settings of the signed messages of L1 transactions."""

from __future__ import annotations

from dataclasses import dataclass

from warpseal.runtime.settings import HOUR_S, boolean, setting


@dataclass(frozen=True, slots=True)
class L1Settings:
    """Durations in seconds.

    miss_ttl_s: time for which an unknown transaction is not looked up again.
    max_cached_transactions: transactions in the cache of found transactions.
    lookup_timeout_s: timeout of one lookup of an epoch or of the validity of a message.
    validity_ttl_s: lifetime of the result of such a lookup.
    recheck_interval_s: interval of repeating it while validators are asked.
    bootstrap_indices: initial validators of a subnet that are tried. subnets_ttl_s: lifetime of the list of subnets.
    logs_timeout_s: timeout of reading the logs of the manager's chain, per request.
    eager_quorum: percent. eager_max_concurrency: eager aggregations at the same time.
    eager_retry_for_s: age of its block up to which a transaction is retried.
    """

    eager_l1_messages: bool = setting(
        False,
        "eager-l1-messages",
        boolean,
        "signing of the messages of tracked subnets as soon as their transactions are accepted",
        "BOOL",
    )

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
