"""The weight that a signed message has in the validator sets at which its destination may verify it. Pure.

Source of truth: avalanchego `vms/platformvm/warp/signature.go`: signer bits are positions in the set of the verifier.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from warpseal.resources.base import Resource
from warpseal.warp.message import SignedMessage
from warpseal.warp.validator_set import CanonicalValidatorSet, has_quorum, required_weight

HeightLabel = Literal["previous", "current", "next", "proposed"]
"""The epoch before the current one; the current one; the one after it, predicted; the P-Chain's proposed height."""


@dataclass(frozen=True, slots=True)
class SignedSet:
    """A signed message, the set in which its signature was verified, and the weight of its signers there."""

    signed_message: bytes
    members: CanonicalValidatorSet
    weight: int

    def weight_in(self, members: CanonicalValidatorSet) -> tuple[int, bool]:
        """Return the weight of the signer bits in another set, and whether the same keys have these positions."""
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

    epoch: of the height. required_weight: of the destination's own quorum.
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
