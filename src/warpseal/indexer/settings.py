"""What an operator may set about indexing the primary chains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from warpseal.history.chains import PrimaryChain


@dataclass(frozen=True, slots=True)
class IndexingSettings:
    """Durations in seconds.

    chains: which are indexed; none: nothing is. first_heights: where a chain begins, by chain; from its first block
    where it is not named. genesis_file: of the P-Chain, for networks that are not known; zstd or plain. per_s, at_once:
    calls to one node. gives_way: to every other process of the machine, for whom the indexer then hardly exists.
    poll_s: how often nodes are asked for new blocks. checkpoint_blocks, checkpoint_s: after how many blocks, or how
    long, the P-Chain's state is written too, so that little is repeated after a restart.
    """

    chains: tuple[PrimaryChain, ...] = ()
    first_heights: Mapping[PrimaryChain, int] = field(default_factory=dict)
    genesis_file: Path | None = None
    per_s: int = 100
    at_once: int = 8
    poll_s: float = 1.0
    call_timeout_s: float = 30.0
    gives_way: bool = True

    checkpoint_blocks: int = 20_000
    checkpoint_s: float = 60.0
    retry_first_s: float = 0.5
    retry_cap_s: float = 10.0
    retry_stopped_s: float = 60.0
    log_every_s: float = 10.0
    restart_first_s: float = 1.0
    restart_cap_s: float = 60.0
