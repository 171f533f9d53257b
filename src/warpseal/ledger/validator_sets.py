"""The validator set of every subnet after a block, and the members that the block changed.

Source of truth: avalanchego `vms/platformvm/state/state.go` (calculateValidatorDiffs),
`state/l1_validator.go`.
"""

from __future__ import annotations

from warpseal.ledger.effects import L1Validator, SetChange, StakingPeriod
from warpseal.warp.ids import EMPTY_NODE_ID, PRIMARY_NETWORK, NodeID, SubnetID

_Place = tuple[SubnetID, NodeID]


class CurrentSets:
    """The members of all sets by subnet and node, as `platform.getValidatorsAt` lists them.

    The inactive validators of an L1 are one member, the empty node without a key.
    """

    def __init__(self) -> None:
        self._weights: dict[_Place, int] = {}
        self._keys: dict[_Place, bytes] = {}
        # Weight and key before the block, of the members that it touched.
        self._before: dict[_Place, tuple[int, bytes | None]] = {}

    def add_stake(self, period: StakingPeriod, sign: int = 1) -> None:
        """Add a current staking to the weight of its validator, or (sign -1) subtract it."""
        place = (period.subnet_id, period.node_id)
        self._add_weight(place, sign * period.weight)
        if period.signer is None:
            return
        if sign > 0:
            self._keys[place] = period.signer.public_key
        else:
            self._keys.pop(place, None)

    def add_l1_validator(self, validator: L1Validator, sign: int = 1) -> None:
        """Add a validator of an L1, or (sign -1) subtract it as it was added."""
        if not validator.end_accumulated_fee:
            # effectiveNodeID: the weight of an inactive validator counts without its node and its
            # key.
            self._add_weight((validator.subnet_id, EMPTY_NODE_ID), sign * validator.weight)
            return
        place = (validator.subnet_id, validator.node_id)
        self._add_weight(place, sign * validator.weight)
        if sign > 0:
            self._keys[place] = validator.public_key
        else:
            self._keys.pop(place, None)

    def take_changes(self) -> tuple[SetChange, ...]:
        """Return the members that changed since the last call, by subnet and node."""
        before, self._before = self._before, {}
        if not before:
            return ()
        changed = [place for place in sorted(before) if self._member(place) != before[place]]
        return tuple(SetChange(*place, *self._member(place)) for place in changed)

    def members(self) -> tuple[SetChange, ...]:
        """Return the members of all sets, by subnet and node."""
        return tuple(SetChange(*place, *self._member(place)) for place in sorted(self._weights))

    def _member(self, place: _Place) -> tuple[int, bytes | None]:
        weight = self._weights.get(place, 0)
        if not weight:
            return 0, None
        # The validators of permissioned and elastic subnets inherit the key of their node's Primary
        # Network validator, which stays longer than they do (getPublicKeyDiff).
        return weight, self._keys.get(place) or self._keys.get((PRIMARY_NETWORK, place[1]))

    def _add_weight(self, place: _Place, change: int) -> None:
        if place not in self._before:
            self._before[place] = self._member(place)
        weight = self._weights.get(place, 0) + change
        if weight:
            self._weights[place] = weight
        else:
            self._weights.pop(place, None)
