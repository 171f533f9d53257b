"""Drives the pure round with random events against a plain model that recounts everything from the
start each time.

The contract: a goal is never completed below its quorum, never failed while its quorum can still
come, and no validator is asked outside of the rules of docs/aggregation.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, inf

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.aggregation.fixtures import node, public_key, signature
from tests.aggregation.round_driver import RoundDriver
from warpseal.aggregation.goals import QuorumGoal
from warpseal.aggregation.settings import AggregationSettings
from warpseal.peers.statistics import Unreachable
from warpseal.protocol.messages import NoSignature
from warpseal.store.values import ArchiveEntry, StoredSignature
from warpseal.warp.ids import NodeID
from warpseal.warp.quorum_shortfall import Verdict
from warpseal.warp.validator_set import CanonicalValidatorSet, build_canonical_set

# On the P-Chain: 1 is final, 11 may change.
PERMANENT, RETRYABLE = 1, 11
ROUNDING_S = 1e-6
FIRST_REASK_S = 0.5 * 0.9
SECOND_NODE = 100
# Small enough for small sets: two probes, half of the weight in the first wave.
SETTINGS = AggregationSettings(probes=2, first_wave_percent=50, always_ask_percent=40)
REPLIES = ("permanent", "retryable", "empty", "malformed")


@dataclass
class ModelNode:
    """What is known of one node.

    refusal: "permanent", "round" or nothing that holds.
    """

    number: int
    is_connected: bool = True
    retry_at: float | None = None
    refusal: str = ""
    asked_at: list[float] = field(default_factory=list)


@dataclass
class ModelValidator:
    """One key.

    share: "good", "bad" or none; is_shielded: a stored signature stands for it.
    """

    number: int
    weight: int
    nodes: list[ModelNode]
    share: str = ""
    sender: ModelNode | None = None
    is_shielded: bool = False

    @property
    def has_share(self) -> bool:
        return bool(self.share) or self.is_shielded

    @property
    def refusal(self) -> str:
        """The refusal that holds for every node of the key."""
        refusals = {node.refusal for node in self.nodes}
        if refusals == {"permanent"}:
            return "permanent"
        return "" if "" in refusals else "round"

    def can_sign_before(self, deadline: float) -> bool:
        """Return whether a share is there or may still come in time."""
        if self.has_share:
            return True
        nodes = [node for node in self.nodes if not node.refusal]
        return any(node.retry_at is None or node.retry_at < deadline for node in nodes)


class RoundMachine(RuleBasedStateMachine):
    """The round, its model, and a clock that only moves forward."""

    @initialize(
        weights=st.lists(st.integers(1, 40), min_size=1, max_size=7),
        keyless=st.sampled_from([0, 0, 0, 5, 60]),
        has_two_nodes=st.sampled_from([True, True, False]),
        offenders=st.sets(st.integers(1, 7), max_size=2),
        shielded=st.sets(st.integers(1, 7), max_size=2),
        disconnected=st.sets(st.integers(1, 7), max_size=2),
        is_activity_known=st.booleans(),
    )
    def begin(
        self,
        weights: list[int],
        keyless: int,
        has_two_nodes: bool,
        offenders: set[int],
        shielded: set[int],
        disconnected: set[int],
        is_activity_known: bool,
    ) -> None:
        self.now = 0.0
        self.validators: dict[int, ModelValidator] = {}
        for number, weight in enumerate(weights, 1):
            nodes = [ModelNode(number)]
            if has_two_nodes and number == 1:
                nodes.append(ModelNode(number + SECOND_NODE))
            self.validators[number] = ModelValidator(number, weight, nodes)
            for peer in nodes:
                peer.is_connected = number not in disconnected
        signers = sorted(shielded & self.validators.keys())
        stored = StoredSignature(
            tuple(public_key(number) for number in signers), signature(1, b"any")
        )
        self.driver = RoundDriver(
            validators=self._set(keyless),
            settings=SETTINGS,
            offenders={public_key(number) for number in offenders},
            stored=ArchiveEntry((stored,)) if signers else ArchiveEntry(),
            connected=[node(peer.number) for peer in self._nodes() if peer.is_connected],
            activity_final_at=0.0 if is_activity_known else inf,
        )
        for number in signers:
            self.validators[number].is_shielded = True
        self.goals: list[QuorumGoal] = []
        self.left: set[QuorumGoal] = set()
        self.seen_asks = 0
        self.was_reordered = False
        self.join(67, 0, 15.0, stored_only=False)

    # Events.

    @rule(
        quorum=st.integers(1, 100),
        buffer=st.sampled_from([0, 0, 10, 33]),
        patience_s=st.sampled_from([0.3, 2.0, 15.0]),
        stored_only=st.sampled_from([False, False, False, True]),
    )
    def join(self, quorum: int, buffer: int, patience_s: float, stored_only: bool) -> None:
        """A caller joins."""
        self.goals.append(
            self.driver.join(quorum, buffer, self.now + patience_s, stored_only=stored_only)
        )

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """A caller that still waits leaves."""
        waiting = self._waiting()
        if waiting:
            goal = data.draw(st.sampled_from(waiting))
            self.left.add(goal)
            self.driver.round.leave(goal)

    @rule(
        number=st.integers(1, 7),
        second=st.booleans(),
        kind=st.sampled_from(["good", "good", "good", "bad"]),
    )
    def respond_with_share(self, number: int, second: bool, kind: str) -> None:
        """A node responds with a share. A key has one share at a time, as in the cache."""
        validator, node = self._pick(number, second)
        if not validator.has_share:
            validator.share, validator.sender = kind, node
            share = self.driver.share(node.number, is_bad=kind == "bad")
            self.driver.round.response(self.driver.node(node.number), share)

    @rule(number=st.integers(1, 7), kind=st.sampled_from(["good", "bad"]))
    def find_share(self, number: int, kind: str) -> None:
        """Another round of the message brings a share."""
        validator, _ = self._pick(number)
        if not validator.has_share:
            validator.share, validator.sender = kind, None
            self.driver.find(validator.number, is_bad=kind == "bad")

    @rule(
        number=st.integers(1, 7),
        second=st.booleans(),
        reply=st.sampled_from(["permanent", "retryable", "empty", "malformed"]),
    )
    def respond_without_share(self, number: int, second: bool, reply: str) -> None:
        """A node refuses, or sends nothing that is a share."""
        _, node = self._pick(number, second)
        if reply == "permanent":
            node.refusal = "permanent"
            self.driver.refuse(PERMANENT, node.number)
        elif reply == "retryable":
            self.driver.refuse(RETRYABLE, node.number)
        elif reply == "empty":
            self.driver.respond_without_share(NoSignature.EMPTY, node.number)
        else:
            node.refusal = node.refusal or "round"
            self.driver.respond_without_share(NoSignature.MALFORMED, node.number)

    @rule(number=st.integers(1, 7), second=st.booleans())
    def connect(self, number: int, second: bool) -> None:
        """A handshake is done."""
        _, peer = self._pick(number, second)
        peer.retry_at = None
        if not peer.is_connected:
            peer.is_connected, peer.asked_at = True, []
        self.driver.round.connected([node(peer.number)])

    @rule(
        number=st.integers(1, 7),
        second=st.booleans(),
        retry_in_s=st.sampled_from([None, 0.1, 5.0, inf]),
    )
    def disconnect(self, number: int, second: bool, retry_in_s: float | None) -> None:
        """A connection is lost, and the next dial is planned, under way, or impossible."""
        _, peer = self._pick(number, second)
        peer.is_connected = False
        peer.retry_at = None if retry_in_s is None else self.now + retry_in_s
        self.driver.round.disconnected(node(peer.number))
        reason = None if peer.retry_at is None else Unreachable("not_connected", peer.retry_at)
        self.driver.round.unreachable(node(peer.number), reason)

    @rule(numbers=st.sets(st.integers(1, 7), max_size=3))
    def learn_inactive(self, numbers: set[int]) -> None:
        """It is known now which validators are inactive."""
        nodes = [
            peer
            for number in numbers & self.validators.keys()
            for peer in self.validators[number].nodes
        ]
        self.was_reordered |= bool(nodes)
        self.driver.inactive = frozenset(node(peer.number) for peer in nodes)
        self.driver.round.set_inactive(self.driver.inactive, self.now)

    @rule(seconds=st.sampled_from([0.01, 0.3, 0.6, 1.0, 2.5, 9.0]))
    def wait(self, seconds: float) -> None:
        """Time passes; the round is woken whenever it wants to be."""
        until = self.now + seconds
        for _ in range(1_000):
            next_at = self.driver.round.next_wakeup(self.now)
            if next_at > until:
                break
            self.now = max(self.now + 0.002, next_at)
            self._advance()
        else:
            raise AssertionError("the round is woken for ever")
        self.now = max(self.now, until)

    # The contract.

    @invariant()
    def outcomes_are_right(self) -> None:
        if hasattr(self, "driver"):
            self._advance()

    @invariant()
    @precondition(lambda self: hasattr(self, "driver"))
    def ready_goals_do_not_wait(self) -> None:
        """A goal whose target has signed is complete when the inactive validators are known."""
        final_at = self.driver.round.goals.activity_final_at
        for goal in self._waiting():
            has_bad = any(validator.share == "bad" for validator in self.validators.values())
            suspects = any(
                public_key(number) in self.driver.offenders for number in self.validators
            )
            if not has_bad and not suspects and final_at <= self.now and not self.driver.inactive:
                signed = sum(
                    validator.weight
                    for validator in self.validators.values()
                    if validator.has_share
                )
                assert signed < goal.target_weight

    def _advance(self) -> None:
        completed, failed = set(self.driver.completed), set(self.driver.failures)
        rejected = len(self.driver.rejected)
        self.driver.advance(self.now)
        for number in self.driver.rejected[rejected:]:
            self._reject(number)
        for goal in self.driver.completed.keys() - completed:
            self._check_completed(goal)
        for goal in self.driver.failures.keys() - failed:
            self._check_failed(goal)
        self._check_asks()

    def _reject(self, number: int) -> None:
        validator = self.validators[number]
        assert validator.share == "bad", "only bad shares are rejected"
        if validator.sender is not None:
            validator.sender.refusal = "round"
        validator.share, validator.sender = "", None

    def _check_completed(self, goal: QuorumGoal) -> None:
        assert goal not in self.left
        assert goal not in self.driver.failures
        signers = self.driver.completed[goal]
        assert len(set(signers)) == len(signers) > 0
        for number in signers:
            assert self.validators[number].share == "good" or self.validators[number].is_shielded
        weight = sum(self.validators[number].weight for number in signers)
        assert Fraction(weight, self._total()) >= Fraction(goal.quorum, 100)

    def _check_failed(self, goal: QuorumGoal) -> None:
        assert goal not in self.left
        assert goal not in self.driver.completed
        required = max(1, ceil(Fraction(self._total() * goal.quorum, 100)))
        failure, shortfall = self.driver.failures[goal], self.driver.shortfalls[goal]
        validators = self.validators.values()
        possible = sum(
            validator.weight for validator in validators if validator.can_sign_before(goal.deadline)
        )
        at_hand = sum(validator.weight for validator in validators if validator.has_share)
        if failure.is_late:
            assert self.now >= goal.deadline
        elif goal.stored_only:
            assert at_hand < required
        else:
            assert possible < required
        lost_for_good = sum(
            validator.weight
            for validator in validators
            if not validator.has_share and validator.refusal == "permanent"
        )
        is_impossible = self._total() - self._keyless() - lost_for_good < required
        assert (shortfall.verdict is Verdict.NEVER) == is_impossible

    def _check_asks(self) -> None:
        """Check each request that was sent since the last check."""
        asks, self.seen_asks = self.driver.asks[self.seen_asks :], len(self.driver.asks)
        for at, numbers, is_reask in asks:
            assert any(not goal.stored_only for goal in self.goals)
            assert len(set(numbers)) == len(numbers)
            for number in numbers:
                self._check_ask(at, number, is_reask)
            if is_reask and not any(validator.has_share for validator in self.validators.values()):
                assert len({number % SECOND_NODE for number in numbers}) <= SETTINGS.probes
        if not self.was_reordered:
            for _, numbers, is_reask in asks:
                if not is_reask:
                    self._check_order(numbers)

    def _check_ask(self, at: float, number: int, is_reask: bool) -> None:
        validator = self.validators[number % SECOND_NODE]
        node = next(candidate for candidate in validator.nodes if candidate.number == number)
        assert node.is_connected, "only connected nodes are asked"
        assert not node.refusal, "a refusal that holds ends the questions"
        assert not validator.has_share, "a validator whose share is at hand is not asked"
        assert is_reask == bool(node.asked_at)
        if node.asked_at:
            assert at - node.asked_at[-1] >= FIRST_REASK_S - ROUNDING_S, (
                "two requests are half a second apart"
            )
        node.asked_at.append(at)

    def _check_order(self, numbers: list[int]) -> None:
        """Check that heavier validators were asked before those of a first request, or could not
        be.
        """
        order = sorted(
            self.validators.values(),
            key=lambda validator: (-validator.weight, self.driver.index(validator.number)),
        )
        last = max(order.index(self.validators[number % SECOND_NODE]) for number in numbers)
        large = self._total() * SETTINGS.always_ask_percent
        for validator in order[:last]:
            if order[last].weight * 100 < large and not validator.has_share:
                for node in validator.nodes:
                    assert node.asked_at or node.refusal or not node.is_connected

    # Helpers.

    def _set(self, keyless: int) -> CanonicalValidatorSet:
        entries: list[tuple[NodeID, bytes | None, int]] = []
        for validator in self.validators.values():
            first, *others = validator.nodes
            entries.append((node(first.number), public_key(validator.number), validator.weight))
            entries += [(node(other.number), public_key(validator.number), 0) for other in others]
        return build_canonical_set([*entries, (NodeID(bytes(20)), None, keyless)])

    def _total(self) -> int:
        return self.driver.validators.total_weight

    def _keyless(self) -> int:
        return self.driver.validators.keyless_weight

    def _nodes(self) -> list[ModelNode]:
        return [node for validator in self.validators.values() for node in validator.nodes]

    def _pick(self, number: int, second: bool = False) -> tuple[ModelValidator, ModelNode]:
        """Return a validator of any set, and its first or last node."""
        validator = self.validators[number % len(self.validators) + 1]
        return validator, validator.nodes[-1 if second else 0]

    def _waiting(self) -> Sequence[QuorumGoal]:
        over = {*self.driver.completed, *self.driver.failures, *self.left}
        return [goal for goal in self.goals if goal not in over]


TestRound = RoundMachine.TestCase
TestRound.settings = settings(
    max_examples=200,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
