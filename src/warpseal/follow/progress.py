"""How far this process has read one chain: the only such value, which metrics, probes, status, CLI
and logs render.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class ChainStop(Struct, frozen=True):
    """The reason why a chain stopped.

    reason: a `follow.blocks.StopReason`.
    height: of the block that cannot follow, None if the reason is no block.
    raw: the bytes of that block, empty if they are not the reason.
    since: unix seconds.
    """

    reason: str
    height: int | None = None
    detail: str = ""
    raw: bytes = b""
    since: float = 0.0


class Backfill(Struct, frozen=True):
    """The older blocks that a chain reads behind the new ones.

    target_height: the first of them.
    remaining_blocks: how many are missing up to the newest block that was read, None if no block
        was read.
    fraction: the share of those that are not missing, 0 to 1.
    """

    target_height: int
    remaining_blocks: int | None
    fraction: float


class ChainProgress(Struct, frozen=True, kw_only=True):
    """How far this process has read one chain.

    chain: a primary chain's name, or a blockchain id as text.

    first_height, height: every block from the first to the last of them is stored.
    block_id: of the block at `height`.
    node_height: the highest that a node reported, at `reported_at`, unix seconds.
    is_node_behind: the node in use is not bootstrapped, or behind another one.
    updated_at: unix seconds of this value.
    blocks_per_s, eta_s: of catching up, None if there is nothing to catch up with.
    waiting_for: the dependency that calls wait for, "nodes", "blocks" or "store".
    waiting: why the chain waits, as a sentence with what the nodes replied; empty if it does not.
    waiting_since: unix seconds since when it waits below the last block of its nodes, None if that
        is not for minutes.
    is_leader: whether this process reads for all that share the store.
    backfill: None if the chain has none.
    """

    chain: str
    first_height: int | None = None
    height: int | None = None
    block_id: bytes | None = None
    node_height: int | None = None
    is_node_behind: bool = False
    reported_at: int = 0
    updated_at: int = 0
    blocks_per_s: float | None = None
    eta_s: float | None = None
    waiting_for: str | None = None
    waiting: str = ""
    waiting_since: int | None = None
    stop: ChainStop | None = None
    is_leader: bool = True
    backfill: Backfill | None = None

    @property
    def lag_blocks(self) -> int | None:
        """The number of blocks of the nodes above `height`; None if it is not known."""
        if self.node_height is None or self.height is None:
            return None
        return max(0, self.node_height - self.height)

    @property
    def stopped(self) -> str | None:
        """The reason why the chain stopped; None if it goes on."""
        return None if self.stop is None else self.stop.reason

    @property
    def stopped_at(self) -> int | None:
        """The height at which the chain stopped."""
        return None if self.stop is None else self.stop.height

    @property
    def is_catching_up(self) -> bool:
        """Whether blocks that the nodes had long ago are still to be read."""
        has_older = self.backfill is not None and bool(self.backfill.remaining_blocks)
        return has_older or self.height is None or self.blocks_per_s is not None

    @property
    def is_stalled(self) -> bool:
        """Whether the chain stopped, or waits for minutes although its nodes have more blocks."""
        return self.stop is not None or self.waiting_since is not None


def log_fields(progress: ChainProgress) -> dict[str, Any]:
    """Return the fields of a log line about a chain."""
    rate, eta_s, stop = progress.blocks_per_s, progress.eta_s, progress.stop
    fields: dict[str, Any] = {
        "chain": progress.chain,
        "height": progress.height,
        "node_height": progress.node_height,
        "waiting_for": progress.waiting_for,
        "blocks_per_s": None if rate is None else round(rate, 1),
        "eta_s": None if eta_s is None else round(eta_s),
    }
    if stop is not None:
        fields |= {"stopped": stop.reason, "stopped_at": stop.height}
    return fields
