"""Finding the bad ones among shares whose sum did not verify, by halving.

The deviation of a group (see `bls.deviation`) is one measurement, two pairings. It is multiplicative: measuring one
half of a group yields the other half by division, so each split costs one measurement, whatever it finds. Small
groups are not split to the end: from one or two more measurements `moments` tells where their bad shares are. Such
claims are proven together, by one measurement of what they leave, each part taken a random number of times.

All that holds within the subgroup only, so every sum is checked for it before it is measured, and what is outside
is split until the culprits are alone. Nobody is named on the word of others: two colluding validators whose errors
cancel each other out may pass while they are summed together, but they can never make anybody else look bad.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import accumulate
from random import SystemRandom
from typing import Final

from warpseal.aggregation.moments import MAX_MOMENTS, Moments, locate, rest, weighted_sum, weights_of
from warpseal.bls import (
    NO_DEVIATION,
    Deviation,
    PublicKey,
    Share,
    add_public_keys,
    add_shares,
    compute_deviation,
    hash_to_curve,
    is_in_subgroup,
    subtract_public_keys,
    subtract_shares,
)

# Up to this size the positions of bad shares are cheaper to compute than to search for. Measured.
_LOCATED_SIZE: Final = 16
_PROOF_BITS: Final = 32
_PROVEN_TOGETHER: Final = 6


@dataclass(frozen=True, slots=True)
class Suspicion:
    """One share under suspicion and the key that it is meant to be of. index: canonical."""

    index: int
    key: PublicKey
    share: Share


@dataclass(frozen=True, slots=True)
class Findings:
    """What is known now. clean: sums of them were right; proven: each was right alone; bad: each was wrong alone."""

    clean: tuple[Suspicion, ...]
    proven: tuple[Suspicion, ...]
    bad: tuple[Suspicion, ...]


class _Batch:
    """Shares that were handed in together, with running sums, so that any range of them is summed at once."""

    def __init__(self, members: Sequence[Suspicion]) -> None:
        self.members: Final = members
        self._keys = list(accumulate((one.key for one in members), add_public_keys))
        self._shares = list(accumulate((one.share for one in members), add_shares))

    def sums(self, start: int, stop: int) -> tuple[PublicKey, Share]:
        keys, shares = self._keys[stop - 1], self._shares[stop - 1]
        if not start:
            return keys, shares
        before = start - 1
        return subtract_public_keys(keys, self._keys[before]), subtract_shares(shares, self._shares[before])


@dataclass(frozen=True, slots=True)
class _Group:
    """A range of a batch that holds a bad share.

    moments: as far as they were measured; None: the sum is outside of the subgroup. is_feigned: its moments
    mislead, because a claim that followed from them proved false.
    """

    batch: _Batch
    start: int
    stop: int
    moments: Moments | None
    is_feigned: bool = False

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def members(self) -> Sequence[Suspicion]:
        return self.batch.members[self.start : self.stop]

    @property
    def is_locatable(self) -> bool:
        """Whether the positions of bad shares may be computed from the moments."""
        return self.size <= _LOCATED_SIZE and not self.is_feigned

    @property
    def priority(self) -> tuple[int, int]:
        """What to resolve first, ascending: what yields most clean shares for a measurement."""
        return -max(self.size, _LOCATED_SIZE), len(self.moments or ())


@dataclass(frozen=True, slots=True)
class _Claim:
    """That exactly the shares at these positions of a group are bad."""

    group: _Group
    positions: tuple[int, ...]

    @property
    def bad(self) -> list[Suspicion]:
        return [self.group.members[position] for position in self.positions]

    @property
    def others(self) -> list[Suspicion]:
        return [one for position, one in enumerate(self.group.members) if position not in self.positions]

    def sums_to_prove(self) -> list[tuple[PublicKey, Share]]:
        """Return sums that do not deviate if the claim is true.

        If the others are clean as a sum, the deviation of the group is that of the claimed ones: one is bad then,
        but of two perhaps only one. If the others are clean with their positions as weights, too, both are: for
        a single culprit would have been located as such.
        """
        others = [position for position in range(self.group.size) if position not in self.positions]
        members = self.group.members
        sums = []
        for moment in range(len(self.positions)):
            weights = [position**moment for position in others]
            keys = weighted_sum([members[position].key for position in others], weights, add_public_keys)
            shares = weighted_sum([members[position].share for position in others], weights, add_shares)
            if keys is not None and shares is not None:
                sums.append((keys, shares))
        return sums


class Sieve:
    """Takes shares, splits the largest dirty groups first, and tells what it finds on the way.

    Everything but the constructor is heavy (a millisecond per measurement) and belongs on a worker thread.
    Not thread-safe: one call at a time.
    """

    def __init__(self, message: bytes) -> None:
        self._message = message
        self._hashed: Share | None = None
        self._random = SystemRandom()
        self._dirty: list[tuple[tuple[int, int], int, _Group]] = []
        self._claims: list[_Claim] = []
        self._numbers = 0
        self._clean: list[Suspicion] = []
        self._proven: list[Suspicion] = []
        self._bad: list[Suspicion] = []
        self.measurements = 0

    @property
    def has_dirty(self) -> bool:
        """Whether there are groups that are known to hold a bad share."""
        return bool(self._dirty) or bool(self._claims)

    @property
    def unresolved(self) -> list[Suspicion]:
        """The members of these groups."""
        groups = [*(group for _, _, group in self._dirty), *(claim.group for claim in self._claims)]
        return [one for group in groups for one in group.members]

    def add(self, members: Iterable[Suspicion]) -> None:
        """Take shares and measure their sum."""
        shuffled = list(members)
        # So that colluders cannot choose who they are grouped with.
        self._random.shuffle(shuffled)
        if shuffled:
            batch = _Batch(shuffled)
            self._file(_Group(batch, 0, len(shuffled), self._moments(batch, 0, len(shuffled))))

    def add_singly(self, members: Iterable[Suspicion]) -> None:
        """Take shares and measure each alone."""
        for member in members:
            batch = _Batch((member,))
            self._file(_Group(batch, 0, 1, self._moments(batch, 0, 1)))

    def split(self, measurements: int) -> Findings:
        """Search until all is resolved or about so many measurements were made; return what was found since."""
        limit = self.measurements + measurements
        while self._dirty and self.measurements < limit:
            self._resolve(heappop(self._dirty)[2])
            if not self._dirty or len(self._claims) >= _PROVEN_TOGETHER:
                self._prove_claims()
        return self._findings()

    def _resolve(self, group: _Group) -> None:
        """Measure a further moment of a small group; split one that is large, or where that did not help."""
        moments = group.moments
        if moments is None or len(moments) == MAX_MOMENTS or not group.is_locatable:
            self._halve(group)
            return
        further = self._moment(group.batch, group.start, group.stop, len(moments))
        if further is None:
            self._halve(replace(group, moments=moments[:1], is_feigned=True))
        else:
            self._file(replace(group, moments=(*moments, further)))

    def _halve(self, group: _Group) -> None:
        batch, start, stop = group.batch, group.start, group.stop
        middle = (start + stop) // 2
        count = 1 if group.moments is None else len(group.moments)
        left = self._moments(batch, start, middle, count)
        if group.moments is None:
            right = self._moments(batch, middle, stop)
        elif left is None:
            # The whole is inside of the subgroup, one half is not: so the other one is not, either.
            right = None
        else:
            right = rest(group.moments, left, middle - start)
        self._file(_Group(batch, start, middle, left, group.is_feigned))
        self._file(_Group(batch, middle, stop, right, group.is_feigned))

    def _moments(self, batch: _Batch, start: int, stop: int, count: int = 1) -> Moments | None:
        """Return the first moments of a range, fewer where one is outside of the subgroup; None: all are."""
        first = self._measure(*batch.sums(start, stop))
        if first is None:
            return None
        moments = [first]
        while len(moments) < count:
            further = self._moment(batch, start, stop, len(moments))
            if further is None:
                break
            moments.append(further)
        return tuple(moments)

    def _moment(self, batch: _Batch, start: int, stop: int, moment: int) -> Deviation | None:
        members = batch.members[start:stop]
        weights = weights_of(moment, stop - start)
        keys = weighted_sum([one.key for one in members], weights, add_public_keys)
        shares = weighted_sum([one.share for one in members], weights, add_shares)
        return NO_DEVIATION if keys is None or shares is None else self._measure(keys, shares)

    def _measure(self, keys: PublicKey, shares: Share) -> Deviation | None:
        self.measurements += 1
        if not is_in_subgroup(shares):
            return None
        if self._hashed is None:
            self._hashed = hash_to_curve(self._message)
        return compute_deviation(keys, shares, self._hashed)

    def _prove_claims(self) -> None:
        """Accept the claims that are true: all of them together if they are, else one by one."""
        claims, self._claims = self._claims, []
        if len(claims) > 1 and self._are_true(claims):
            for claim in claims:
                self._accept(claim)
            return
        for claim in claims:
            if self._are_true((claim,)):
                self._accept(claim)
            else:
                moments = claim.group.moments
                self._file(replace(claim.group, moments=moments and moments[:1], is_feigned=True))

    def _are_true(self, claims: Sequence[_Claim]) -> bool:
        """Measure the sums of all claims at once; that a wrong one passes has a chance of one in 2^32."""
        sums = [pair for claim in claims for pair in claim.sums_to_prove()]
        if not sums:
            return True
        weights = [self._random.randrange(1, 1 << _PROOF_BITS) for _ in sums]
        keys = weighted_sum([one for one, _ in sums], weights, add_public_keys)
        shares = weighted_sum([one for _, one in sums], weights, add_shares)
        return keys is None or shares is None or self._measure(keys, shares) == NO_DEVIATION

    def _accept(self, claim: _Claim) -> None:
        self._clean.extend(claim.others)
        self._bad.extend(claim.bad)

    def _file(self, group: _Group) -> None:
        """Put a group where it belongs, as far as its moments tell."""
        moments = group.moments
        if moments is not None and moments[0] == NO_DEVIATION:
            (self._clean if group.size > 1 else self._proven).extend(group.members)
            return
        positions = locate(moments, group.size) if moments is not None and group.is_locatable else None
        if positions is not None:
            self._claims.append(_Claim(group, positions))
        elif group.size == 1 or (moments is not None and len(moments) >= group.size):
            # Fewer bad ones than members would have been located.
            self._bad.extend(group.members)
        else:
            self._numbers += 1
            heappush(self._dirty, (group.priority, self._numbers, group))

    def _findings(self) -> Findings:
        findings = Findings(tuple(self._clean), tuple(self._proven), tuple(self._bad))
        self._clean, self._proven, self._bad = [], [], []
        return findings
