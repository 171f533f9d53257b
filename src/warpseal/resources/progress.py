"""How far a chain is read.

`ChainProgress` is the only such value: metrics, probes, status, page, CLI, the freshness header,
health checks and log lines render its fields. A follower builds it in the process that reads the
chain, and `index/` from the rows of a database in any other process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from msgspec import UNSET, Struct, UnsetType, field
from msgspec.structs import replace

from warpseal.resources.base import or_unset

MAX_REPORT_AGE_S: Final = 60
"""A process reports each chain every 15 s, or later if a transaction keeps its worker busy."""

_MAX_DETAIL: Final = 200
NOT_BEGUN: Final = "the indexer has not begun with this chain"


class ChainStop(Struct, frozen=True):
    """The reason why a chain stopped.

    reason: a value of `follow.blocks.StopReason`.
    height: height of the block that cannot follow, None if the reason is no block.
    raw: bytes of that block, empty if they are not the reason.
    since: unix seconds of the stop.
    """

    reason: str
    height: int | None = None
    detail: str = ""
    raw: bytes = b""
    since: float = 0.0

    @property
    def text(self) -> str:
        """The place, the reason and the detail, such as "at block 38: unknown_type (...)"."""
        place = "" if self.height is None else f"at block {self.height}: "
        detail = f" ({self.detail[:_MAX_DETAIL]})" if self.detail else ""
        return f"{place}{self.reason}{detail}"


class Backfill(Struct, frozen=True):
    """The older blocks that a chain reads behind the new ones.

    target_height: lowest height of the backfill.
    remaining_blocks: number of blocks that are missing up to the newest one that was read, None if
        no block was read.
    fraction: share of the blocks that are not missing, 0 to 1.
    """

    target_height: int
    remaining_blocks: int | None
    fraction: float


class ChainProgress(Struct, frozen=True, kw_only=True):
    """How far one chain is read.

    chain: name of a primary chain, or blockchain id as text.
    first_height, height: range of the stored blocks, both ends included; no block in it is missing.
    block_id: id of the block at `height`, 32 bytes; None if it is not known.
    block_time: unix seconds of the block at `height`; 0 if they are not known.
    node_height: highest height that a node reported, at `reported_at`, unix seconds.
    is_node_behind: the node in use is not bootstrapped, is behind another node, or has not reported
        for long, so that its height proves nothing.
    updated_at: unix seconds of this value.
    blocks_per_s, eta_s: rate and remaining time of catching up, None if no block is missing.
    waiting_for: dependency that calls wait for, "nodes", "blocks" or "store".
    waiting: sentence with the reason of a wait and what the nodes replied; empty without a wait.
    waiting_since: unix seconds since when the chain waits below the last block of its nodes, None
        in the first two minutes.
    is_leader: this process reads for all processes that share the store.
    backfill: None if the chain has none.
    """

    chain: str
    first_height: int | None = None
    height: int | None = None
    block_id: bytes | None = None
    block_time: int = 0
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

    def lag_s(self, now: float) -> int:
        """Return the age of the newest block in seconds.

        It is 0 without a block, and if a node that is not behind has no newer block.
        """
        if self.height is None or (self.lag_blocks == 0 and not self.is_node_behind):
            return 0
        return max(0, int(now) - self.block_time)

    @property
    def has_every_block(self) -> bool:
        """Whether no block of the chain is missing, as far as a node that is not behind knows."""
        return not self.first_height and self.lag_blocks == 0 and not self.is_node_behind

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


P = TypeVar("P", bound=ChainProgress)


class EvmChainProgress(ChainProgress, frozen=True, kw_only=True):
    """The progress of an EVM chain, with what only its index has.

    evm_chain_id: None without a block.
    traced_height: creations inside of transactions are complete up to it; None: no node traces.
    trace_gap: lowest block that no node could trace, because they were pruned; None without one.
    icm_first: first block whose ICM messages are stored; -1: they are not kept.
    icm_since: unix seconds from which on ICM messages are stored.
    icm_stuck: number of stuck ICM messages by destination.
    requests: number of requests that wait for the indexer, by kind.
    documents: number of metadata fetches since the start of the indexer, by `MetadataStatus`.
    """

    evm_chain_id: int | None = None
    traced_height: int | None = None
    trace_gap: int | None = None
    icm_first: int = -1
    icm_since: int | None = None
    icm_stuck: Mapping[str, int] = field(default_factory=dict)
    requests: Mapping[str, int] = field(default_factory=dict)
    documents: Mapping[str, int] = field(default_factory=dict)


def progress_at(progress: P, now: float) -> P:
    """Return the progress that a process reported, as of a later time.

    If the process reports no more, the chain has no rate and waits.
    """
    age_s = int(now) - progress.updated_at
    if progress.stop is not None or not progress.updated_at or age_s <= MAX_REPORT_AGE_S:
        return progress
    waiting = f"the indexer does not run: its last report is {age_s} s old"
    return replace(progress, waiting=waiting, waiting_since=None, blocks_per_s=None, eta_s=None)


def log_fields(progress: ChainProgress) -> dict[str, Any]:
    """Return the fields of a log line about a chain."""
    fields: dict[str, Any] = {
        "chain": progress.chain,
        "height": progress.height,
        "node_height": progress.node_height,
        "waiting_for": progress.waiting_for,
        "blocks_per_s": rounded_rate(progress),
        "eta_s": rounded_eta_s(progress),
    }
    if progress.stop is not None:
        fields |= {"stopped": progress.stopped, "stopped_at": progress.stopped_at}
    return fields


def rounded_rate(progress: ChainProgress) -> float | None:
    """Return the blocks a second as texts show them."""
    rate = progress.blocks_per_s
    return None if rate is None else round(rate, 1)


def rounded_eta_s(progress: ChainProgress) -> int | None:
    """Return the remaining time in seconds as texts show it."""
    return None if progress.eta_s is None else round(progress.eta_s)


class IndexedChainState(Struct, frozen=True, kw_only=True, rename="camel"):
    """The progress of an indexed chain in the body of `/ready` and `/ext/health`.

    waiting: reason why the chain waits.
    stopped: reason why no more blocks are read.
    internal_height: the block of an EVM chain up to which creations inside of transactions are
        complete.
    internal_gap: the first block that no node can trace.
    """

    height: str | UnsetType = UNSET
    node_height: str | UnsetType = UNSET
    lag_blocks: int | UnsetType = UNSET
    first_height: str | UnsetType = UNSET
    waiting: str | UnsetType = UNSET
    blocks_per_second: float | UnsetType = UNSET
    eta_seconds: int | UnsetType = UNSET
    stopped: str | UnsetType = UNSET
    stopped_at: str | UnsetType = UNSET
    internal_height: str | UnsetType = UNSET
    internal_gap: str | UnsetType = UNSET

    @classmethod
    def of(cls, progress: ChainProgress) -> IndexedChainState:
        """Return the known fields; the heights only of a chain with blocks."""
        state = cls(
            waiting=progress.waiting or UNSET,
            blocks_per_second=or_unset(rounded_rate(progress)),
            eta_seconds=or_unset(rounded_eta_s(progress)),
            stopped=or_unset(progress.stopped),
            stopped_at=_text(progress.stopped_at),
        )
        if progress.height is None:
            return state
        if isinstance(progress, EvmChainProgress):
            state = replace(
                state,
                internal_height=_text(progress.traced_height),
                internal_gap=_text(progress.trace_gap),
            )
        return replace(
            state,
            height=_text(progress.height),
            node_height=_text(progress.node_height),
            lag_blocks=or_unset(progress.lag_blocks),
            first_height=_text(progress.first_height or None),
        )


class FollowerState(Struct, frozen=True, kw_only=True, rename="camel"):
    """The progress of the P-Chain for L1 transactions in the body of `/ready`.

    off: true if the daemon does not read the P-Chain.
    first_height: lowest height of the blocks that were read up to `height`.
    target_height: lowest height of the backfill.
    backfilled: share of the backfill that was read, 0 to 1.
    leader: true if this daemon reads for all daemons that share the store.
    stopped: reason why no more blocks are read.
    waiting_for: nodes or store.
    """

    off: bool | UnsetType = UNSET
    height: str | UnsetType = UNSET
    node_height: str | UnsetType = UNSET
    lag_blocks: int | UnsetType = UNSET
    first_height: str | UnsetType = UNSET
    target_height: str | UnsetType = UNSET
    backfilled: float | UnsetType = UNSET
    blocks_per_second: float | UnsetType = UNSET
    eta_seconds: int | UnsetType = UNSET
    leader: bool | UnsetType = UNSET
    stopped: str | UnsetType = UNSET
    stopped_at: str | UnsetType = UNSET
    waiting_for: str | UnsetType = UNSET

    @classmethod
    def of(cls, progress: ChainProgress) -> FollowerState:
        """Return the known fields."""
        backfill = progress.backfill
        target_height, fraction = None, 0.0
        if backfill is not None:
            target_height, fraction = backfill.target_height, round(backfill.fraction, 4)
        return cls(
            height=_text(progress.height),
            node_height=_text(progress.node_height),
            lag_blocks=or_unset(progress.lag_blocks),
            first_height=_text(progress.first_height),
            target_height=_text(target_height),
            backfilled=fraction,
            blocks_per_second=or_unset(rounded_rate(progress)),
            eta_seconds=or_unset(rounded_eta_s(progress)),
            leader=progress.is_leader,
            stopped=or_unset(progress.stopped),
            stopped_at=_text(progress.stopped_at),
            waiting_for=or_unset(progress.waiting_for),
        )


def _text(height: int | None) -> str | UnsetType:
    return UNSET if height is None else str(height)
