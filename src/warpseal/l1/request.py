"""What a caller asks about an L1 transaction, and what the caller gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from warpseal.warp.ids import SubnetID

HeightSource = Literal["request", "epoch", "proposed"]


@dataclass(frozen=True, slots=True)
class L1Request:
    """The signed message of a P-Chain transaction.

    tx_id: 32 bytes. quorum, buffer: percent. height: of the validator set; None: the epoch's of the manager's
    chain, else the proposed one; 0: the proposed one. registration_tx_id, justification: where a removed validation
    began, from a caller who knows (None, empty: not given). timeout_s: None: the default.
    """

    tx_id: bytes
    quorum: int
    buffer: int
    height: int | None = None
    registration_tx_id: bytes | None = None
    justification: bytes = b""
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class L1SignedMessage:
    """A signed message that was verified as it stands, for the set at `height`.

    superseded: None, or what is true now in place of what the message says, JSON-ready.
    """

    signed_message: bytes
    height: int
    height_source: HeightSource
    signing_subnet_id: SubnetID
    cached: bool
    superseded: Mapping[str, Any] | None = None
