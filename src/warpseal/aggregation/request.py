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
    """

    message: UnsignedMessage | None
    justification: bytes
    signing_subnet_id: SubnetID | None
    quorum: int
    buffer: int
    height: int | None
    timeout_s: float | None


@dataclass(frozen=True, slots=True)
class Aggregation:
    """A signed message whose signature and weight were verified as they stand in its bytes.

    height: of the validator set. stages: seconds by stage (validators, connect, collect, verify, total).
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
