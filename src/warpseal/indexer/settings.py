"""What an operator may set about indexing the primary chains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from warpseal.history.chains import PrimaryChain


@dataclass(frozen=True, slots=True)
class IndexerSettings:
    """Durations in seconds.

    chains: the chains that are indexed; none: nothing is. first_heights: the first height of a chain, by chain; 0 if
    it is not named. genesis_file: genesis of the P-Chain for networks that are not known; zstd or plain.
    calls_per_s, max_concurrency: limits of calls to one node. low_priority: run with nice 19 and SCHED_IDLE.
    poll_s: interval at which nodes are polled for new blocks. checkpoint_blocks, checkpoint_s: number of blocks, or
    time, after which the P-Chain's state is written, so that little is repeated after a restart.
    """

    chains: tuple[PrimaryChain, ...] = ()
    first_heights: Mapping[PrimaryChain, int] = field(default_factory=dict)
    genesis_file: Path | None = None
    calls_per_s: int = 100
    max_concurrency: int = 8
    poll_s: float = 1.0
    call_timeout_s: float = 30.0
    low_priority: bool = True

    checkpoint_blocks: int = 20_000
    checkpoint_s: float = 60.0
    retry_first_s: float = 0.5
    retry_cap_s: float = 10.0
    retry_stopped_s: float = 60.0
    log_every_s: float = 10.0
    restart_first_s: float = 1.0
    restart_cap_s: float = 60.0
