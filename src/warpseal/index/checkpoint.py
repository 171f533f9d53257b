"""How far a chain is written, and how indexing it stands: what who indexes and who answers tell each other."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from warpseal.history.blocks import Proposer
from warpseal.history.chains import PrimaryChain


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Up to where a chain is written. first_height: below it nothing is; proposer: of the block at `height`.

    is_complete: whether it was begun with all that was there before `first_height`.
    """

    height: int
    block_id: bytes
    first_height: int
    is_complete: bool
    proposer: Proposer | None = None


@dataclass(frozen=True, slots=True)
class ChainStatus:
    """How indexing a chain stands, for whoever answers questions about it.

    node_height: the highest that a node told; is_node_behind: the node is not bootstrapped, or another knows more.
    reported_at: when it told, unix seconds; written again and again: one that is old means that nobody asks any more.
    stopped, stopped_at, detail, raw: of a failure; "" and None where all is well. rate_blocks_s, eta_s: of catching up.
    """

    chain: PrimaryChain
    node_height: int
    is_node_behind: bool
    stopped: str = ""
    stopped_at: int | None = None
    detail: str = ""
    raw: bytes = b""
    rate_blocks_s: float | None = None
    eta_s: float | None = None
    reported_at: int = 0


def encode_status(note: ChainStatus) -> bytes:
    """Return a note as bytes."""
    return msgspec.msgpack.encode(note)


def decode_status(raw: bytes) -> ChainStatus:
    """Return the note that `encode_note` wrote."""
    return msgspec.msgpack.decode(bytes(raw), type=ChainStatus)
