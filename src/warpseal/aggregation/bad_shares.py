"""The search for the bad shares behind a sum that did not verify. Pure.

The deviation of a group (see `bls.compute_deviation`) is one measurement, two pairings. It is
multiplicative: measuring one half of a group yields the other half by division, so each split costs
one measurement, whatever it finds.

All that holds within the subgroup only. So every sum is checked for it before it is measured, and a
group outside of it is split until the bad shares are alone. No share is called bad because of other
shares: two colluding validators whose errors cancel each other out may pass while they are summed
together, but they cannot make other shares look bad. Source: L. Law and B. J. Matt, "Finding
invalid signatures in pairing-based batches" (2007).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from itertools import accumulate
from random import SystemRandom
from typing import Final, NamedTuple

from msgspec import Struct

from warpseal.bls import (
    NO_DEVIATION,
    Deviation,
    HashedMessage,
    PublicKey,
    Share,
    add_public_keys,
    add_shares,
    compute_deviation,
    divide_deviations,
    hash_to_curve,
    is_in_subgroup,
    subtract_public_keys,
    subtract_shares,
)

_SMALL_GROUP: Final = 8


class SearchStep(Struct, frozen=True):
    """A step of the search.

    added: members, each with its share, that join the search together.
    alone: members, each with its share, that are verified alone.
    measurements: number of measurements that follow.
    """

    added: Sequence[tuple[int, Share]]
    alone: Sequence[tuple[int, Share]]
    measurements: int


class ShareUnderTest(Struct, frozen=True):
    """One share and the key that should have signed it.

    index: canonical index of the member.
    """

    index: int
    key: PublicKey
    share: Share


class SearchResult(Struct, frozen=True):
    """The findings of a step.

    clean: shares that were part of a right sum.
    proven: shares that were right alone.
    bad: shares that were wrong alone.
    unresolved: shares in groups that hold a bad share.
    measurements: number of measurements since the search began.
    """

    clean: tuple[ShareUnderTest, ...]
    proven: tuple[ShareUnderTest, ...]
    bad: tuple[ShareUnderTest, ...]
    unresolved: tuple[ShareUnderTest, ...] = ()
    measurements: int = 0


class BadShareFinder:
    """Takes shares, splits the largest groups with a bad share first, and returns its findings.

    All methods are heavy (a millisecond per measurement) and run on a worker thread, one call at a
    time.

    message: bytes that the shares should have signed.
    """

    def __init__(self, message: bytes) -> None:
        self.measurements = 0
        self._message = message
        self._hashed: HashedMessage | None = None
        self._random = SystemRandom()
        # A heap by priority, then by age.
        self._groups: list[tuple[tuple[int, int], int, _Group]] = []
        self._last_group = 0
        self._clean: list[ShareUnderTest] = []
        self._proven: list[ShareUnderTest] = []
        self._bad: list[ShareUnderTest] = []

    @property
    def unresolved(self) -> list[ShareUnderTest]:
        """The shares in groups that hold a bad share."""
        return [share for *_, group in self._groups for share in group.members]

    def add(self, members: Iterable[ShareUnderTest]) -> None:
        """Take shares and measure their sum."""
        shuffled = list(members)
        # Colluders cannot choose the group that they are in.
        self._random.shuffle(shuffled)
        if shuffled:
            self._add_batch(shuffled)

    def add_alone(self, members: Iterable[ShareUnderTest]) -> None:
        """Take shares and measure each alone."""
        for member in members:
            self._add_batch((member,))

    def split(self, measurements: int) -> SearchResult:
        """Search until all is resolved, or for about this many measurements.

        Returns the findings since the last call.
        """
        limit = self.measurements + measurements
        while self._groups and self.measurements < limit:
            *_, group = heappop(self._groups)
            self._halve(group)
        findings = tuple(self._clean), tuple(self._proven), tuple(self._bad)
        self._clean, self._proven, self._bad = [], [], []
        return SearchResult(*findings, tuple(self.unresolved), self.measurements)

    def _add_batch(self, members: Sequence[ShareUnderTest]) -> None:
        batch = _Batch(members)
        self._classify(_Group(batch, 0, len(members), self._measure(batch, 0, len(members))))

    def _halve(self, group: _Group) -> None:
        batch, start, stop = group.batch, group.start, group.stop
        middle = (start + stop) // 2
        first_half = self._measure(batch, start, middle)
        if group.deviation is None:
            # The sum of the group is outside of the subgroup, where nothing follows for the other
            # half.
            second_half = self._measure(batch, middle, stop)
        else:
            # The whole is inside of the subgroup: if the first half is not, the second is not
            # either.
            second_half = None
            if first_half is not None:
                second_half = divide_deviations(group.deviation, first_half)
        self._classify(_Group(batch, start, middle, first_half))
        self._classify(_Group(batch, middle, stop, second_half))

    def _measure(self, batch: _Batch, start: int, stop: int) -> Deviation | None:
        """Return the deviation of the sum of a range, None if that is outside of the subgroup."""
        self.measurements += 1
        keys, shares = batch.sum(start, stop)
        # A pairing means nothing outside of the subgroup, so this check comes first.
        if not is_in_subgroup(shares):
            return None
        if self._hashed is None:
            self._hashed = hash_to_curve(self._message)
        return compute_deviation(keys, shares, self._hashed)

    def _classify(self, group: _Group) -> None:
        """Sort a group by its deviation: clean, bad, or to be split."""
        members = group.members
        if group.deviation == NO_DEVIATION:
            findings = self._clean if len(members) > 1 else self._proven
            findings.extend(members)
        elif len(members) == 1:
            self._bad.extend(members)
        else:
            self._last_group += 1
            # Large groups come first, the largest of them first: one measurement clears most shares
            # there. Small ones are resolved one after the other to the end, so that an interrupted
            # search has named some bad shares: later rounds of these validators then cost no
            # search.
            priority = -max(len(members), _SMALL_GROUP), len(members)
            heappush(self._groups, (priority, self._last_group, group))


class _Batch:
    """Shares that were added together, with running sums: any range is the difference of two."""

    def __init__(self, members: Sequence[ShareUnderTest]) -> None:
        self.members: Final = members
        self._keys = list(accumulate((member.key for member in members), add_public_keys))
        self._shares = list(accumulate((member.share for member in members), add_shares))

    def sum(self, start: int, stop: int) -> tuple[PublicKey, Share]:
        """Return the sum of the keys and the sum of the shares of a range that is not empty."""
        key, share = self._keys[stop - 1], self._shares[stop - 1]
        if not start:
            return key, share
        key = subtract_public_keys(key, self._keys[start - 1])
        return key, subtract_shares(share, self._shares[start - 1])


class _Group(NamedTuple):
    """A range of a batch.

    deviation: deviation of the sum of the range, None if that is outside of the subgroup.
    """

    batch: _Batch
    start: int
    stop: int
    deviation: Deviation | None

    @property
    def members(self) -> Sequence[ShareUnderTest]:
        return self.batch.members[self.start : self.stop]
