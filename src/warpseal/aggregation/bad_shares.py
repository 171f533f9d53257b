"""Finding the bad shares behind a sum that did not verify: what to search next, and the arithmetic. Pure.

The deviation of a group (see `bls.compute_deviation`) is one measurement, two pairings. It is multiplicative:
measuring one half of a group yields the other half by division, so each split costs one measurement, whatever it
finds. Small groups are not split to the end: one or two more measurements locate one or two bad shares in them. Such
hypotheses are proven together, by one measurement of what they leave, each part taken a random number of times.

All that holds within the subgroup only. So every sum is checked for it before it is measured, and a group outside of
it is split until the bad shares are alone. No share is called bad on the word of others: two colluding validators
whose errors cancel each other out may pass while they are summed together, but they cannot make other shares look bad.

Locating: with e_x the deviation of the share at position x, the moments of a group are the products over its positions
of e_x, e_x^x and e_x^(x^2). If exactly one share deviates, at i, then M1 = M0^i; if exactly two, at i and j, then
M2 M0^(ij) = M1^(i+j). Colluders can forge such an equation, so its solution is a hypothesis, to be proven.
Source: L. Law and B. J. Matt, "Finding invalid signatures in pairing-based batches" (2007).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import accumulate
from random import SystemRandom
from typing import Final, TypeVar

from warpseal.bls import (
    NO_DEVIATION,
    Deviation,
    PublicKey,
    Share,
    add_public_keys,
    add_shares,
    compute_deviation,
    hash_to_curve,
    invert_deviation,
    is_in_subgroup,
    multiply_deviations,
    subtract_public_keys,
    subtract_shares,
)

T = TypeVar("T")
Moments = tuple[Deviation, ...]
KeysAndShares = tuple[PublicKey, Share]
"""A sum of keys, and that of their shares."""

_MAX_MOMENTS: Final = 3
# Up to this size the positions of bad shares are cheaper to compute than to search for. Measured.
_LOCATED_SIZE: Final = 16
_PROOF_BITS: Final = 32
_PROVEN_TOGETHER: Final = 6


@dataclass(frozen=True, slots=True)
class SearchStep:
    """A step of the search: members (each with its share) that are added, or verified alone; then measurements."""

    added: Sequence[tuple[int, Share]]
    alone: Sequence[tuple[int, Share]]
    measurements: int


@dataclass(frozen=True, slots=True)
class ShareUnderTest:
    """One share and the key that it should be of. index: canonical, of the member."""

    index: int
    key: PublicKey
    share: Share


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The findings of a step. clean: sums of them were right; proven: each was right alone; bad: each was wrong alone.

    unresolved: in groups that hold a bad share. measurements: since the search began.
    """

    clean: tuple[ShareUnderTest, ...]
    proven: tuple[ShareUnderTest, ...]
    bad: tuple[ShareUnderTest, ...]
    unresolved: tuple[ShareUnderTest, ...] = ()
    measurements: int = 0


class BadShareFinder:
    """Takes shares, splits the largest groups with a bad share first, and returns its findings on the way.

    Everything but the constructor is heavy (a millisecond per measurement) and runs on a worker thread, one call at
    a time.
    """

    def __init__(self, message: bytes) -> None:
        self._message = message
        self._hashed: Share | None = None
        self._random = SystemRandom()
        self._groups: list[tuple[tuple[int, int], int, _Group]] = []
        self._located: list[_Group] = []
        self._numbers = 0
        self._clean: list[ShareUnderTest] = []
        self._proven: list[ShareUnderTest] = []
        self._bad: list[ShareUnderTest] = []
        self.measurements = 0

    @property
    def unresolved(self) -> list[ShareUnderTest]:
        """The shares in groups that hold a bad one."""
        return [share for group in (*(entry[-1] for entry in self._groups), *self._located) for share in group.members]

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
        """Search until all is resolved, or about this many measurements are made; return the new findings."""
        limit = self.measurements + measurements
        while self._groups and self.measurements < limit:
            self._resolve(heappop(self._groups)[-1])
            if not self._groups or len(self._located) >= _PROVEN_TOGETHER:
                self._prove_located()
        found = tuple(self._clean), tuple(self._proven), tuple(self._bad)
        self._clean, self._proven, self._bad = [], [], []
        return SearchResult(*found, tuple(self.unresolved), self.measurements)

    def _add_batch(self, members: Sequence[ShareUnderTest]) -> None:
        batch = _Batch(members)
        self._classify(_Group(batch, 0, len(members), self._moments(batch, 0, len(members), 1)))

    def _resolve(self, group: _Group) -> None:
        """Measure a further moment of a small group; split a large one, and a small one without further moments."""
        moments = group.moments
        if moments is None or len(moments) == _MAX_MOMENTS or not group.is_locatable:
            self._halve(group)
            return
        further = self._measure(group.batch.sum(group.start, group.stop, len(moments)))
        if further is None:
            self._halve(replace(group, moments=moments[:1], is_misleading=True))
        else:
            self._classify(replace(group, moments=(*moments, further)))

    def _halve(self, group: _Group) -> None:
        batch, start, stop = group.batch, group.start, group.stop
        middle = (start + stop) // 2
        left = self._moments(batch, start, middle, len(group.moments or (None,)))
        if group.moments is None:
            right = self._moments(batch, middle, stop, 1)
        else:
            # The whole is inside of the subgroup: if the left half is not, the right half is not either.
            right = None if left is None else right_moments(group.moments, left, middle - start)
        self._classify(_Group(batch, start, middle, left, group.is_misleading))
        self._classify(_Group(batch, middle, stop, right, group.is_misleading))

    def _moments(self, batch: _Batch, start: int, stop: int, count: int) -> Moments | None:
        """Return the first moments of a range, fewer if a later one is outside of the subgroup; None: all are."""
        moments: list[Deviation] = []
        while len(moments) < count:
            further = self._measure(batch.sum(start, stop, len(moments)))
            if further is None:
                break
            moments.append(further)
        return tuple(moments) or None

    def _measure(self, total: KeysAndShares | None) -> Deviation | None:
        """Return the deviation of a sum; None: the sum is outside of the subgroup."""
        if total is None:
            return NO_DEVIATION
        self.measurements += 1
        keys, shares = total
        if not is_in_subgroup(shares):
            return None
        if self._hashed is None:
            self._hashed = hash_to_curve(self._message)
        return compute_deviation(keys, shares, self._hashed)

    def _prove_located(self) -> None:
        """Accept the hypotheses that are true: test all of them together, and one after the other if that fails."""
        located, self._located = self._located, []
        are_all_true = len(located) > 1 and self._are_true(located)
        for group in located:
            if are_all_true or self._are_true((group,)):
                self._clean.extend(group.others)
                self._bad.extend(group.members[position] for position in group.positions)
            else:
                moments = group.moments and group.moments[:1]
                self._classify(replace(group, moments=moments, is_misleading=True, positions=()))

    def _are_true(self, located: Sequence[_Group]) -> bool:
        """Measure the sums of all hypotheses at once; a wrong one passes with a chance of one in 2^32."""
        sums = [total for group in located for total in group.sums_to_prove()]
        weights = [self._random.randrange(1, 1 << _PROOF_BITS) for _ in sums]
        return self._measure(weighted_sum(sums, weights, _add)) == NO_DEVIATION

    def _classify(self, group: _Group) -> None:
        """Sort a group by its moments: clean, located, bad, or to be split."""
        moments = group.moments
        if moments is not None and moments[0] == NO_DEVIATION:
            (self._clean if group.size > 1 else self._proven).extend(group.members)
            return
        positions = locate(moments, group.size) if moments is not None and group.is_locatable else None
        if positions is not None:
            self._located.append(replace(group, positions=positions))
        elif group.size == 1 or (moments is not None and len(moments) >= group.size):
            # Fewer bad ones than members would have been located.
            self._bad.extend(group.members)
        else:
            self._numbers += 1
            heappush(self._groups, (group.priority, self._numbers, group))


class _Batch:
    """Shares that were added together, with running sums, so that any range of them is summed at once."""

    def __init__(self, members: Sequence[ShareUnderTest]) -> None:
        self.members: Final = members
        self.terms: Final = [(share.key, share.share) for share in members]
        self._sums = list(accumulate(self.terms, _add))

    def sum(self, start: int, stop: int, moment: int) -> KeysAndShares | None:
        """Return the sum of a range for one of its moments; None: each is taken zero times."""
        if moment:
            return weighted_sum(self.terms[start:stop], weights_of(moment, stop - start), _add)
        (keys, shares), before = self._sums[stop - 1], self._sums[start - 1]
        return (subtract_public_keys(keys, before[0]), subtract_shares(shares, before[1])) if start else (keys, shares)


@dataclass(frozen=True, slots=True)
class _Group:
    """A range of a batch that holds a bad share.

    moments: as far as they were measured; None: the sum is outside of the subgroup. is_misleading: a hypothesis
    that followed from its moments proved false. positions: the hypothesis that exactly the shares there are bad.
    """

    batch: _Batch
    start: int
    stop: int
    moments: Moments | None
    is_misleading: bool = False
    positions: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def members(self) -> Sequence[ShareUnderTest]:
        return self.batch.members[self.start : self.stop]

    @property
    def others(self) -> list[ShareUnderTest]:
        return [share for position, share in enumerate(self.members) if position not in self.positions]

    @property
    def is_locatable(self) -> bool:
        """Whether the positions of bad shares may be computed from the moments."""
        return self.size <= _LOCATED_SIZE and not self.is_misleading

    @property
    def priority(self) -> tuple[int, int]:
        """Groups are resolved in ascending order: first those that yield most clean shares for a measurement."""
        return -max(self.size, _LOCATED_SIZE), len(self.moments or ())

    def sums_to_prove(self) -> list[KeysAndShares]:
        """Return the sums that do not deviate if the hypothesis is true.

        If the sum of the others is clean, the group deviates by the shares at the positions: at least one of them
        is bad. If the others are also clean with their positions as weights, both are, because a single bad share
        would have been located alone.
        """
        others = [position for position in range(self.size) if position not in self.positions]
        terms = [self.batch.terms[self.start + position] for position in others]
        sums = [weighted_sum(terms, [p**moment for p in others], _add) for moment in range(len(self.positions))]
        return [total for total in sums if total is not None]


def _add(left: KeysAndShares, right: KeysAndShares) -> KeysAndShares:
    return add_public_keys(left[0], right[0]), add_shares(left[1], right[1])


def weights_of(moment: int, size: int) -> list[int]:
    """Return the weights of a group's positions in a moment: 1, the position, its square."""
    return [position**moment for position in range(size)]


def weighted_sum(terms: Sequence[T], weights: Sequence[int], add: Callable[[T, T], T]) -> T | None:
    """Return the sum of terms, each taken as often as its weight says; None if all weights are 0."""
    total: T | None = None
    for bit in reversed(range(max(weights, default=0).bit_length())):
        if total is not None:
            total = add(total, total)
        for term, weight in zip(terms, weights, strict=True):
            if weight >> bit & 1:
                total = term if total is None else add(total, term)
    return total


def locate(moments: Moments, size: int) -> tuple[int, ...] | None:
    """Return the positions of one or two bad shares that would explain a group's moments."""
    if len(moments) < 2:
        return None
    powers = _powers(moments[0], size)
    for position in range(size):
        if powers[position] == moments[1]:
            return (position,)
    return None if len(moments) < _MAX_MOMENTS else _locate_pair(moments, powers, size)


def right_moments(whole: Moments, left: Moments, left_size: int) -> Moments:
    """Return the moments of a group's right half, whose positions count from its own start."""
    right = [multiply_deviations(moment, invert_deviation(other)) for moment, other in zip(whole, left, strict=False)]
    if len(right) > 1:
        right[1] = multiply_deviations(right[1], invert_deviation(_power(right[0], left_size)))
    if len(right) > 2:
        # (x - m)^2 = x^2 - 2m (x - m) - m^2, and right[1] counts x - m already.
        rest = multiply_deviations(_power(right[1], 2 * left_size), _power(right[0], left_size**2))
        right[2] = multiply_deviations(right[2], invert_deviation(rest))
    return tuple(right)


def _locate_pair(moments: Moments, powers: Sequence[Deviation], size: int) -> tuple[int, ...] | None:
    sums = _powers(moments[1], 2 * size)
    # M2 M0^(ij), first for j = i + 1, and from there on by steps of M0^i.
    start = moments[2]
    for first in range(size - 1):
        product = start
        for second in range(first + 1, size):
            if product == sums[first + second]:
                return (first, second)
            product = multiply_deviations(product, powers[first])
        start = multiply_deviations(multiply_deviations(start, powers[first + 1]), powers[first + 1])
    return None


def _powers(value: Deviation, count: int) -> list[Deviation]:
    powers = [NO_DEVIATION]
    while len(powers) < count:
        powers.append(multiply_deviations(powers[-1], value))
    return powers


def _power(value: Deviation, exponent: int) -> Deviation:
    power = weighted_sum([value], [exponent], multiply_deviations)
    return NO_DEVIATION if power is None else power
