"""Settings of the signed messages of L1 transactions, and of the P-Chain follower; node/settings.py
has its limits.
"""

from __future__ import annotations

from warpseal.runtime.retry import Backoff, Pace
from warpseal.runtime.settings import HOUR_S, Group, Settings, boolean, setting
from warpseal.warp.validator_set import DEFAULT_QUORUM


class L1Settings(Settings, frozen=True):
    """Durations in seconds.

    miss_ttl_s: time for which an unknown transaction is not looked up again.
    max_cached_transactions: transactions in the cache of found transactions.
    lookup_timeout_s: timeout of one lookup of an epoch or of the validity of a message.
    validity_ttl_s: lifetime of the result of such a lookup.
    recheck_interval_s: interval of repeating it while validators are asked.
    bootstrap_indices: initial validators of a subnet that are tried.
    subnets_ttl_s: lifetime of the list of subnets.
    logs_timeout_s: timeout of reading the logs of the manager's chain, per request.
    eager_quorum: percent.
    eager_max_concurrency: eager aggregations at the same time.
    eager_retry_for_s: age of its block up to which a transaction is retried.
    """

    eager_l1_messages: bool = setting(
        False,
        "eager-l1-messages",
        boolean,
        "signing of the messages of tracked subnets as soon as their transactions are accepted",
        "BOOL",
        group=Group.NETWORK,
    )

    miss_ttl_s: float = 1.0
    max_cached_transactions: int = 16_384
    lookup_timeout_s: float = 1.0
    validity_ttl_s: float = 1.0
    recheck_interval_s: float = 2.0
    bootstrap_indices: int = 1_024
    subnets_ttl_s: float = 600.0
    logs_timeout_s: float = 5.0
    eager_quorum: int = DEFAULT_QUORUM
    eager_max_concurrency: int = 4
    eager_retry_for_s: float = 12 * HOUR_S


class FollowerSettings(Settings, frozen=True):
    """Durations in seconds.

    retry_first_s, retry_cap_s: first and longest delay before a step is repeated while the store or
        all nodes are down.
    retry_stopped_s: delay after which a stopped follower reads its blocks again.
    log_every_s: interval of the progress log line.
    """

    follow_p_chain: bool = setting(
        True,
        "follow-p-chain",
        boolean,
        "reading of accepted P-Chain blocks for L1 transactions",
        "BOOL",
        group=Group.NETWORK,
    )
    follow_from_height: int | None = None
    follow_poll_s: float = 1.0

    retry_first_s: float = 0.5
    retry_cap_s: float = 10.0
    retry_stopped_s: float = 60.0
    log_every_s: float = 30.0

    @property
    def pace(self) -> Pace:
        """The pace of the P-Chain."""
        return Pace(
            self.follow_poll_s, Backoff(self.retry_first_s, self.retry_cap_s), self.retry_stopped_s
        )
