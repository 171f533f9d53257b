"""The checkpoint of a chain, and the status of its indexing, written by the indexer and read by the
API.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from warpseal.resources.blocks import Proposer

MAX_STATUS_AGE_S: Final = 60
"""The indexer writes a status every 15 seconds, and later if a long transaction keeps its worker busy."""


class Checkpoint(Struct, frozen=True):
    """The last written block of a chain.

    first_height: the first one; proposer: proposer of the block at `height`.

    is_complete: whether the index has everything before `first_height`.
    """

    height: int
    block_id: bytes
    first_height: int
    is_complete: bool
    proposer: Proposer | None = None


class ChainStatus(Struct, frozen=True):
    """The status of indexing a chain.

    chain: the name of a primary chain, or the blockchain id of an EVM chain.

    node_height: the highest that a node reported; is_node_behind: the node is not bootstrapped, or
        behind another one.
    reported_at: unix seconds of that report. The indexer writes it periodically, so an old one
        means that it is stopped or reaches no node.
    stopped, stopped_at, detail, raw: of a failure, else "" and None; a damaged index has no
        stopped_at.
    rate_blocks_s, eta_s: of catching up.
    waiting: what the chain waits for, else "".
    written_at: unix seconds of this status.
    waiting_since: unix seconds since when it waits below the last block of its nodes; 0 if it does
        not, or only for a moment.
    documents: outcomes of the metadata fetches of an EVM chain since the start of the indexer, by
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

    def at(self, now: float) -> ChainStatus:
        """Return the status at a later time: without rate and ETA, and waiting, if the indexer
        reports no more.
        """
        age_s = int(now) - self.written_at
        if self.stopped or not self.written_at or age_s <= MAX_STATUS_AGE_S:
            return self
        waiting = f"the indexer does not run: its last report is {age_s} s old"
        return replace(self, waiting=waiting, waiting_since=0, rate_blocks_s=None, eta_s=None)


def decode_status(raw: bytes) -> ChainStatus:
    """Return the status of a row."""
    return msgspec.msgpack.decode(bytes(raw), type=ChainStatus)
