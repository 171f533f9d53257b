"""Drives the pure round without a loop: executes its actions at once, with shares that are only
names.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from math import inf
from random import Random

from tests.aggregation.fixtures import index_of, members, node, public_key
from warpseal.aggregation.ask_schedule import Ask
from warpseal.aggregation.bad_shares import SearchResult, SearchStep, ShareUnderTest
from warpseal.aggregation.goals import QuorumGoal
from warpseal.aggregation.members import NodeRecord
from warpseal.aggregation.refusals import RefusalRules
from warpseal.aggregation.result_cache import SignedResult
from warpseal.aggregation.round import (
    Action,
    AggregationRound,
    Complete,
    Connect,
    Decode,
    Fail,
    Load,
    Reject,
    StoreResult,
    StoreShares,
    SumAhead,
    Verify,
)
from warpseal.aggregation.round_shares import PartialAggregate, StoredSignatureCheck, SumCheck
from warpseal.aggregation.settings import AggregationSettings
from warpseal.aggregation.share_cache import CachedShare
from warpseal.aggregation.shortfall import explain
from warpseal.bls import PublicKey, Share
from warpseal.node.p_chain import CurrentValidation
from warpseal.peers.statistics import Unreachable
from warpseal.protocol.messages import NoSignature
from warpseal.store.values import ArchiveEntry, StoredShare
from warpseal.warp.ids import NodeID, SubnetID
from warpseal.warp.quorum_shortfall import QuorumShortfall
from warpseal.warp.validator_set import CanonicalValidatorSet, Validator

P_CHAIN_RULES = RefusalRules(p_chain=True, uptime=False)
UPTIME_RULES = RefusalRules(p_chain=False, uptime=True)
SUBNET = SubnetID(bytes(32))
DEADLINE = 15.0
_NUMBER_OF_KEY = {public_key(number): number for number in range(1, 101)}


class RoundDriver:
    """A round whose nodes are all connected, unless `connected` says otherwise, and the outcomes of
    its goals.

    completed: the signers of each goal, in their order. asks: (time, numbers of nodes, whether it
    is a re-ask).
    """

    def __init__(
        self,
        weights: Iterable[int] = (),
        *,
        keyless: int = 0,
        validators: CanonicalValidatorSet | None = None,
        rules: RefusalRules = P_CHAIN_RULES,
        settings: AggregationSettings | None = None,
        offenders: Container[bytes] = (),
        stored: ArchiveEntry | None = None,
        connected: Iterable[NodeID] | None = None,
        activity_final_at: float = 0.0,
    ) -> None:
        self.validators = validators or members(tuple(weights), keyless)
        self._is_due = True
        self.round = AggregationRound(
            self.validators,
            rules,
            settings or AggregationSettings(),
            Random(3),
            offenders,
            self._wake,
        )
        self.stored = stored or ArchiveEntry()
        self.connected = list(self.validators.node_ids if connected is None else connected)
        self.inactive: frozenset[NodeID] = frozenset()
        self.underfunded: tuple[CurrentValidation, ...] | None = ()
        # Validations with enough balance, and those without one.
        self.others: tuple[CurrentValidation, ...] = ()
        self.activity_final_at = activity_final_at
        self.offenders = offenders
        self.bad_shares: set[int] = set()
        self.actions: list[Action] = []
        self.asks: list[tuple[float, list[int], bool]] = []
        self.completed: dict[QuorumGoal, list[int]] = {}
        self.results: dict[QuorumGoal, SignedResult] = {}
        self.failures: dict[QuorumGoal, Fail] = {}
        self.shortfalls: dict[QuorumGoal, QuorumShortfall] = {}
        self.rejected: list[int] = []
        self._signers: dict[int, list[int]] = {}
        # Shares and results are compared by identity, so each of them stays alive.
        self._kept: list[object] = []

    def join(
        self,
        quorum: int = 67,
        buffer: int = 0,
        deadline: float = DEADLINE,
        *,
        stored_only: bool = False,
        is_height_fixed: bool = False,
    ) -> QuorumGoal:
        """Add a caller's goal."""
        goal = QuorumGoal(
            quorum, buffer, deadline, self.validators.total_weight, stored_only, is_height_fixed
        )
        self.round.join(goal)
        return goal

    def advance(self, now: float) -> None:
        """Execute the actions that are due at a time, and those that follow from them."""
        self._is_due = True
        while self._is_due:
            self._is_due = False
            for action in self.round.tick(now):
                self.actions.append(action)
                self._execute(action, now)

    def outcome(self, goal: QuorumGoal, now: float = 0.0) -> str:
        """Return what a goal has come to at a time: waiting, complete, lost or late."""
        self.advance(now)
        if goal in self.completed:
            return "complete"
        if goal in self.failures:
            return "late" if self.failures[goal].is_late else "lost"
        return "waiting"

    def share(self, number: int, *, is_bad: bool = False) -> CachedShare:
        """Return a new share of a validator, right or bad."""
        share = CachedShare(b"%d" % number, Share(object()))
        if is_bad:
            self.bad_shares.add(id(share.point))
        self._kept.append(share)
        return share

    def sign(self, *numbers: int) -> None:
        """Let nodes respond with their share."""
        for number in numbers:
            self.round.response(self.node(number), self.share(number))

    def lie(self, *numbers: int) -> None:
        """Let nodes respond with a bad share."""
        for number in numbers:
            self.round.response(self.node(number), self.share(number, is_bad=True))

    def find(self, *numbers: int, is_bad: bool = False) -> None:
        """Let shares be in the cache, or come to another round of the message."""
        for number in numbers:
            self.round.on_share_added(public_key(number), self.share(number, is_bad=is_bad))

    def refuse(self, code: int, *numbers: int) -> None:
        """Let nodes refuse."""
        for number in numbers:
            self.round.refused(self.node(number), code, "because")

    def respond_without_share(self, reply: NoSignature, *numbers: int) -> None:
        """Let nodes send empty or malformed responses."""
        for number in numbers:
            self.round.response(self.node(number), reply)

    def lose_connection(
        self, number: int, retry_at: float = inf, reason: str = "not_connected"
    ) -> None:
        """Let a node disconnect, and its next dial be planned for a time."""
        self.round.disconnected(node(number))
        self.round.unreachable(node(number), Unreachable(reason, retry_at))

    def asked_nodes(self, since: float = 0.0) -> list[int]:
        """Return the nodes that were asked from a time on, in order."""
        return [number for at, numbers, _ in self.asks if at >= since for number in numbers]

    def reasons(self, goal: QuorumGoal) -> dict[str, int]:
        """Return the reasons in the explanation of a failed goal."""
        return dict(self.shortfalls[goal].counts)

    def node(self, number: int) -> NodeRecord:
        """Return the record of a node."""
        return self.round.table.nodes[node(number)]

    def index(self, number: int) -> int:
        """Return the canonical index of a key."""
        return index_of(self.validators, number)

    def number(self, index: int) -> int:
        """Return the number of the key with a canonical index."""
        return _NUMBER_OF_KEY[self.validators.validators[index].public_key]

    def _wake(self) -> None:
        self._is_due = True

    def _execute(self, action: Action, now: float) -> None:
        match action:
            case Load():
                self.round.loaded(self.stored)
            case Decode(shares=shares):
                self.round.decoded([(stored, self._cached_share(stored)) for stored in shares])
            case Connect():
                self.round.connected(self.connected)
                current = (*(self.underfunded or ()), *self.others)
                self.round.set_inactive(
                    self.inactive, self.activity_final_at, self.underfunded, current
                )
            case Ask(node_ids=node_ids, is_reask=is_reask):
                self.asks.append(
                    (now, [int.from_bytes(node_id, "big") for node_id in node_ids], is_reask)
                )
            case Verify(check=check):
                self.round.verified(self._verify(check))
            case StoreResult(result=result):
                self._execute(self.round.stored(result), now)
            case Complete(goals=goals, result=result):
                for goal in goals:
                    self.completed[goal] = self._signers[id(result)]
                    self.results[goal] = result
            case Fail(goal=goal):
                self.failures[goal] = action
                self.shortfalls[goal] = explain(self.round, goal, 1, SUBNET)
            case Reject(shares=rejected):
                self.rejected += [self.number(member.index) for member, _ in rejected]
            case StoreShares() | SumAhead():
                pass

    def _verify(
        self, check: SumCheck | SearchStep | StoredSignatureCheck
    ) -> SignedResult | PartialAggregate | SearchResult | None:
        match check:
            case SumCheck(indices=indices, shares=shares):
                return None if self._has_bad(shares) else self._result(indices)
            case SearchStep(added=added, alone=alone):
                tested = [
                    ShareUnderTest(index, PublicKey(None), share)
                    for index, share in (*added, *alone)
                ]
                bad = tuple(signers for signers in tested if self._has_bad([signers.share]))
                return SearchResult(
                    tuple(signers for signers in tested if signers not in bad), (), bad
                )
            case StoredSignatureCheck(signatures=signatures):
                signers = [self.validators.index_of_key(key) for key in signatures[0].public_keys]
                indices = [index for index in signers if index is not None]
                if len(indices) < len(signers):
                    return None
                return PartialAggregate(frozenset(indices), Share("sum"), self._result(indices))

    def _cached_share(self, stored: StoredShare) -> CachedShare:
        member = self.round.table.member_of_key(stored.public_key)
        assert member is not None
        return member.share or CachedShare(stored.signature, Share(stored.signature))

    def _has_bad(self, shares: Iterable[Share]) -> bool:
        return any(id(share) in self.bad_shares for share in shares)

    def _result(self, indices: Iterable[int]) -> SignedResult:
        signers = list(indices)
        result = SignedResult(
            repr(signers).encode(), self.validators.weight_of(signers), len(signers)
        )
        self._signers[id(result)] = [self.number(index) for index in signers]
        self._kept.append(result)
        return result


def two_nodes() -> CanonicalValidatorSet:
    """Return a set of key 1 on nodes 1 and 101 with weight 60, and key 2 on node 2 with 40."""
    nodes = {1: (node(1), node(101)), 2: (node(2),)}
    weights = {1: 60, 2: 40}
    order = [_NUMBER_OF_KEY[validator.public_key] for validator in members([60, 40]).validators]
    return CanonicalValidatorSet(
        tuple(Validator(public_key(number), weights[number], nodes[number]) for number in order),
        100,
    )
