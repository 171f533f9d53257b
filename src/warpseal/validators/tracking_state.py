"""The tracked subnets and the nodes that they need connected.

Pure: the caller passes `now`, in seconds.

Pinned subnets are always tracked; a subnet that only requests name is tracked while it is used and
some time longer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import chain
from operator import attrgetter
from typing import Final

from msgspec import Struct, field

from warpseal.warp.ids import NodeID, SubnetID
from warpseal.warp.validator_set import CanonicalValidatorSet

# Sets of one subnet at several heights that are in use together; the oldest idle one goes first.
_MAX_SETS: Final = 8
_WARN_AGAIN_AFTER_S: Final = 60.0


class _InUse(Struct):
    """A set that requests use, or used recently."""

    validators: CanonicalValidatorSet
    users: int
    used_at: float


class TrackedSubnet(Struct):
    """One tracked subnet.

    latest: set at the proposed height; None until the first refresh.
    node_ids: nodes that the sets need connected, heaviest first.
    failing_since: time of the first failed refresh; None if the last refresh succeeded.
    failure: reason of the last failed refresh.
    """

    subnet_id: SubnetID
    is_pinned: bool
    used_at: float
    users: int = 0
    latest: CanonicalValidatorSet | None = None
    node_ids: tuple[NodeID, ...] = ()
    sets: OrderedDict[bytes, _InUse] = field(default_factory=OrderedDict)
    failing_since: float | None = None
    failure: str = ""
    warned_at: float = float("-inf")

    @property
    def validators(self) -> CanonicalValidatorSet | None:
        """Return the set by which connected weight is counted: the latest, else the last used."""
        if self.latest is not None or not self.sets:
            return self.latest
        return next(reversed(self.sets.values())).validators

    def refresh(self, validators: CanonicalValidatorSet) -> bool:
        """Set the latest set. Return whether the nodes changed."""
        self.failing_since, self.warned_at = None, float("-inf")
        if self.latest is not None and self.latest.digest == validators.digest:
            return False
        self.latest = validators
        return self._update_node_ids()

    def fail(self, reason: str, now: float) -> bool:
        """Note a refresh that failed.

        Return whether to warn: at the first one, and then once a minute.
        """
        self.failure = reason
        if self.failing_since is None:
            self.failing_since = now
        is_due = now - self.warned_at >= _WARN_AGAIN_AFTER_S
        if is_due:
            self.warned_at = now
        return is_due

    def enter(self, validators: CanonicalValidatorSet, now: float) -> bool:
        """Note a use of a set. Return whether the nodes changed."""
        self.users += 1
        self.used_at = now
        in_use = self.sets.get(validators.digest)
        if in_use is not None:
            in_use.users += 1
            in_use.used_at = now
            self.sets.move_to_end(validators.digest)
            return False
        self.sets[validators.digest] = _InUse(validators, 1, now)
        idle = [digest for digest, in_use in self.sets.items() if not in_use.users]
        for digest in idle[: max(0, len(self.sets) - _MAX_SETS)]:
            del self.sets[digest]
        return self._update_node_ids()

    def leave(self, validators: CanonicalValidatorSet, now: float) -> None:
        """Note the end of a use."""
        self.users -= 1
        self.used_at = now
        in_use = self.sets.get(validators.digest)
        if in_use is not None:
            in_use.users -= 1
            in_use.used_at = now

    def drop_sets_unused_since(self, moment: float) -> bool:
        """Drop the sets unused since `moment`. Return whether the nodes changed."""
        idle = [
            digest
            for digest, in_use in self.sets.items()
            if not in_use.users and in_use.used_at <= moment
        ]
        for digest in idle:
            del self.sets[digest]
        return self._update_node_ids() if idle else False

    def _update_node_ids(self) -> bool:
        before = set(self.node_ids)
        sets = [in_use.validators for in_use in self.sets.values()]
        if self.latest is not None:
            sets.append(self.latest)
        members = chain.from_iterable(validators.validators for validators in sets)
        validators = sorted(members, key=attrgetter("weight"), reverse=True)
        self.node_ids = tuple(
            dict.fromkeys(node_id for validator in validators for node_id in validator.node_ids)
        )
        return set(self.node_ids) != before


class TrackedSubnets:
    """The tracked subnets: the pinned ones, and those that only requests name.

    max_on_request: limit of the subnets that only requests name
    """

    def __init__(
        self, pinned: Iterable[SubnetID], *, max_on_request: int, keep_unused_s: float
    ) -> None:
        self._max_on_request = max_on_request
        self._keep_unused_s = keep_unused_s
        self._pinned = {subnet_id: TrackedSubnet(subnet_id, True, 0.0) for subnet_id in pinned}
        self._on_request: OrderedDict[SubnetID, TrackedSubnet] = OrderedDict()

    def __iter__(self) -> Iterator[TrackedSubnet]:
        yield from self._pinned.values()
        yield from self._on_request.values()

    @property
    def pinned(self) -> tuple[TrackedSubnet, ...]:
        """The subnets that are always tracked, in their configured order."""
        return tuple(self._pinned.values())

    def get(self, subnet_id: SubnetID) -> TrackedSubnet | None:
        """Return a tracked subnet; None if it is not tracked."""
        return self._pinned.get(subnet_id) or self._on_request.get(subnet_id)

    def track(self, subnet_id: SubnetID, now: float) -> tuple[TrackedSubnet, tuple[SubnetID, ...]]:
        """Track a subnet. Return it, and the subnets that were dropped to make room for it."""
        pinned = self._pinned.get(subnet_id)
        if pinned is not None:
            return pinned, ()
        subnet = self._on_request.get(subnet_id)
        if subnet is None:
            subnet = self._on_request[subnet_id] = TrackedSubnet(subnet_id, False, now)
        self._on_request.move_to_end(subnet_id)
        return subnet, self._make_room()

    def expire(self, now: float) -> tuple[SubnetID, ...]:
        """Drop and return the subnets that have been unused for long enough."""
        expired = tuple(
            subnet_id
            for subnet_id, subnet in self._on_request.items()
            if not subnet.users and now - subnet.used_at >= self._keep_unused_s
        )
        for subnet_id in expired:
            del self._on_request[subnet_id]
        return expired

    def _make_room(self) -> tuple[SubnetID, ...]:
        """Drop the least recently used subnets, never the newest, and used ones only if all are."""
        dropped = []
        while len(self._on_request) > self._max_on_request:
            others = list(self._on_request.items())[:-1]
            idle = (subnet_id for subnet_id, subnet in others if not subnet.users)
            subnet_id = next(idle, others[0][0])
            del self._on_request[subnet_id]
            dropped.append(subnet_id)
        return tuple(dropped)
