"""The shares of one round: some are summed, others are searched for bad shares. Pure."""

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
# Measurements after a wrong sum, enough for a dozen bad shares; only then a result may leave before
# all bad shares are named.
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
    """Shares of which only the sum is known.

    indices: canonical indices of exactly its signers.
    result: the message signed by them alone, verified.
    """

    indices: frozenset[int]
    share: Share
    result: SignedResult


class SumCheck(Struct, frozen=True, eq=False):
    """Sum shares and verify the result for `goal`.

    indices: canonical indices of the signers.
    shares: shares that add up to exactly their signatures, a partial aggregate as one of them.
    members: the same signers, with the share that each had when the sum was made.
    """

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


class RoundShares:
    """The shares of the round, those to be stored, and the search for bad shares.

    One check is under way at a time.

    offenders: public keys whose share was bad lately.
    stored: shares in the archive, by public key.
    must_begin: a sum was wrong, and the search for the reason has not begun yet.
    wake_weight: weight from which on each share may ask for an action.
    """

    def __init__(
        self, table: MemberTable, schedule: AskSchedule, offenders: Container[bytes]
    ) -> None:
        self.stored: dict[bytes, bytes] = {}
        self.must_begin = False
        self.wake_weight = 0.0
        self._table = table
        self._schedule = schedule
        self._offenders = offenders
        self._partial: PartialAggregate | None = None
        self._unstored: dict[bytes, CachedShare] = {}
        # The search: members to be added, members to be verified alone, and its last findings.
        self._added: list[MemberRecord] = []
        self._alone: dict[MemberRecord, None] = {}
        self._unresolved: tuple[ShareUnderTest, ...] = ()
        self._measurements = 0
        self._thorough_until = 0
        self._fruitless_searches = 0

    def add(self, member: MemberRecord, share: CachedShare, sender: NodeID | None) -> bool:
        """Take a share; return whether it may ask for an action.

        Each share may from `wake_weight` on, or while nodes are probed.
        sender: node that sent the share in this round; None if the share was cached or stored.
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

        share: decoded share that stands for its key now.
        """
        self.add(member, share, None)
        if member.share is not share:
            return
        if share.raw != stored.signature:
            # At least one of two different shares of a key is bad: the share of the round is
            # verified alone before it enters a sum.
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
        """Drop a bad share; its weight is lost only if a node sent it in this round."""
        self.stored.pop(member.public_key, None)
        self._unstored.pop(member.public_key, None)
        self._drop(member)
        if member.sender is not None:
            self._table.nodes[member.sender].last_reply = _BAD_SIGNATURE
        member.sender = None
        # The status comes before the schedule, which asks only members that are pending again.
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

        The partial aggregate is indivisible: with one of its signers all of them are in the sum.
        """
        signers = self._table.choose_signers(goal.target_weight)
        members = [(member, member.share) for member in signers]
        indices = [member.index for member, share in members if share is not None]
        shares = [share.point for _, share in members if share is not None]
        if self._partial is not None and len(shares) < len(members):
            indices += self._partial.indices
            shares.append(self._partial.share)
        return SumCheck(goal, indices, shares, members)

    def accept(self, check: SumCheck) -> None:
        """Record that a sum was right."""
        for member, share in check.members:
            if share is not None and member.share is share:
                member.is_checked = True

    def refute(self, check: SumCheck) -> None:
        """Record that a sum was wrong: search for the reason.

        Shares that were part of a right sum are left out, unless all shares of this sum were: then
        two or more of them had cancelled each other out.
        """
        signers = [member for member, _ in check.members]
        # Another round has found bad shares in the sum, which explains it.
        if any(member.share is None and not member.is_in_partial for member in signers):
            return
        members = self._unchecked()
        if not any(member.is_unchecked for member in signers):
            for member in signers:
                member.is_checked = False
            members = [member for member in signers if member.is_unchecked]
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
        if self.must_begin:
            return True
        return bool(self._unresolved) and self._measurements < self._thorough_until

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
        """Return the next step of the search.

        Groups that hold a bad share come first, then the heaviest members that are verified alone.
        """
        if self._added or self._unresolved:
            added, self._added = self._added, []
            measurements = _SHORT_STEP if self.is_flooded else _STEP
            return SearchStep(_points(added), (), measurements)
        heaviest = nlargest(_MAX_SINGLES, self._alone, key=attrgetter("weight"))
        for member in heaviest:
            del self._alone[member]
        return SearchStep((), _points(heaviest), 0)

    def apply(self, result: SearchResult) -> list[tuple[MemberRecord, CachedShare]]:
        """Take the result of a search step; return the bad shares, which are dropped."""
        is_first, self.must_begin = self.must_begin, False
        self._measurements, self._unresolved = result.measurements, result.unresolved
        clean = self._current(result.clean)
        proven = self._current(result.proven)
        bad = self._current(result.bad)
        if is_first:
            self._check_progress(result)
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

    def _check_progress(self, result: SearchResult) -> None:
        """Raise AssertionError if the first steps of several searches in a row explain nothing.

        Keys that cancel each other out verify nowhere, though no share of theirs is bad. A bad
        share that another round of the message has dropped in the meantime explains the sum.
        """
        if result.bad or self.can_go_on:
            self._fruitless_searches = 0
            return
        self._fruitless_searches += 1
        if self._fruitless_searches > _MAX_FRUITLESS:
            raise AssertionError("nothing is wrong with shares that make no valid sum")

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
        shares: list[tuple[MemberRecord, CachedShare]] = []
        for share_under_test in tested:
            member = self._table.members[share_under_test.index]
            share = member.share
            if share is not None and share.point is share_under_test.share:
                shares.append((member, share))
        return shares


def _points(members: Iterable[MemberRecord]) -> list[tuple[int, Share]]:
    return [(member.index, member.share.point) for member in members if member.share is not None]
