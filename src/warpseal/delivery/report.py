"""The report on a message that was signed for a destination: as JSON, and in short as headers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from warpseal.delivery.advice import DeliveryAdvice
from warpseal.delivery.candidates import WeightAtHeight
from warpseal.delivery.destination import DestinationEpoch
from warpseal.delivery.warp_rules import RulesSource, SignerSource
from warpseal.l1.request import HeightSource
from warpseal.resources.base import UNSET, Resource, UnsetType

HEIGHT_HEADER: Final = "X-Warpseal-P-Chain-Height"
HEIGHT_SOURCE_HEADER: Final = "X-Warpseal-P-Chain-Height-Source"
SUBNET_HEADER: Final = "X-Warpseal-Signing-Subnet-Id"
EPOCH_HEADER: Final = "X-Warpseal-Epoch"
QUORUM_HEADER: Final = "X-Warpseal-Quorum"
WEIGHTS_HEADER: Final = "X-Warpseal-Weights"
VERIFIES_HEADER: Final = "X-Warpseal-Verifies-Now"

QuorumSource = RulesSource | Literal["request"]
RawHeaders = tuple[tuple[bytes, bytes], ...]
"""Headers of a response by their names in lower case, as ASGI sends them."""


class DestinationQuorum(Resource, frozen=True, gc=False, kw_only=True):
    """The quorum that counts, in percent, and its source."""

    percentage: int
    source: QuorumSource


class DestinationReport(Resource, frozen=True, gc=False, kw_only=True):
    """The facts that decide whether a destination accepts a signed message.

    signed_by: why this subnet signs.
    p_chain_height: of the validator set that signed the message, at this quorum.
    heights: those whose sets are known.
    epoch: left out before Granite.
    verifies_now: whether the next block accepts the signature; left out if the set is not known.
    serves_next: whether the first block of the next epoch accepts it; left out if the set is not known.
    advice: left out if the next block accepts the message.
    """

    destination_blockchain_id: str
    signing_subnet_id: str
    signed_by: SignerSource
    p_chain_height: str
    p_chain_height_source: HeightSource
    quorum: DestinationQuorum
    heights: tuple[WeightAtHeight, ...]
    epoch: DestinationEpoch | UnsetType = UNSET
    verifies_now: bool | UnsetType = UNSET
    serves_next: bool | UnsetType = UNSET
    advice: DeliveryAdvice | UnsetType = UNSET

    def headers(self) -> RawHeaders:
        """Return the report in short."""
        weights = {
            weight.p_chain_height: f"{weight.p_chain_height}={weight.signed_weight}/{weight.total_weight}"
            for weight in self.heights
        }
        headers = {
            HEIGHT_HEADER: self.p_chain_height,
            HEIGHT_SOURCE_HEADER: self.p_chain_height_source,
            SUBNET_HEADER: self.signing_subnet_id,
            QUORUM_HEADER: f"{self.quorum.percentage}; source={self.quorum.source}",
            WEIGHTS_HEADER: ", ".join(weights.values()),
        }
        if self.epoch is not UNSET:
            headers[EPOCH_HEADER] = str(self.epoch.number)
        if self.verifies_now is not UNSET:
            headers[VERIFIES_HEADER] = "true" if self.verifies_now else "false"
        return encode_headers(headers)


def encode_headers(headers: Mapping[str, str]) -> RawHeaders:
    """Return headers as a response sends them."""
    return tuple((name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items())
