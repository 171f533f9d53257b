"""The report on a message that was signed for a destination: as JSON, and in short as headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from warpseal.delivery.advice import Advice
from warpseal.delivery.candidates import CandidateHeight, HeightLabel
from warpseal.delivery.destination import Destination
from warpseal.delivery.warp_rules import RulesSource, SignerSource
from warpseal.l1.request import HeightSource
from warpseal.node.chain_apis import NO_EPOCH
from warpseal.warp.ids import SubnetID, id_text

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


@dataclass(frozen=True, slots=True)
class DeliveryReport:
    """What decides on the acceptance of a signed message. height: of the validator set that signed it.

    quorum: percent, at which it was signed. heights: those whose sets are known.
    """

    destination: Destination
    signing_subnet_id: SubnetID
    signed_by: SignerSource
    height: int
    height_source: HeightSource
    quorum: int
    quorum_source: QuorumSource
    heights: Sequence[CandidateHeight]
    advice: Advice | None = None

    @property
    def verifies_now(self) -> bool | None:
        """Whether the next block of the destination would accept the signature; None: the set is not known."""
        return self._verifies("current")

    @property
    def serves_next(self) -> bool | None:
        """Whether the first block of the next epoch would; None: there is none, or the set is not known."""
        return self._verifies("next")

    @property
    def verifies_at_present(self) -> bool | None:
        """Whether the present set verifies the signature; None: the set is not known."""
        return self._verifies("proposed")

    def as_json(self) -> dict[str, Any]:
        destination = self.destination
        content: dict[str, Any] = {
            "destinationBlockchainId": id_text(destination.chain_id),
            "signingSubnetId": id_text(self.signing_subnet_id),
            "signedBy": self.signed_by,
            "pChainHeight": str(self.height),
            "pChainHeightSource": self.height_source,
            "quorum": {"percentage": self.quorum, "source": self.quorum_source},
            "heights": [candidate.as_json() for candidate in self.heights],
            **destination.epoch_as_json(),
        }
        if self.verifies_now is not None:
            content["verifiesNow"] = self.verifies_now
        if self.serves_next is not None:
            content["servesNext"] = self.serves_next
        if self.advice is not None:
            content["advice"] = self.advice.as_json()
        return content

    def headers(self) -> RawHeaders:
        """Return the report in short."""
        weights = {
            candidate.height: f"{candidate.height}={candidate.signed_weight}/{candidate.total_weight}"
            for candidate in self.heights
        }
        headers = {
            HEIGHT_HEADER: str(self.height),
            HEIGHT_SOURCE_HEADER: self.height_source,
            SUBNET_HEADER: id_text(self.signing_subnet_id),
            QUORUM_HEADER: f"{self.quorum}; source={self.quorum_source}",
            WEIGHTS_HEADER: ", ".join(weights.values()),
        }
        if self.destination.epoch != NO_EPOCH:
            headers[EPOCH_HEADER] = str(self.destination.epoch.number)
        if self.verifies_now is not None:
            headers[VERIFIES_HEADER] = "true" if self.verifies_now else "false"
        return encode_headers(headers)

    def _verifies(self, label: HeightLabel) -> bool | None:
        return next((candidate.verifies for candidate in self.heights if candidate.label == label), None)


def encode_headers(headers: Mapping[str, str]) -> RawHeaders:
    """Return headers as a response sends them."""
    return tuple((name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items())
