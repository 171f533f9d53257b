"""Which subnets are followed, since when, and which nodes that makes wanted. Pure: `now` in seconds comes in.

Pinned subnets are followed always; one that only requests name while it is in use and for a while longer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from warpseal.warp.ids import NodeID, SubnetID
from warpseal.warp.validator_set import CanonicalValidatorSet, Validator

# Sets of one subnet at several heights that are in use together; the oldest idle one goes first.
_MAX_SETS: Final = 8


@dataclass(slots=True)
class _InUse:
    """A set that requests use, or used lately."""

    validators: CanonicalValidatorSet
    users: int
    used_at: float


@dataclass(slots=True)
class TrackedSubnet:
    """One followed subnet. latest: its set at the proposed height, once known. wanted: heaviest first."""

    subnet_id: SubnetID
    is_pinned: bool
    used_at: float
    users: int = 0
    latest: CanonicalValidatorSet | None = None
    wanted: tuple[NodeID, ...] = ()
    sets: OrderedDict[bytes, _InUse] = field(default_factory=OrderedDict)

    @property
    def validators(self) -> CanonicalValidatorSet | None:
        """The set that counts for what is connected: the latest, or until it is known the one used last."""
        if self.latest is not None or not self.sets:
            return self.latest
        return next(reversed(self.sets.values())).validators

    def refresh(self, validators: CanonicalValidatorSet) -> bool:
        """Take the set at the proposed height. Returns whether other nodes are wanted now."""
        if self.latest is not None and self.latest.digest == validators.digest:
            return False
        self.latest = validators
        return self._want()

    def enter(self, validators: CanonicalValidatorSet, now: float) -> bool:
        """Note a use of a set. Returns whether other nodes are wanted now."""
        self.users += 1
        self.used_at = now
        known = self.sets.get(validators.digest)
        if known is not None:
            known.users += 1
            known.used_at = now
            self.sets.move_to_end(validators.digest)
            return False
        self.sets[validators.digest] = _InUse(validators, 1, now)
        self._drop_surplus()
        return self._want()

    def leave(self, validators: CanonicalValidatorSet, now: float) -> None:
        """Note the end of a use."""
        self.users -= 1
        self.used_at = now
        known = self.sets.get(validators.digest)
        if known is not None:
            known.users -= 1
            known.used_at = now

    def forget_sets_unused_since(self, moment: float) -> bool:
        """Drop the sets that nobody has used since `moment`. Returns whether other nodes are wanted now."""
        idle = [digest for digest, one in self.sets.items() if not one.users and one.used_at <= moment]
        for digest in idle:
            del self.sets[digest]
        return self._want() if idle else False

    def _drop_surplus(self) -> None:
        idle = [digest for digest, one in self.sets.items() if not one.users]
        for digest in idle[: max(0, len(self.sets) - _MAX_SETS)]:
            del self.sets[digest]

    def _want(self) -> bool:
        before = set(self.wanted)
        sets = [one.validators for one in self.sets.values()]
        if self.latest is not None:
            sets.append(self.latest)
        members = sorted((one for each in sets for one in each.validators), key=_weight, reverse=True)
        self.wanted = tuple(dict.fromkeys(node_id for one in members for node_id in one.node_ids))
        return set(self.wanted) != before


def _weight(validator: Validator) -> int:
    return validator.weight


class TrackedSubnets:
    """The followed subnets: the pinned ones, and at most `max_named` that only requests name."""

    def __init__(self, pinned: Iterable[SubnetID], *, max_named: int, keep_unused_s: float) -> None:
        self._max_named = max_named
        self._keep_unused_s = keep_unused_s
        self._pinned = {subnet_id: TrackedSubnet(subnet_id, True, 0.0) for subnet_id in pinned}
        self._named: OrderedDict[SubnetID, TrackedSubnet] = OrderedDict()

    def __iter__(self) -> Iterator[TrackedSubnet]:
        yield from self._pinned.values()
        yield from self._named.values()

    @property
    def pinned(self) -> tuple[TrackedSubnet, ...]:
        """The subnets that are followed always, in their configured order."""
        return tuple(self._pinned.values())

    def get(self, subnet_id: SubnetID) -> TrackedSubnet | None:
        """Return a followed subnet."""
        return self._pinned.get(subnet_id) or self._named.get(subnet_id)

    def follow(self, subnet_id: SubnetID, now: float) -> tuple[TrackedSubnet, tuple[SubnetID, ...]]:
        """Return the subnet, followed from now on, and those that had to make room for it."""
        pinned = self._pinned.get(subnet_id)
        if pinned is not None:
            return pinned, ()
        followed = self._named.get(subnet_id)
        if followed is None:
            followed = self._named[subnet_id] = TrackedSubnet(subnet_id, False, now)
        self._named.move_to_end(subnet_id)
        return followed, self._make_room()

    def expire(self, now: float) -> tuple[SubnetID, ...]:
        """Drop and return the subnets that have been out of use for long enough."""
        gone = tuple(
            subnet_id
            for subnet_id, one in self._named.items()
            if not one.users and now - one.used_at >= self._keep_unused_s
        )
        for subnet_id in gone:
            del self._named[subnet_id]
        return gone

    def _make_room(self) -> tuple[SubnetID, ...]:
        """Drop the least recently used but never the newest, those in use only where all are."""
        gone = []
        while len(self._named) > self._max_named:
            others = list(self._named.items())[:-1]
            idle = (subnet_id for subnet_id, one in others if not one.users)
            subnet_id = next(idle, others[0][0])
            del self._named[subnet_id]
            gone.append(subnet_id)
        return tuple(gone)
