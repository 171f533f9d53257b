"""When a round is enough, when it can wait, and when it is lost: pure state, fed by hand."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.aggregation.world import index_of, members, node, public_key
from warpseal.aggregation.goals import Goal, Standing
from warpseal.aggregation.refusals import RefusalRules
from warpseal.aggregation.roll import NEVER_BACK, Away, Fate
from warpseal.aggregation.round import Round
from warpseal.aggregation.settings import AggregationSettings
from warpseal.aggregation.shortfall import explain, missing_validators
from warpseal.errors import Verdict
from warpseal.warp.ids import NodeID, SubnetID
from warpseal.warp.validator_set import CanonicalValidatorSet, Validator, has_quorum

P_CHAIN_RULES = RefusalRules(p_chain=True, uptime=False)
UPTIME_RULES = RefusalRules(p_chain=False, uptime=True)
SUBNET = SubnetID(bytes(32))


class Board:
    """A round with everybody connected, and one goal."""

    def __init__(
        self,
        weights: list[int],
        quorum: int = 67,
        buffer: int = 0,
        keyless: int = 0,
        rules: RefusalRules = P_CHAIN_RULES,
        validators: CanonicalValidatorSet | None = None,
    ) -> None:
        self.members = validators or members(weights, keyless)
        self.round = Round(self.members, rules, AggregationSettings(), Random(3), 0.0)
        for node_id in self.members.node_ids:
            self.round.connected(node_id)
        self.goal = self.join(quorum, buffer)

    def join(self, quorum: int, buffer: int = 0, deadline: float = 15.0) -> Goal:
        goal = Goal(quorum, buffer, deadline, self.members.total_weight)
        self.round.join(goal)
        return goal

    def index(self, number: int) -> int:
        return index_of(self.members, number)

    def sign(self, *numbers: int, given: bool = True) -> None:
        for number in numbers:
            self.round.share(self.index(number), node(number) if given else None)

    def refuse(self, code: int, *numbers: int) -> None:
        for number in numbers:
            self.round.refused(node(number), code, "because")

    def lose_connection(self, number: int, back_at: float, reason: str = "not_connected") -> None:
        self.round.disconnected(node(number))
        self.round.reach(node(number), Away(reason, back_at))

    def standing(self, now: float = 0.0, goal: Goal | None = None) -> Standing:
        return self.round.standing(goal or self.goal, now)

    def signers(self, goal: Goal | None = None) -> list[int]:
        chosen = self.round.signers(goal or self.goal)
        keys = [self.members.validators[index].public_key for index in chosen]
        return [next(number for number in range(1, 40) if public_key(number) == key) for key in keys]

    def reasons(self) -> dict[str, int]:
        return dict(explain(self.round, self.goal, 1, SUBNET).counts)


def two_nodes() -> CanonicalValidatorSet:
    """Key 1 on nodes 1 and 11 with weight 60, key 2 on node 2 with 40."""
    validators = [
        Validator(public_key(1), 60, (node(1), node(11))),
        Validator(public_key(2), 40, (node(2),)),
    ]
    order = members([60, 40]).validators
    validators.sort(key=lambda one: [v.public_key for v in order].index(one.public_key))
    return CanonicalValidatorSet(tuple(validators), 100)


# Enough.


def test_the_required_weight_is_enough_and_one_less_is_not() -> None:
    board = Board([66, 1, 33])
    board.sign(1)
    assert board.standing() is Standing.WAITING
    board.sign(2)
    assert board.standing() is Standing.READY
    assert board.signers() == [1, 2]


def test_the_shortest_prefix_of_heavier_first_is_chosen() -> None:
    board = Board([10, 40, 20, 30], quorum=60)
    board.sign(1, 2, 3, 4)
    assert board.signers() == [2, 4]


def test_of_equal_weights_the_lower_index_is_chosen() -> None:
    board = Board([25, 25, 25, 25], quorum=50)
    board.sign(1, 2, 3, 4)
    assert sorted(board.round.signers(board.goal)) == [0, 1]


def test_a_quorum_of_nothing_still_needs_a_signer() -> None:
    board = Board([1, 1], quorum=0)
    assert board.goal.required == 1
    assert board.standing() is Standing.WAITING


@settings(max_examples=60)
@given(
    weights=st.lists(st.integers(1, 2**40), min_size=1, max_size=6),
    keyless=st.integers(0, 2**40),
    quorum=st.integers(1, 100),
    signed=st.sets(st.integers(1, 6)),
)
def test_ready_means_the_exact_fraction(weights: list[int], keyless: int, quorum: int, signed: set[int]) -> None:
    board = Board(weights, quorum=quorum, keyless=keyless)
    signers = [number for number in signed if number <= len(weights)]
    board.sign(*signers)
    weight = sum(weights[number - 1] for number in signers)
    enough = bool(signers) and Fraction(weight, board.members.total_weight) >= Fraction(quorum, 100)
    assert (board.standing() is Standing.READY) == enough
    if enough:
        chosen = sum(weights[number - 1] for number in board.signers())
        assert Fraction(chosen, board.members.total_weight) >= Fraction(quorum, 100)
        assert has_quorum(chosen, board.members.total_weight, quorum)


# The buffer.


def test_the_buffer_is_awaited_for_two_seconds() -> None:
    board = Board([70, 10, 20], buffer=10)
    board.sign(1)
    assert board.standing(1.0) is Standing.WAITING
    assert board.round.next_at() <= 3.0
    assert board.standing(2.99) is Standing.WAITING
    assert board.standing(3.0) is Standing.READY
    assert board.signers() == [1]


def test_the_answer_goes_out_as_soon_as_the_buffer_is_met() -> None:
    board = Board([70, 10, 20], buffer=10)
    board.sign(1)
    assert board.standing(1.0) is Standing.WAITING
    board.sign(2)
    assert board.standing(1.1) is Standing.READY
    assert board.signers() == [1, 2]


def test_a_buffer_that_can_no_longer_come_is_not_awaited() -> None:
    board = Board([70, 10, 20], buffer=15)
    board.sign(1)
    assert board.standing(1.0) is Standing.WAITING
    board.refuse(1, 3)
    assert board.standing(1.1) is Standing.READY


def test_the_buffer_is_never_awaited_past_the_deadline() -> None:
    board = Board([70, 10, 20], buffer=10)
    board.sign(1)
    assert board.standing(14.5) is Standing.WAITING
    assert board.standing(14.99) is Standing.READY


def test_a_lost_buffer_never_fails_a_request() -> None:
    board = Board([70, 10, 20], buffer=33)
    board.refuse(1, 2, 3)
    assert board.standing() is Standing.WAITING
    board.sign(1)
    assert board.standing() is Standing.READY


# Reluctant validators.


def test_reluctant_validators_sign_only_when_the_quorum_needs_them() -> None:
    board = Board([50, 40, 30, 20], quorum=60)
    board.round.set_reluctant(frozenset({node(1)}))
    board.sign(1, 2, 3, 4)
    assert board.signers() == [2, 3, 4]
    needing = board.join(80)
    assert board.signers(needing) == [2, 3, 4, 1]


def test_reluctant_validators_are_not_waited_for_while_others_suffice() -> None:
    board = Board([50, 40, 30, 20], quorum=60)
    board.round.set_reluctant(frozenset({node(1)}))
    board.sign(2, 3, 4)
    assert board.standing() is Standing.READY


def test_with_a_reluctant_share_at_hand_others_have_two_seconds_to_make_it_needless() -> None:
    board = Board([50, 40, 30, 20], quorum=60)
    board.round.set_reluctant(frozenset({node(1)}))
    board.sign(1, 2)
    assert board.standing(1.0) is Standing.WAITING
    assert board.standing(3.0) is Standing.READY


def test_a_reluctant_share_is_used_at_once_where_others_cannot_suffice() -> None:
    board = Board([50, 40, 30, 20], quorum=60)
    board.round.set_reluctant(frozenset({node(1)}))
    board.sign(1, 2)
    board.refuse(1, 3)
    assert board.standing() is Standing.READY


def test_a_key_is_reluctant_only_if_all_its_nodes_are() -> None:
    board = Board([], validators=two_nodes())
    board.round.set_reluctant(frozenset({node(1)}))
    assert not board.round.roll.reluctant
    board.round.set_reluctant(frozenset({node(1), node(11)}))
    assert board.round.roll.reluctant == {board.index(1)}


# Losses.


@pytest.mark.parametrize("code", [1, 5, 10, 13, 15, -1, -2])
def test_final_refusals_make_the_quorum_impossible_for_ever(code: int) -> None:
    board = Board([30, 30, 40])
    board.refuse(code, 1)
    assert board.standing() is Standing.WAITING
    board.refuse(code, 2)
    assert board.standing() is Standing.LOST
    assert board.round.verdict(board.goal) is Verdict.NEVER


@pytest.mark.parametrize("code", [0, 6, 11, 12, 14, 16, 17])
def test_refusals_that_may_change_lose_nothing(code: int) -> None:
    board = Board([30, 30, 40])
    board.refuse(code, 1, 2, 3)
    assert board.standing(14.9) is Standing.WAITING
    assert board.standing(15.0) is Standing.LATE


def test_empty_answers_and_silence_lose_nothing() -> None:
    board = Board([30, 30, 40])
    board.round.empty(node(1))
    board.round.empty(node(2))
    assert board.standing(14.9) is Standing.WAITING


def test_weight_without_a_key_is_lost_for_good() -> None:
    board = Board([60], keyless=40)
    assert board.standing() is Standing.LOST
    assert board.round.verdict(board.goal) is Verdict.NEVER
    assert board.reasons()["no_bls_key"] == 1


def test_an_uptime_that_was_not_reached_is_lost_for_now() -> None:
    board = Board([30, 30, 40], rules=UPTIME_RULES)
    board.refuse(2, 1, 2)
    assert board.standing() is Standing.LOST
    assert board.round.verdict(board.goal) is Verdict.WAIT
    assert board.reasons()["uptime_not_reached"] == 2


def test_a_bad_answer_is_lost_for_now() -> None:
    board = Board([40, 60])
    board.sign(1)
    board.round.bad(board.index(1))
    assert board.standing() is Standing.LOST
    assert board.round.verdict(board.goal) is Verdict.WAIT
    assert board.reasons() == {"bad_signature": 1, "not_asked": 1}


def test_a_malformed_answer_is_lost_for_now() -> None:
    board = Board([40, 60])
    board.round.malformed(node(1))
    assert board.standing() is Standing.LOST
    assert board.round.verdict(board.goal) is Verdict.WAIT


def test_a_bad_share_from_the_cache_makes_its_validator_one_that_was_not_asked() -> None:
    board = Board([40, 60])
    board.sign(1, given=False)
    asked = [node_id for ask in board.round.due(0.0) for node_id in ask.node_ids]
    assert node(1) not in asked
    board.round.bad(board.index(1))
    assert board.standing() is Standing.WAITING
    assert [ask.node_ids for ask in board.round.due(0.1) if not ask.again] == [[node(1)]]


def test_losses_for_now_and_for_good_add_up_but_the_verdict_counts_only_those_for_good() -> None:
    board = Board([20, 20, 60])
    board.refuse(1, 1)
    board.round.malformed(node(2))
    assert board.standing() is Standing.LOST
    assert board.round.verdict(board.goal) is Verdict.WAIT
    board = Board([20, 20, 60])
    board.refuse(1, 1, 2)
    assert board.round.verdict(board.goal) is Verdict.NEVER


def test_a_final_refusal_cannot_be_taken_back_but_a_share_counts() -> None:
    board = Board([40, 60])
    board.refuse(1, 1)
    board.refuse(11, 1)
    assert board.standing() is Standing.LOST
    board.sign(1, 2)
    assert board.standing() is Standing.READY


def test_any_node_of_a_key_suffices() -> None:
    board = Board([], validators=two_nodes())
    board.refuse(1, 1)
    assert board.standing() is Standing.WAITING
    board.round.share(board.index(1), node(11))
    board.sign(2)
    assert board.standing() is Standing.READY


def test_a_key_is_lost_when_every_node_of_it_is() -> None:
    board = Board([], validators=two_nodes())
    board.refuse(1, 1)
    board.round.malformed(node(11))
    assert board.standing() is Standing.LOST
    assert board.round.verdict(board.goal) is Verdict.WAIT
    board = Board([], validators=two_nodes())
    board.refuse(1, 1, 11)
    assert board.round.verdict(board.goal) is Verdict.NEVER


def test_a_bad_share_of_one_node_leaves_the_other_node_of_its_key() -> None:
    board = Board([], validators=two_nodes())
    board.round.share(board.index(1), node(1))
    board.round.bad(board.index(1))
    assert board.standing() is Standing.WAITING
    board.round.share(board.index(1), node(11))
    board.sign(2)
    assert board.standing() is Standing.READY


# Out of reach.


def test_who_cannot_be_dialled_before_the_deadline_is_lost_for_now() -> None:
    board = Board([40, 60])
    board.lose_connection(1, back_at=20.0)
    assert board.standing() is Standing.LOST
    assert board.round.verdict(board.goal) is Verdict.WAIT
    assert board.reasons()["not_connected"] == 1


def test_each_goal_measures_reach_by_its_own_deadline() -> None:
    board = Board([40, 60])
    patient = board.join(67, deadline=30.0)
    board.lose_connection(1, back_at=20.0)
    assert board.standing() is Standing.LOST
    assert board.standing(goal=patient) is Standing.WAITING


def test_who_will_never_be_dialled_is_lost_whatever_the_deadline() -> None:
    board = Board([40, 60])
    board.lose_connection(1, NEVER_BACK, reason="private_address")
    assert board.standing() is Standing.LOST
    assert board.reasons()["private_address"] == 1


def test_who_is_being_connected_is_waited_for() -> None:
    board = Board([40, 60])
    board.round.disconnected(node(1))
    board.round.reach(node(1), None)
    assert board.standing() is Standing.WAITING


def test_who_comes_back_is_not_lost_any_more() -> None:
    board = Board([40, 60])
    board.lose_connection(1, back_at=20.0)
    board.round.connected(node(1))
    assert board.standing() is Standing.WAITING


def test_who_has_signed_may_go_away() -> None:
    board = Board([40, 60])
    board.sign(1)
    board.lose_connection(1, back_at=99.0)
    board.sign(2)
    assert board.standing() is Standing.READY


def test_one_node_out_of_reach_leaves_the_other_of_its_key() -> None:
    board = Board([], validators=two_nodes())
    board.lose_connection(1, back_at=99.0)
    assert board.standing() is Standing.WAITING
    board.lose_connection(11, back_at=99.0)
    assert board.standing() is Standing.LOST


def test_a_key_with_one_node_that_refused_and_one_out_of_reach_is_lost_for_now() -> None:
    board = Board([], validators=two_nodes())
    board.refuse(1, 1)
    board.lose_connection(11, back_at=99.0)
    assert board.standing() is Standing.LOST
    assert board.round.verdict(board.goal) is Verdict.WAIT


def test_it_fails_for_want_of_connections_only_if_those_would_help() -> None:
    board = Board([40, 60])
    board.lose_connection(1, back_at=20.0)
    assert board.round.want_of_connections(board.goal) == [node(1)]
    board = Board([30, 10, 60], quorum=80)
    board.refuse(1, 1)
    board.lose_connection(2, back_at=20.0)
    assert board.round.want_of_connections(board.goal) == []


# Doubt.


def test_doubted_shares_do_not_count_as_signed_and_may_still_come() -> None:
    board = Board([40, 60])
    board.round.share(board.index(1), node(1), doubtful=True)
    board.sign(2)
    assert board.standing() is Standing.WAITING
    board.round.trust([board.index(1)])
    assert board.standing() is Standing.READY
    board.round.doubt([board.index(1)])
    assert board.standing() is Standing.WAITING
    assert board.reasons() == {"unverified_share": 1}


# Explanations.


def test_the_shortfall_names_the_heaviest_missing_with_their_last_words() -> None:
    weights = [100 + number for number in range(30)]
    board = Board(weights, quorum=100, keyless=500)
    board.sign(*range(1, 11))
    board.refuse(11, 30)
    board.round.empty(node(29))
    shortfall = explain(board.round, board.goal, 77, SUBNET, ("a hint",))
    assert shortfall.height == 77
    assert shortfall.signed_weight == sum(weights[:10])
    assert shortfall.required_weight == shortfall.total_weight == sum(weights) + 500
    assert shortfall.counts == {
        "no_bls_key": 1,
        "validation_unknown": 1,
        "empty_answer": 1,
        "not_asked": 18,
    }
    keyless, refused, empty, *_ = shortfall.missing
    assert (keyless.reason, keyless.weight, keyless.public_key, keyless.node_ids) == ("no_bls_key", 500, None, ())
    assert (refused.reason, refused.error_code, refused.error_message) == ("validation_unknown", 11, "because")
    assert refused.public_key == public_key(30)
    assert empty.reason == "empty_answer"
    assert [one.weight for one in shortfall.missing] == sorted((one.weight for one in shortfall.missing), reverse=True)
    assert shortfall.hints[0] == "a hint"
    assert any("BLS key" in hint for hint in shortfall.hints)
    assert any("RegisterL1ValidatorTx" in hint for hint in shortfall.hints)


def test_at_most_fifty_missing_are_named() -> None:
    board = Board([1] * 70)
    shortfall = explain(board.round, board.goal, 1, SUBNET)
    assert len(shortfall.missing) == 50
    assert sum(shortfall.counts.values()) == 70


@settings(max_examples=40)
@given(data=st.data())
def test_running_sums_always_agree_with_a_recount(data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.integers(1, 50), min_size=1, max_size=8))
    board = Board(weights, keyless=data.draw(st.integers(0, 20)))
    numbers = st.integers(1, len(weights))
    actions = st.sampled_from(["sign", "doubtful", "bad", "doubt", "trust", "final", "retry", "empty", "away", "back"])
    now = 0.0
    for action, number in data.draw(st.lists(st.tuples(actions, numbers), max_size=40)):
        _act(board, action, number)
        now += 0.1
        board.round.due(now)
        _assert_sums(board)


def _act(board: Board, action: str, number: int) -> None:
    index, state = board.index(number), board.round
    match action:
        case "sign" | "doubtful":
            state.share(index, node(number) if number % 2 else None, doubtful=action == "doubtful")
        case "bad":
            state.bad(index)
        case "doubt":
            state.doubt([index])
        case "trust":
            state.trust([index])
        case "final" | "retry":
            board.refuse(1 if action == "final" else 11, number)
        case "empty":
            state.empty(node(number))
        case "away":
            board.lose_connection(number, back_at=99.0)
        case "back":
            state.connected(node(number))


def _assert_sums(board: Board) -> None:
    roll = board.round.roll
    for fate in Fate:
        expected = [roll.weights[index] for index, one in enumerate(roll.fates) if one is fate]
        keyless = board.members.keyless_weight if fate is Fate.GONE else 0
        assert roll.weight[fate] == sum(expected) + keyless
        assert roll.count[fate] == len(expected)
    away = [
        index
        for index, one in enumerate(board.members.validators)
        if roll.fates[index] is Fate.OPEN and all(node_id in roll.away for node_id in one.node_ids)
    ]
    assert roll.unreachable(50.0) == sum(roll.weights[index] for index in away)
    assert sum(one.weight for one in missing_validators(board.round)) + roll.signed == roll.total
    linked = [
        one.weight
        for index, one in enumerate(board.members.validators)
        if any(board.round.asking.is_connected(NodeID(node_id)) for node_id in one.node_ids)
    ]
    assert board.round.asking.connected_weight == sum(linked)
