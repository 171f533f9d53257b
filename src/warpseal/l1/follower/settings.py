"""What an operator may set about following the P-Chain; requests to a node are limited in the node's settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FollowerSettings:
    """Durations in seconds.

    follow_p_chain: whether accepted blocks are read at all. follow_from_height: the lowest block that is read;
    None: the first one of Etna, before which there are no L1s. follow_poll_s: how often nodes are asked for new blocks.
    retry_stopped_s: how long after a fault the same blocks are looked at again.
    """

    follow_p_chain: bool = True
    follow_from_height: int | None = None
    follow_poll_s: float = 1.0

    retry_first_s: float = 0.5
    retry_cap_s: float = 10.0
    retry_stopped_s: float = 60.0
    log_every_s: float = 30.0
