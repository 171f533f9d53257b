"""What a caller asks of the aggregation, and what the caller gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from warpseal.warp.ids import SubnetID
from warpseal.warp.message import UnsignedMessage


@dataclass(frozen=True, slots=True)
class AggregationRequest:
    """A message to sign, or a justification that names one.

    signing_subnet_id: None means the subnet that validates the source chain. quorum, buffer: percent.
    height: of the validator set on the P-Chain; None means the proposed one. timeout_s: None: the default.
    is_epoch_height: the height is known to be an epoch's, so no lookback applies. is_pinned: whatever is signed
    of the message, now or later, is never evicted. stored_only: nobody is asked; what is kept suffices or not.
    """

    message: UnsignedMessage | None
    justification: bytes
    signing_subnet_id: SubnetID | None
    quorum: int
    buffer: int
    height: int | None
    timeout_s: float | None
    is_epoch_height: bool = False
    is_pinned: bool = False
    stored_only: bool = False


@dataclass(frozen=True, slots=True)
class Aggregation:
    """A signed message whose signature and weight were verified as they stand in its bytes.

    height: of the validator set. stages: seconds by stage (validators, connect, collect, verify, total); the
    commit of a new answer counts as verifying.
    cached: a finished answer was at hand. signers: their number; signed_weight: theirs.
    """

    signed_message: bytes
    height: int
    signing_subnet_id: SubnetID
    quorum: int
    stages: Mapping[str, float]
    cached: bool
    signers: int
    signed_weight: int
    total_weight: int
