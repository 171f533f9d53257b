"""Settings of the P-Chain follower; the limits of its calls to a node are in node/settings.py."""

from __future__ import annotations

from dataclasses import dataclass

from warpseal.runtime.settings import HOUR_S, boolean, integer, seconds, setting


@dataclass(frozen=True, slots=True)
class FollowerSettings:
    """Durations in seconds.

    retry_first_s, retry_cap_s: first and longest delay before a step is repeated while the store or all nodes are down.
    retry_stopped_s: delay after which a stopped follower reads its blocks again.
    log_every_s: interval of the progress log line.
    """

    follow_p_chain: bool = setting(
        True, "follow-p-chain", boolean, "reading of accepted P-Chain blocks for L1 transactions", "BOOL"
    )
    follow_from_height: int | None = setting(
        None, "follow-from-height", integer(0, 10**18), "lowest P-Chain block to read; unset: the first block of Etna"
    )
    follow_poll_s: float = setting(
        1.0, "follow-poll-seconds", seconds(0.1, HOUR_S), "interval of polling nodes for new blocks, seconds", "SECONDS"
    )

    retry_first_s: float = 0.5
    retry_cap_s: float = 10.0
    retry_stopped_s: float = 60.0
    log_every_s: float = 30.0
