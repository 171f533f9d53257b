"""The shares of one round, and the decisions which of them are summed, and which are searched for
bad ones.

Pure.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from heapq import nlargest
from operator import attrgetter
from typing import Final

from msgspec import Struct

from warpseal.aggregation.ask_schedule import AskSchedule
from warpseal.aggregation.bad_shares import SearchResult, SearchStep, ShareUnderTest
from warpseal.aggregation.goals import QuorumGoal
from warpseal.aggregation.members import (
    SIGNED,
    SUSPECT,
    UNAVAILABLE,
    LastReply,
    MemberRecord,
    MemberTable,
)
from warpseal.aggregation.result_cache import SignedResult
from warpseal.aggregation.share_cache import CachedShare
from warpseal.bls import Share
from warpseal.store.values import StoredShare, StoredSignature
from warpseal.warp.ids import NodeID

_BAD_SIGNATURE: Final = LastReply(UNAVAILABLE, "bad_signature")
# Measurements after a failure until a result may leave before all bad shares are named: enough for
# a dozen.
_THOROUGH_SEARCH: Final = 64
# Measurements in one step on the worker thread, a millisecond each; few if each of them may be the
# last that is needed.
_STEP: Final = 32
_SHORT_STEP: Final = 6
# With many bad shares, this many new ones are searched before they are tried in a sum.
_MIN_UNCHECKED: Final = 16
_MAX_SINGLES: Final = 8
_MAX_FRUITLESS: Final = 2


class PartialAggregate(Struct, frozen=True):
    """Shares that are known only as their sum.

    indices: of exactly its signers; result: the sum alone, verified.
    """

    indices: frozenset[int]
    share: Share
    result: SignedResult


class SumCheck(Struct, frozen=True, eq=False):
    """Sum shares (`indices`: of their signers) and verify the result for `goal`."""

    goal: QuorumGoal
    indices: Sequence[int]
    shares: Sequence[Share]
    members: Sequence[tuple[MemberRecord, CachedShare | None]]


class StoredSignatureCheck(Struct, frozen=True):
    """Find a stored signature that fits this validator set, and verify it."""

    signatures: Sequence[StoredSignature]


Check = SumCheck | SearchStep | StoredSignatureCheck
CheckOutcome = SignedResult | PartialAggregate | SearchResult | None
"""None: the sum, or every stored signature, was wrong."""


class RoundShares(Struct, eq=False):
    """The shares of the round, those to be stored, and the search for bad shares.

    One check is under way at a time.

    stored: what the archive holds, by public key.
    must_begin: a sum was wrong, and the search for the reason has not begun yet.
    wake_weight: from this weight on each share may ask for an action.
    """

    _table: MemberTable
    _schedule: AskSchedule
    _offenders: Container[bytes]
    stored: dict[bytes, bytes] = {}
    must_begin: bool = False
    wake_weight: float = 0.0
    _partial: PartialAggregate | None = None
    _unstored: dict[bytes, CachedShare] = {}
    _added: list[MemberRecord] = []
    _alone: dict[MemberRecord, None] = {}
    _unresolved: tuple[ShareUnderTest, ...] = ()
    _measurements: int = 0
    _thorough_until: int = 0
    _fruitless: int = 0

    def add(self, member: MemberRecord, share: CachedShare, sender: NodeID | None) -> bool:
        """Take a share; return whether it may ask for an action: each from `wake_weight` on, and
        one that ends probing.

        sender: the node that sent it in this round; None if it was cached or stored.
        """
        if member.share is not None:
            if member.share is share:
                member.sender = member.sender or sender
            return False
        self._unstored[member.public_key] = share
        if member.is_in_partial:
            return False
        table = self._table
        member.share = share
        member.sender = sender
        if not share.is_verified and member.public_key in self._offenders:
            self._alone[member] = None
            table.set_status(member, SUSPECT)
        else:
            table.set_status(member, SIGNED)
        return self._schedule.is_probing or table.share_weight >= self.wake_weight

    def add_stored(self, member: MemberRecord, stored: StoredShare, share: CachedShare) -> None:
        """Take a stored share.

        share: what stands for its key, decoded.
        """
        self.add(member, share, None)
        if member.share is not share:
            return
        if share.raw != stored.signature:
            # One of two different shares of a key is bad at least: the round's own is verified
            # before it is used.
            self._alone[member] = None
            self._table.set_status(member, SUSPECT)
        elif stored.verified:
            member.is_checked = True

    def add_partial(self, partial: PartialAggregate) -> None:
        """Take a stored signature: from now on it stands for its signers."""
        self._partial = partial
        for index in partial.indices:
            member = self._table.members[index]
            self._drop(member)
            member.is_in_partial = True
            self._table.set_status(member, SIGNED)

    def remove(self, member: MemberRecord) -> None:
        """Drop a share that was found bad: its weight is lost only if a node sent it in this round."""
        self.stored.pop(member.public_key, None)
        self._unstored.pop(member.public_key, None)
        self._drop(member)
        if member.sender is not None:
            self._table.nodes[member.sender].last_reply = _BAD_SIGNATURE
        member.sender = None
        self._table.settle(member)
        self._schedule.ask_again(member)

    def take_unstored(self) -> list[StoredShare]:
        """Return the shares that are to be stored, each once."""
        unstored, self._unstored = self._unstored, {}
        stored = self.stored
        return [
            StoredShare(public_key, share.raw, share.is_verified)
            for public_key, share in unstored.items()
            if share.is_verified or stored.get(public_key) != share.raw
        ]

    # Sums.

    def sum_check(self, goal: QuorumGoal) -> SumCheck:
        """Return the check of the signers that a goal needs.

        The partial aggregate is indivisible: if one of its signers is wanted, all of them are in.
        """
        members = [
            (member, member.share) for member in self._table.choose_signers(goal.target_weight)
        ]
        indices = [member.index for member, share in members if share is not None]
        shares = [share.point for _, share in members if share is not None]
        if self._partial is not None and len(shares) < len(members):
            indices += self._partial.indices
            shares.append(self._partial.share)
        return SumCheck(goal, indices, shares, members)

    def accept(self, check: SumCheck) -> None:
        """Note that a sum was right."""
        for member, share in check.members:
            if share is not None and member.share is share:
                member.is_checked = True

    def refute(self, check: SumCheck) -> None:
        """Note that a sum was wrong: search for the reason, unless another round has found bad
        shares in it.

        Shares that were part of a right sum are left out, unless all of this sum were: then two or
        more of them had cancelled each other out.
        """
        if not all(member.share is not None or member.is_in_partial for member, _ in check.members):
            return
        members = self._unchecked()
        if not any(member.is_unchecked for member, _ in check.members):
            for member, _ in check.members:
                member.is_checked = False
            members = [member for member, _ in check.members if member.is_unchecked]
        if not members:
            raise AssertionError("shares that were all verified alone make no valid sum")
        self._suspect(members)
        self._thorough_until = self._measurements + _THOROUGH_SEARCH
        self.must_begin = True

    # The search for bad shares.

    @property
    def can_go_on(self) -> bool:
        """Whether a further step could find something."""
        return bool(self._alone or self._added or self._unresolved)

    @property
    def must_go_on(self) -> bool:
        """Whether bad shares are searched for in any case, even if a goal could be completed."""
        return self.must_begin or (
            bool(self._unresolved) and self._measurements < self._thorough_until
        )

    @property
    def is_flooded(self) -> bool:
        """Whether many shares were bad, so that new ones are likely to be bad as well."""
        return bool(self._unresolved) and self._measurements >= self._thorough_until

    @property
    def unresolved(self) -> list[tuple[MemberRecord, CachedShare]]:
        """The shares in groups that hold a bad one."""
        return self._current(self._unresolved)

    def suspect_unchecked(self) -> None:
        """Search shares that have been in no sum yet before they enter one, unless they are few."""
        members = self._unchecked()
        if len(members) >= _MIN_UNCHECKED:
            self._suspect(members)

    def next_step(self) -> SearchStep:
        """Return the next step: groups that hold a bad share first, then the heaviest that are
        verified alone.
        """
        if self._added or self._unresolved:
            added, self._added = self._added, []
            return SearchStep(_points(added), (), _SHORT_STEP if self.is_flooded else _STEP)
        chosen = nlargest(_MAX_SINGLES, self._alone, key=attrgetter("weight"))
        for member in chosen:
            del self._alone[member]
        return SearchStep((), _points(chosen), 0)

    def apply(self, result: SearchResult) -> list[tuple[MemberRecord, CachedShare]]:
        """Take the result of a search step; return the bad shares, which are dropped."""
        is_first, self.must_begin = self.must_begin, False
        self._measurements, self._unresolved = result.measurements, result.unresolved
        clean, proven, bad = (
            self._current(shares) for shares in (result.clean, result.proven, result.bad)
        )
        if is_first:
            # Keys that cancel each other out verify nowhere, though no share of theirs is bad. A
            # bad share that another round of the message has dropped in the meantime counts as
            # found.
            self._fruitless = 0 if result.bad or self.can_go_on else self._fruitless + 1
            if self._fruitless > _MAX_FRUITLESS:
                raise AssertionError("nothing is wrong with shares that make no valid sum")
        for member, _ in clean:
            member.is_checked = True
        for member, share in proven:
            share.is_verified = True
            self._unstored[member.public_key] = share
        for member, _ in (*clean, *proven):
            if member.status is SUSPECT:
                self._table.set_status(member, SIGNED)
        for member, _ in bad:
            self.remove(member)
        return bad

    def _drop(self, member: MemberRecord) -> None:
        member.share = None
        member.is_checked = False
        self._alone.pop(member, None)

    def _suspect(self, members: Iterable[MemberRecord]) -> None:
        for member in members:
            self._added.append(member)
            self._table.set_status(member, SUSPECT)

    def _unchecked(self) -> list[MemberRecord]:
        return [
            member
            for member in self._table.members
            if member.status is SIGNED and member.is_unchecked
        ]

    def _current(self, tested: Iterable[ShareUnderTest]) -> list[tuple[MemberRecord, CachedShare]]:
        """Return the shares that were tested and have not been dropped since."""
        members = [
            (self._table.members[tested_share.index], tested_share) for tested_share in tested
        ]
        shares = [(member, member.share, tested_share.share) for member, tested_share in members]
        return [
            (member, share)
            for member, share, point in shares
            if share is not None and share.point is point
        ]


def _points(members: Iterable[MemberRecord]) -> list[tuple[int, Share]]:
    return [(member.index, member.share.point) for member in members if member.share is not None]
