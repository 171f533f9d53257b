"""Finding the bad ones among shares whose sum did not verify, by halving.

Halving with pairings: the pairing of a sum of shares and that of their keys are equal when the sum is right. Both
are multiplicative, so measuring one half of a group yields the other half without any further pairing, and each
split costs one measurement, whatever it finds. That holds within the subgroup only: the sum of every measured
group is checked for it first, and what is outside of it is split until the culprits are alone.

Nobody is named who was not measured alone, directly or as the rest of a measured pair: two colluding validators
whose errors cancel may pass as long as they are summed together, but they can never make others look bad.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate
from typing import Final

from warpseal.bls import (
    Pairing,
    PublicKey,
    Share,
    add_public_keys,
    add_shares,
    hash_to_curve,
    in_subgroup,
    multiply,
    pair_key,
    pair_share,
    subtract_public_keys,
    subtract_shares,
)


@dataclass(frozen=True, slots=True)
class Suspicion:
    """One share under suspicion and the key that it is meant to be of. index: canonical."""

    index: int
    key: PublicKey
    share: Share


@dataclass(frozen=True, slots=True)
class _Reading:
    """The two pairings of a group whose sum is in the subgroup; each may carry the same factor of others."""

    keys: Pairing
    shares: Pairing

    @property
    def clean(self) -> bool:
        return bool(self.keys == self.shares)


class _Batch:
    """Shares that were handed in together, with running sums, so that any range of them is summed at once."""

    def __init__(self, members: Sequence[Suspicion]) -> None:
        self.members: Final = members
        self._keys = list(accumulate((one.key for one in members), add_public_keys))
        self._shares = list(accumulate((one.share for one in members), add_shares))

    def keys(self, start: int, stop: int) -> PublicKey:
        total = self._keys[stop - 1]
        return subtract_public_keys(total, self._keys[start - 1]) if start else total

    def shares(self, start: int, stop: int) -> Share:
        total = self._shares[stop - 1]
        return subtract_shares(total, self._shares[start - 1]) if start else total


@dataclass(frozen=True, slots=True)
class _Group:
    """A range of a batch that holds a bad share. reading: None when its sum is outside of the subgroup."""

    batch: _Batch
    start: int
    stop: int
    reading: _Reading | None

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def members(self) -> Sequence[Suspicion]:
        return self.batch.members[self.start : self.stop]


@dataclass(frozen=True, slots=True)
class Findings:
    """What is known now. clean: sums of them were right; proven: each was right alone; bad: each was wrong alone."""

    clean: tuple[Suspicion, ...]
    proven: tuple[Suspicion, ...]
    bad: tuple[Suspicion, ...]


class Sieve:
    """Takes shares, splits the largest dirty groups first, and tells what it finds on the way.

    Everything but the constructor is heavy (a millisecond per measurement) and belongs on a worker thread.
    Not thread-safe: one call at a time.
    """

    def __init__(self, message: bytes) -> None:
        self._message = message
        self._hashed: Share | None = None
        self._dirty: list[tuple[int, int, _Group]] = []
        self._numbers = 0
        self._clean: list[Suspicion] = []
        self._proven: list[Suspicion] = []
        self._bad: list[Suspicion] = []
        self.measurements = 0

    @property
    def has_dirty(self) -> bool:
        """Whether there are groups that are known to hold a bad share."""
        return bool(self._dirty)

    @property
    def unresolved(self) -> list[Suspicion]:
        """The members of these groups."""
        return [one for _, _, group in self._dirty for one in group.members]

    def add(self, members: Sequence[Suspicion]) -> Findings:
        """Take shares and measure their sum."""
        if members:
            batch = _Batch(members)
            self._file(batch, 0, len(members), self._measure(batch, 0, len(members)))
        return self._findings()

    def add_singly(self, members: Sequence[Suspicion]) -> Findings:
        """Take shares and measure each alone."""
        for member in members:
            batch = _Batch((member,))
            self._file(batch, 0, 1, self._measure(batch, 0, 1))
        return self._findings()

    def split(self, measurements: int) -> Findings:
        """Split dirty groups, the largest first, until none is left or about so many measurements were made."""
        limit = self.measurements + measurements
        while self._dirty and self.measurements < limit:
            self._halve(heappop(self._dirty)[2])
        return self._findings()

    def _halve(self, group: _Group) -> None:
        batch, start, stop = group.batch, group.start, group.stop
        middle = (start + stop) // 2
        left = self._measure(batch, start, middle)
        if group.reading is None:
            right = self._measure(batch, middle, stop)
        elif left is None:
            # The whole is inside of the subgroup, one half is not: so the other one is not, either.
            right = None
        else:
            right = _rest(group.reading, left)
        self._file(batch, start, middle, left)
        self._file(batch, middle, stop, right)

    def _measure(self, batch: _Batch, start: int, stop: int) -> _Reading | None:
        self.measurements += 1
        shares = batch.shares(start, stop)
        if not in_subgroup(shares):
            return None
        if self._hashed is None:
            self._hashed = hash_to_curve(self._message)
        return _Reading(pair_key(batch.keys(start, stop), self._hashed), pair_share(shares))

    def _file(self, batch: _Batch, start: int, stop: int, reading: _Reading | None) -> None:
        group = _Group(batch, start, stop, reading)
        if reading is not None and reading.clean:
            (self._clean if group.size > 1 else self._proven).extend(group.members)
        elif group.size == 1:
            self._bad.extend(group.members)
        else:
            self._numbers += 1
            heappush(self._dirty, (-group.size, self._numbers, group))

    def _findings(self) -> Findings:
        findings = Findings(tuple(self._clean), tuple(self._proven), tuple(self._bad))
        self._clean, self._proven, self._bad = [], [], []
        return findings


def _rest(whole: _Reading, part: _Reading) -> _Reading:
    """Return the reading of a group without a part of it: quotients, brought to one denominator."""
    return _Reading(multiply(whole.keys, part.shares), multiply(whole.shares, part.keys))
