"""The checkpoint of a chain and the status of its indexing, from the indexer to the API."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct, field

from warpseal.resources.blocks import Proposer
from warpseal.resources.progress import ChainProgress, ChainStop


class Checkpoint(Struct, frozen=True):
    """The last written block of a chain.

    first_height: height of the first indexed block.
    proposer: proposer of the block at `height`.

    is_complete: whether the index has everything before `first_height`.
    """

    height: int
    block_id: bytes
    first_height: int
    is_complete: bool
    proposer: Proposer | None = None


class ProgressRow(Struct, frozen=True):
    """The row in which the indexer stores the progress of a chain.

    It stays beside `ChainProgress`, because databases of earlier versions hold its fields: any
    other process reads the row, and makes a `ChainProgress` of it.

    chain: name of a primary chain, or blockchain id of an EVM chain.
    node_height: highest height that a node reported at `reported_at`, unix seconds. An old report
        means that the indexer is stopped or reaches no node.
    is_node_behind: whether the node is not bootstrapped, or behind another one.
    stopped, stopped_at, detail, raw: reason, height, text and bytes of a stop, else "" and None; a
        damaged index has no height.
    rate_blocks_s, eta_s: pace of catching up, and the time that it still takes.
    waiting: sentence with the reason of a wait, else "".
    written_at: unix seconds of this status.
    waiting_since: unix seconds since when the chain waits below the last block of its nodes; 0 in
        the first two minutes.
    documents: number of metadata fetches of an EVM chain since the start of the indexer, by
        `MetadataStatus`.
    """

    chain: str
    node_height: int
    is_node_behind: bool
    stopped: str = ""
    stopped_at: int | None = None
    detail: str = ""
    raw: bytes = b""
    rate_blocks_s: float | None = None
    eta_s: float | None = None
    reported_at: int = 0
    waiting: str = ""
    written_at: int = 0
    waiting_since: int = 0
    documents: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, progress: ChainProgress) -> ProgressRow:
        """Return the row of a progress; a stopped chain has no pace."""
        stop = progress.stop or ChainStop("")
        is_running = progress.stop is None
        return cls(
            progress.chain,
            progress.node_height or 0,
            progress.is_node_behind,
            stopped=stop.reason,
            stopped_at=stop.height,
            detail=stop.detail,
            raw=stop.raw,
            rate_blocks_s=progress.blocks_per_s if is_running else None,
            eta_s=progress.eta_s if is_running else None,
            reported_at=progress.reported_at,
            waiting=progress.waiting,
            written_at=progress.updated_at,
            waiting_since=progress.waiting_since or 0,
        )

    def as_progress(self) -> ChainProgress:
        """Return the progress without heights of blocks, which are those of the checkpoint."""
        stop = ChainStop(self.stopped, self.stopped_at, self.detail, self.raw)
        return ChainProgress(
            chain=self.chain,
            node_height=self.node_height,
            is_node_behind=self.is_node_behind,
            reported_at=self.reported_at,
            updated_at=self.written_at,
            blocks_per_s=self.rate_blocks_s,
            eta_s=self.eta_s,
            waiting=self.waiting,
            waiting_since=self.waiting_since or None,
            stop=stop if self.stopped else None,
        )


def decode_status(raw: bytes) -> ProgressRow:
    """Return the status of a row."""
    return msgspec.msgpack.decode(bytes(raw), type=ProgressRow)
