"""The report of a delivery: weights at the heights of the destination, and advice. Pure.

Source of truth: avalanchego `vms/platformvm/warp/signature.go`: signer bits are positions in the
set of the verifier. ACP-181, avalanchego `vms/proposervm/acp181/epoch.go`: the first block at or
after the end of an epoch still verifies at its height; the block after it verifies at the P-Chain
height in the header of that block.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, Literal

from msgspec import Struct

from warpseal.delivery.destination import Destination, DestinationEpoch
from warpseal.delivery.warp_rules import RulesSource, SignerSource
from warpseal.l1.request import HeightSource
from warpseal.resources.base import UNSET, Resource, UnsetType
from warpseal.runtime.settings import DAY_S
from warpseal.warp.ids import id_text
from warpseal.warp.message import SignedMessage
from warpseal.warp.validator_set import CanonicalValidatorSet, has_quorum, required_weight


class DeliveryAdvice(Resource, frozen=True, gc=False, kw_only=True):
    """The blocks that have to be built on a destination before the one with the message.

    pinned_height: P-Chain height at which the chain verifies now.
    needed_height: lowest P-Chain height from which on the set is known to be the present one.
    not_before: Unix seconds before which a block does not end the epoch.
    text: the advice in words.
    """

    pinned_height: str
    needed_height: str
    blocks_before: int
    not_before: int
    text: str


def advise(destination: Destination, needed_height: int, now: float) -> DeliveryAdvice:
    """Return how the destination comes to verify at a height.

    now: Unix seconds of the advice.
    """
    pinned, proposed, sealed_from = (
        destination.height,
        destination.proposed_height,
        destination.sealed_from,
    )
    text = (
        f"{id_text(destination.chain_id)} verifies at P-Chain height {pinned}, the message needs"
        f" {needed_height}: "
    )
    lag = f"its nodes propose only P-Chain height {proposed} now"
    if sealed_from is None:
        blocks_before, not_before = 0, int(now)
        text += f"{lag}; send the message in a block after that"
    else:
        blocks_before, not_before = 1, sealed_from
        when = "now" if sealed_from <= now else f"at or after {time_text(sealed_from, now)}"
        text += (
            f"build one block there {when}; the block after it verifies at the P-Chain height of"
            " that block"
        )
        if proposed < needed_height:
            text += f". {lag[:1].upper()}{lag[1:]}: build it when they propose {needed_height}"
    return DeliveryAdvice(
        pinned_height=str(pinned),
        needed_height=str(needed_height),
        blocks_before=blocks_before,
        not_before=not_before,
        text=text,
    )


def time_text(moment: int, now: float) -> str:
    """Return a time in words, with the date if it is not within a day. Both are Unix seconds."""
    try:
        pattern = "%H:%M:%S UTC" if abs(moment - now) < DAY_S else "%Y-%m-%d %H:%M:%S UTC"
        return datetime.fromtimestamp(moment, UTC).strftime(pattern)
    except (ValueError, OverflowError, OSError):
        return f"Unix time {moment}"


HeightLabel = Literal["previous", "current", "next", "proposed"]
"""The epochs of a destination (`next` is predicted), and the P-Chain's proposed height."""


class SignedSet(Struct, frozen=True):
    """A signed message, and the set in which its signature was verified.

    weight: weight of the signers in that set.
    """

    signed_message: bytes
    members: CanonicalValidatorSet
    weight: int

    def weight_in(self, members: CanonicalValidatorSet) -> tuple[int, bool]:
        """Return the weight of the signer bits in another set, and whether its keys are equal."""
        if members is self.members or members.digest == self.members.digest:
            return self.weight, True
        weight, are_same = 0, True
        theirs, ours = members.validators, self.members.validators
        for index in SignedMessage.parse(self.signed_message).signer_indices:
            if index >= len(theirs):
                return weight, False
            weight += theirs[index].weight
            are_same = are_same and theirs[index].public_key == ours[index].public_key
        return weight, are_same


class WeightAtHeight(Resource, frozen=True, gc=False, kw_only=True):
    """The weight of the signers in the validator set of one P-Chain height.

    epoch: epoch of the height.
    required_weight: weight that the destination's own quorum needs.
    """

    epoch: HeightLabel
    p_chain_height: str
    signed_weight: str
    required_weight: str
    total_weight: str
    verifies: bool


def weigh(
    label: HeightLabel, height: int, members: CanonicalValidatorSet, signed: SignedSet, quorum: int
) -> WeightAtHeight:
    """Return a signed message in the set of a height, verified with a quorum in percent."""
    weight, are_same = signed.weight_in(members)
    total = members.total_weight
    return WeightAtHeight(
        epoch=label,
        p_chain_height=str(height),
        signed_weight=str(weight),
        required_weight=str(required_weight(total, quorum)),
        total_weight=str(total),
        verifies=are_same and has_quorum(weight, total, quorum),
    )


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

    signed_by: reason why this subnet signs.
    p_chain_height: height of the validator set that signed the message, at this quorum.
    heights: heights whose sets are known.
    epoch: left out before Granite.
    verifies_now: true if the next block accepts the signature; left out if the set is not known.
    serves_next: true if the first block of the next epoch accepts it; left out if the set is not
        known.
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
            weight.p_chain_height: (
                f"{weight.p_chain_height}={weight.signed_weight}/{weight.total_weight}"
            )
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
    return tuple(
        (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()
    )
