"""Validations, and the validator sets at every height.

Source of truth: avalanchego `vms/platformvm/state` (inactive L1 validators are lumped together,
keyless).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, Generic, NamedTuple, TypeVar

from warpseal.warp.ids import EMPTY_NODE_ID, NodeID, SubnetID, ValidationID

T = TypeVar("T")

_STATE: Final = attrgetter("weight", "min_nonce", "present", "end_accumulated_fee", "public_key")


class SetEntry(NamedTuple):
    """An entry of a validator set.

    public_key: 48 bytes, or None.
    """

    node_id: NodeID
    public_key: bytes | None
    weight: int


@dataclass(slots=True)
class Validation:
    """The validation of a subnet by a node.

    Only L1s use end_accumulated_fee, min_nonce and index.

    id: the validation id on an L1, else the id of the transaction.
    end_accumulated_fee: the accrued fee, nAVAX, at which the balance of an L1 validator is used up;
        0 if it is inactive.
    index: the place of the validator in the conversion.
    """

    subnet_id: SubnetID
    node_id: NodeID
    public_key: bytes | None
    weight: int
    id: ValidationID
    start_time: int
    end_accumulated_fee: int = 0
    min_nonce: int = 0
    index: int = 0
    is_l1: bool = False
    present: bool = True

    @property
    def active(self) -> bool:
        """Whether this validation signs with its own key.

        An L1 validator without balance does not.
        """
        return not self.is_l1 or self.end_accumulated_fee > 0


def build_set(validations: Iterable[Validation]) -> tuple[SetEntry, ...]:
    """Return the validator set of the current validations of a subnet."""
    members = []
    inactive_weight = 0
    for validation in validations:
        if validation.present and validation.active:
            members.append(SetEntry(validation.node_id, validation.public_key, validation.weight))
        elif validation.present:
            inactive_weight += validation.weight
    if inactive_weight:
        members.append(SetEntry(EMPTY_NODE_ID, None, inactive_weight))
    return tuple(members)


class _Changes(Generic[T]):
    """The tuples of every subnet after every block, kept as changes in ascending heights."""

    def __init__(self) -> None:
        self._heights: dict[SubnetID, list[int]] = {}
        self._values: dict[SubnetID, list[tuple[T, ...]]] = {}

    def at(self, subnet_id: SubnetID, height: int) -> tuple[T, ...]:
        """Return the tuple after the block at `height`; empty for unknown subnets."""
        version = bisect_right(self._heights.get(subnet_id, []), height) - 1
        return self._values[subnet_id][version] if version >= 0 else ()

    def last(self, subnet_id: SubnetID) -> tuple[T, ...]:
        """Return the newest tuple; empty for unknown subnets."""
        values = self._values.get(subnet_id)
        return values[-1] if values else ()

    def add(self, subnet_id: SubnetID, height: int, value: tuple[T, ...]) -> None:
        """Record the tuple from `height` on."""
        heights = self._heights.setdefault(subnet_id, [])
        values = self._values.setdefault(subnet_id, [])
        if heights and heights[-1] == height:
            values[-1] = value
        else:
            heights.append(height)
            values.append(value)


class SetHistory(_Changes[SetEntry]):
    """The sets of all subnets at all heights."""

    @property
    def subnets(self) -> tuple[SubnetID, ...]:
        """Every subnet that ever had a set, in the order of appearance."""
        return tuple(self._values)

    def put(self, subnet_id: SubnetID, height: int, members: tuple[SetEntry, ...]) -> None:
        """Record the set from `height` on."""
        self._values.setdefault(subnet_id, [])
        if members != self.last(subnet_id):
            self.add(subnet_id, height, members)


class ValidationHistory(_Changes[Validation]):
    """The validations of every subnet after every block, present or not.

    Validations are only ever added.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[SubnetID, list[object]] = {}

    def put(self, subnet_id: SubnetID, height: int, validations: list[Validation]) -> None:
        """Record the validations from `height` on."""
        states = list(map(_STATE, validations))
        before = self._last.get(subnet_id, [])
        if states == before:
            return
        old, unchanged = self.last(subnet_id), len(before)
        seat = tuple(
            old[place] if place < unchanged and before[place] == states[place] else copy(validation)
            for place, validation in enumerate(validations)
        )
        self.add(subnet_id, height, seat)
        self._last[subnet_id] = list(states)
