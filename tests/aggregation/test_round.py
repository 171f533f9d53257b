"""When a quorum is complete, when its callers wait, and when it fails: events in, actions out."""

from __future__ import annotations

from fractions import Fraction
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, to_builtins

from tests.aggregation.fixtures import node, public_key, signature
from tests.aggregation.round_driver import DEADLINE, SUBNET, UPTIME_RULES, RoundDriver, two_nodes
from warpseal.aggregation.ask_schedule import Ask
from warpseal.aggregation.bad_shares import SearchStep
from warpseal.aggregation.goals import QuorumGoal
from warpseal.aggregation.members import ShareStatus
from warpseal.aggregation.round import (
    Complete,
    Connect,
    Decode,
    Fail,
    Load,
    StoreResult,
    StoreShares,
    SumAhead,
    Verify,
)
from warpseal.aggregation.round_shares import SumCheck
from warpseal.aggregation.settings import AggregationSettings
from warpseal.aggregation.shortfall import explain
from warpseal.node.p_chain import CurrentValidation
from warpseal.peers.statistics import Unreachable
from warpseal.protocol.messages import NoSignature
from warpseal.store.values import ArchiveEntry, StoredShare, StoredSignature
from warpseal.warp.ids import NodeID, id_text, node_id_text
from warpseal.warp.quorum_shortfall import Verdict
from warpseal.warp.validator_set import has_quorum

# The order of actions.


def test_a_round_loads_connects_asks_verifies_commits_and_completes() -> None:
    driver = RoundDriver([20] * 5)
    goal = driver.join(80)
    driver.advance(0.0)
    assert [type(action) for action in driver.actions] == [Load, Connect, Ask]
    driver.sign(1, 2, 3)
    driver.advance(0.1)
    driver.sign(4)
    driver.advance(0.2)
    assert [type(action) for action in driver.actions[3:]] == [
        StoreShares,
        StoreShares,
        Verify,
        StoreResult,
    ]
    assert len(driver.completed[goal]) == 4
    assert driver.round.is_idle


def test_a_goal_that_leaves_while_its_result_is_committed_is_not_completed() -> None:
    driver = RoundDriver([20] * 5)
    leaving, staying = driver.join(80), driver.join(80)
    driver.advance(0.0)
    driver.sign(1, 2, 3, 4)
    action = driver.round.tick(0.1)[-1]
    assert isinstance(action, Verify)
    driver.round.verified(driver._verify(action.check))
    (store,) = driver.round.tick(0.1)
    assert isinstance(store, StoreResult)
    driver.round.leave(leaving)
    assert list(driver.round.stored(store.result).goals) == [staying]


def test_a_share_is_stored_no_later_than_a_result() -> None:
    driver = RoundDriver([20] * 5)
    driver.join(80)
    driver.advance(0.0)
    driver.sign(1, 2, 3, 4)
    action = driver.round.tick(0.1)[-1]
    assert isinstance(action, Verify)
    driver.round.verified(driver._verify(action.check))
    driver.sign(5)
    actions = driver.round.tick(0.2)
    assert [type(action) for action in actions[:2]] == [StoreShares, StoreResult]


def test_a_round_wakes_up_to_ask_again_and_not_when_it_needs_no_share() -> None:
    driver = RoundDriver([20] * 5)
    driver.join(80)
    driver.advance(0.0)
    assert 0.0 < driver.round.next_wakeup(0.0) <= 1.0
    driver.sign(1, 2, 3, 4)
    driver.advance(0.1)
    assert driver.round.next_wakeup(0.1) == inf


def test_the_earliest_deadline_of_the_goals_wakes_a_round() -> None:
    driver = RoundDriver([20] * 5)
    for deadline in (20.0, 5.0, 9.0):
        driver.join(80, deadline=deadline)
    assert driver.round.goals.next_at(0.0) == 5.0


def test_each_second_as_much_weight_is_asked_as_is_missing() -> None:
    settings = AggregationSettings(reask_jitter=0.0, always_ask_percent=100)
    driver = RoundDriver([500, 300, 150, 21, 19, 10], settings=settings)
    driver.join(81)
    driver.advance(0.0)
    assert driver.asked_nodes() == [1, 2, 3]
    driver.sign(1, 2)
    driver.advance(1.0)
    assert [number for number in driver.asked_nodes(1.0) if number > 3] == [4]


def test_reports_of_other_nodes_are_ignored() -> None:
    driver = RoundDriver([20] * 5)
    driver.join(80)
    driver.advance(0.0)
    driver.round.unreachable(node(9), Unreachable("not_connected", inf))
    driver.round.disconnected(node(9))
    assert not driver._is_due


def test_a_round_that_awaits_a_buffer_sleeps_until_it_ends() -> None:
    driver = RoundDriver([70, 10, 20], activity_final_at=1.0)
    goal = driver.join(67, 10)
    driver.sign(1)
    assert driver.outcome(goal, 0.5) == "waiting"
    assert driver.outcome(goal, 1.0) == "waiting"
    assert driver.round.goals.next_at(1.0) == 2.5


def test_shares_are_summed_ahead_twice_before_the_quorum_and_not_with_few_validators() -> None:
    for validators, signers in ((100, [51, 63]), (60, [])):
        driver = RoundDriver([1] * validators)
        driver.join(67)
        for number in range(1, validators + 1):
            driver.advance(0.0)
            driver.sign(number)
        sums = [action.check for action in driver.actions if isinstance(action, SumAhead)]
        assert [len(check.indices) for check in sums] == signers
        assert [len(check.shares) for check in sums] == signers
        verify = next(action for action in driver.actions if isinstance(action, Verify))
        assert isinstance(verify.check, SumCheck)
        assert len(verify.check.shares) == -(-67 * validators // 100)


def test_shares_that_come_together_are_not_summed_ahead() -> None:
    driver = RoundDriver([1] * 100)
    goal = driver.join(67)
    driver.advance(0.0)
    driver.sign(*range(1, 90))
    assert driver.outcome(goal) == "complete"
    assert not any(isinstance(action, SumAhead) for action in driver.actions)


def test_loading_leaves_half_of_the_time_to_ask_validators() -> None:
    driver = RoundDriver([100])
    driver.join(deadline=4.0)
    driver.join(deadline=9.0)
    driver.join(deadline=1.0, stored_only=True)
    driver.advance(1.0)
    load = driver.actions[0]
    assert isinstance(load, Load)
    assert load.until == 2.5


def test_stored_shares_are_decoded_in_portions_before_asks_and_not_stored_again() -> None:
    shares = tuple(
        StoredShare(public_key(number), b"%d" % number, False) for number in range(1, 101)
    )
    driver = RoundDriver([1] * 100, stored=ArchiveEntry(shares=shares))
    goal = driver.join(90)
    assert driver.outcome(goal) == "complete"
    assert [type(action) for action in driver.actions] == [
        Load,
        Decode,
        Decode,
        Connect,
        Verify,
        StoreResult,
    ]
    assert driver.asks == []


def test_a_stored_signature_completes_the_goals_that_it_meets_and_asks_no_validator() -> None:
    stored = StoredSignature(
        tuple(public_key(number) for number in (1, 2, 3, 4)), signature(1, b"any")
    )
    driver = RoundDriver([20] * 5, stored=ArchiveEntry((stored,)))
    met, unmet = driver.join(80), driver.join(100)
    driver.advance(0.0)
    assert sorted(driver.completed[met]) == [1, 2, 3, 4]
    assert unmet not in driver.completed
    assert driver.asked_nodes() == [5]
    driver.sign(5)
    assert driver.outcome(unmet, 0.1) == "complete"
    assert sorted(driver.completed[unmet]) == [1, 2, 3, 4, 5]


def test_a_second_goal_joins_a_result_that_is_being_committed() -> None:
    driver = RoundDriver([20] * 5)
    first = driver.join(80)
    driver.advance(0.0)
    driver.sign(1, 2, 3, 4, 5)
    actions = driver.round.tick(0.1)
    verify = next(action for action in actions if isinstance(action, Verify))
    driver._execute(verify, 0.1)
    (commit,) = (action for action in driver.round.tick(0.1) if isinstance(action, StoreResult))
    second = driver.join(67)
    assert not [action for action in driver.round.tick(0.2) if isinstance(action, Verify)]
    complete = driver.round.stored(commit.result)
    assert list(complete.goals) == [first, second]


# Enough.


def test_the_required_weight_is_enough_and_one_less_is_not() -> None:
    driver = RoundDriver([66, 1, 33])
    goal = driver.join()
    driver.sign(1)
    assert driver.outcome(goal) == "waiting"
    driver.sign(2)
    assert driver.outcome(goal) == "complete"
    assert driver.completed[goal] == [1, 2]


def test_the_shortest_prefix_of_heavier_validators_is_chosen() -> None:
    driver = RoundDriver([10, 40, 20, 30])
    goal = driver.join(60)
    driver.find(1, 2, 3, 4)
    driver.advance(0.0)
    assert driver.completed[goal] == [2, 4]


def test_of_equal_weights_the_lower_index_is_chosen() -> None:
    driver = RoundDriver([25, 25, 25, 25])
    goal = driver.join(50)
    driver.find(1, 2, 3, 4)
    driver.advance(0.0)
    assert [driver.index(number) for number in driver.completed[goal]] == [0, 1]


def test_a_quorum_of_nothing_still_needs_a_signer() -> None:
    driver = RoundDriver([1, 1])
    goal = driver.join(0)
    assert goal.required_weight == 1
    assert driver.outcome(goal) == "waiting"


@settings(max_examples=60)
@given(
    weights=st.lists(st.integers(1, 2**40), min_size=1, max_size=6),
    keyless=st.integers(0, 2**40),
    quorum=st.integers(1, 100),
    signed=st.sets(st.integers(1, 6)),
)
def test_a_goal_is_complete_at_the_exact_fraction(
    weights: list[int], keyless: int, quorum: int, signed: set[int]
) -> None:
    driver = RoundDriver(weights, keyless=keyless)
    goal = driver.join(quorum)
    signers = [number for number in signed if number <= len(weights)]
    driver.find(*signers)
    total = driver.validators.total_weight
    is_enough = bool(signers) and Fraction(sum(weights[n - 1] for n in signers), total) >= Fraction(
        quorum, 100
    )
    assert (driver.outcome(goal) == "complete") == is_enough
    if is_enough:
        assert has_quorum(
            sum(weights[number - 1] for number in driver.completed[goal]), total, quorum
        )


# The buffer.


def test_the_buffer_is_awaited_for_two_seconds() -> None:
    driver = RoundDriver([70, 10, 20])
    goal = driver.join(67, 10)
    driver.sign(1)
    assert driver.outcome(goal, 1.0) == "waiting"
    assert driver.round.next_wakeup(1.0) <= 3.0
    assert driver.outcome(goal, 2.99) == "waiting"
    assert driver.outcome(goal, 3.0) == "complete"
    assert driver.completed[goal] == [1]


def test_the_buffer_is_awaited_anew_if_the_quorum_was_lost_meanwhile() -> None:
    driver = RoundDriver([70, 10, 20])
    goal = driver.join(67, 10)
    wrong = driver.share(1)
    driver.round.on_share_added(public_key(1), wrong)
    assert driver.outcome(goal, 1.0) == "waiting"
    driver.round.on_share_rejected(public_key(1), wrong)
    assert driver.outcome(goal, 2.0) == "waiting"
    driver.find(1)
    assert driver.outcome(goal, 2.5) == "waiting"
    assert driver.outcome(goal, 4.49) == "waiting"
    assert driver.outcome(goal, 4.5) == "complete"


def test_a_result_leaves_as_soon_as_the_buffer_is_met() -> None:
    driver = RoundDriver([70, 10, 20])
    goal = driver.join(67, 10)
    driver.sign(1)
    assert driver.outcome(goal, 1.0) == "waiting"
    driver.sign(2)
    assert driver.outcome(goal, 1.1) == "complete"
    assert driver.completed[goal] == [1, 2]


def test_a_buffer_that_can_no_longer_come_is_not_awaited() -> None:
    driver = RoundDriver([70, 10, 20])
    goal = driver.join(67, 15)
    driver.sign(1)
    assert driver.outcome(goal, 1.0) == "waiting"
    driver.refuse(1, 3)
    assert driver.outcome(goal, 1.1) == "complete"


def test_the_buffer_is_never_awaited_past_the_deadline() -> None:
    driver = RoundDriver([70, 10, 20])
    goal = driver.join(67, 10)
    driver.sign(1)
    assert driver.outcome(goal, 14.5) == "waiting"
    assert driver.outcome(goal, 14.99) == "complete"


def test_a_lost_buffer_never_fails_a_request() -> None:
    driver = RoundDriver([70, 10, 20])
    goal = driver.join(67, 33)
    driver.refuse(1, 2, 3)
    assert driver.outcome(goal) == "waiting"
    driver.sign(1)
    assert driver.outcome(goal) == "complete"


# Inactive validators.


def test_inactive_validators_sign_only_if_the_quorum_needs_them() -> None:
    driver = RoundDriver([50, 40, 30, 20])
    driver.inactive = frozenset({node(1)})
    goal, demanding = driver.join(60), driver.join(80)
    driver.find(1, 2, 3, 4)
    driver.advance(0.0)
    assert driver.completed[goal] == [2, 3, 4]
    assert driver.completed[demanding] == [2, 3, 4, 1]


def test_inactive_validators_are_not_awaited_if_others_suffice() -> None:
    driver = RoundDriver([50, 40, 30, 20])
    driver.inactive = frozenset({node(1)})
    goal = driver.join(60)
    driver.find(2, 3, 4)
    assert driver.outcome(goal) == "complete"


def test_exactly_the_required_weight_of_active_validators_is_awaited() -> None:
    driver = RoundDriver([40, 30, 30])
    driver.inactive = frozenset({node(3)})
    goal = driver.join(70)
    driver.advance(0.0)
    driver.sign(1, 3)
    assert driver.outcome(goal, 0.1) == "waiting"
    driver.sign(2)
    assert driver.outcome(goal, 0.2) == "complete"
    assert sorted(driver.completed[goal]) == [1, 2]


def test_with_a_share_of_an_inactive_validator_the_others_have_two_seconds() -> None:
    driver = RoundDriver([50, 40, 30, 20])
    driver.inactive = frozenset({node(1)})
    goal = driver.join(60)
    driver.find(1, 2)
    assert driver.outcome(goal, 1.0) == "waiting"
    assert driver.outcome(goal, 3.0) == "complete"


def test_a_share_of_an_inactive_validator_is_used_at_once_if_others_cannot_suffice() -> None:
    driver = RoundDriver([50, 40, 30, 20])
    driver.inactive = frozenset({node(1)})
    goal = driver.join(60)
    driver.find(1, 2)
    driver.refuse(1, 3)
    assert driver.outcome(goal) == "complete"


def test_a_key_is_inactive_only_if_all_its_nodes_are() -> None:
    driver = RoundDriver(validators=two_nodes())
    table = driver.round.table
    driver.round.set_inactive(frozenset({node(1)}), 0.0)
    assert not table.inactive
    driver.round.set_inactive(frozenset({node(1), node(101)}), 0.0)
    assert table.inactive == (table.members[driver.index(1)],)


def test_a_round_wakes_up_for_what_changes_and_for_nothing_else() -> None:
    driver = RoundDriver([40, 30, 30], activity_final_at=inf)
    driver.join(60)
    driver.advance(0.0)

    def is_woken(inactive: set[NodeID], final_at: float) -> bool:
        driver.advance(0.0)
        driver.round.set_inactive(frozenset(inactive), final_at)
        return driver._is_due

    assert not is_woken(set(), inf)
    assert is_woken({node(1)}, inf)
    assert not is_woken({node(1)}, inf)
    assert is_woken({node(1)}, 0.5)
    assert is_woken(set(), 0.5)
    driver.advance(0.0)
    driver.round.disconnected(node(2))
    assert driver._is_due
    driver.advance(0.0)
    driver.round.disconnected(node(2))
    assert not driver._is_due


def test_no_result_leaves_before_the_inactive_validators_are_known_or_a_second_has_passed() -> None:
    for final_at, left_at in ((0.3, 0.3), (inf, 1.0)):
        driver = RoundDriver([40, 30, 30], activity_final_at=inf)
        goal = driver.join(60)
        driver.find(1, 2, 3)
        assert driver.outcome(goal, 0.0) == "waiting"
        assert driver.round.next_wakeup(0.0) == 1.0
        assert driver.outcome(goal, 0.29) == "waiting"
        driver.round.set_inactive(frozenset(), final_at)
        assert driver.outcome(goal, left_at - 0.01) == "waiting" or final_at < left_at
        assert driver.outcome(goal, left_at) == "complete"


# Losses.


@pytest.mark.parametrize("code", [1, 5, 10, 13, 15, -1, -2])
def test_permanent_refusals_make_the_quorum_impossible(code: int) -> None:
    driver = RoundDriver([30, 30, 40])
    goal = driver.join()
    driver.refuse(code, 1)
    assert driver.outcome(goal) == "waiting"
    driver.refuse(code, 2)
    assert driver.outcome(goal) == "lost"
    assert driver.shortfalls[goal].verdict is Verdict.NEVER


@pytest.mark.parametrize("code", [0, 6, 11, 12, 14, 16, 17])
def test_retryable_refusals_lose_nothing(code: int) -> None:
    driver = RoundDriver([30, 30, 40])
    goal = driver.join()
    driver.refuse(code, 1, 2, 3)
    assert driver.outcome(goal, 14.9) == "waiting"
    assert driver.outcome(goal, 15.0) == "late"


def test_empty_responses_and_silence_lose_nothing() -> None:
    driver = RoundDriver([30, 30, 40])
    goal = driver.join()
    driver.respond_without_share(NoSignature.EMPTY, 1, 2)
    assert driver.outcome(goal, 14.9) == "waiting"


def test_weight_without_a_key_is_lost_for_good() -> None:
    driver = RoundDriver([60], keyless=40)
    goal = driver.join()
    assert driver.outcome(goal) == "lost"
    assert driver.shortfalls[goal].verdict is Verdict.NEVER
    assert driver.reasons(goal)["no_bls_key"] == 1


def inactive_validator(number: int, weight: int, balance: int | None = 0) -> CurrentValidation:
    return CurrentValidation(number.to_bytes(32), node(number), weight, 0, balance)


def test_weight_of_inactive_validators_is_lost_for_now_unless_the_caller_named_the_height() -> None:
    driver = RoundDriver([60], keyless=40)
    goal, at_named_height = driver.join(), driver.join(is_height_fixed=True)
    driver.underfunded = (inactive_validator(7, 30), inactive_validator(8, 10))
    assert (driver.outcome(goal), driver.outcome(at_named_height)) == ("lost", "lost")
    assert driver.shortfalls[goal].verdict is Verdict.WAIT
    assert driver.shortfalls[at_named_height].verdict is Verdict.NEVER
    assert driver.reasons(goal)["inactive"] == 2
    assert "no_bls_key" not in driver.reasons(goal)
    first = to_builtins(driver.shortfalls[goal].missing[0])
    assert first == {
        "nodeIds": (node_id_text(node(7)),),
        "weight": "30",
        "reason": "inactive",
        "validationId": id_text((7).to_bytes(32)),
        "balance": "0",
        "state": "inactive: balance 0",
    }
    assert any("top up their balance, or disable" in hint for hint in driver.shortfalls[goal].hints)
    assert not any("later heights" in hint for hint in driver.shortfalls[goal].hints)
    assert any("later heights" in hint for hint in driver.shortfalls[at_named_height].hints)


def test_weight_without_a_key_of_permissioned_validators_of_an_l1_is_lost_for_good() -> None:
    driver = RoundDriver([60], keyless=40)
    goal = driver.join()
    driver.underfunded = (inactive_validator(7, 6),)
    # They have no balance. One of them has the key of its node, and one has none.
    driver.others = (inactive_validator(1, 60, None), inactive_validator(8, 34, None))
    assert driver.outcome(goal) == "lost"
    assert driver.shortfalls[goal].verdict is Verdict.NEVER
    weights = {missing.reason: missing.weight for missing in driver.shortfalls[goal].missing}
    assert (weights["inactive"], weights["no_bls_key"]) == ("6", "34")
    assert any("can never sign" in hint for hint in driver.shortfalls[goal].hints)


def test_weight_of_inactive_validators_that_were_funded_or_left_since_is_lost_for_now() -> None:
    driver = RoundDriver([60], keyless=40)
    goal, at_named_height = driver.join(), driver.join(is_height_fixed=True)
    driver.underfunded = (inactive_validator(8, 20),)
    # Of the other 20, one has a balance now, and another one has left.
    driver.others = (inactive_validator(7, 7, 10**9),)
    assert (driver.outcome(goal), driver.outcome(at_named_height)) == ("lost", "lost")
    assert driver.shortfalls[goal].verdict is Verdict.WAIT
    assert driver.shortfalls[at_named_height].verdict is Verdict.NEVER
    assert driver.reasons(goal) == {"inactive": 1, "no_bls_key": 1, "not_asked": 1}
    assert any("have a balance now or have left" in hint for hint in driver.shortfalls[goal].hints)


def test_weight_without_a_key_in_a_subnet_that_is_no_l1_is_lost_for_good() -> None:
    driver = RoundDriver([60], keyless=40)
    goal = driver.join()
    assert driver.outcome(goal) == "lost"
    assert driver.shortfalls[goal].verdict is Verdict.NEVER


def test_inactive_validators_that_weigh_more_than_the_weight_without_a_key_are_not_named() -> None:
    driver = RoundDriver([60], keyless=40)
    goal = driver.join()
    driver.underfunded = (inactive_validator(7, 41),)
    assert driver.outcome(goal) == "lost"
    assert driver.shortfalls[goal].verdict is Verdict.WAIT
    assert driver.reasons(goal)["no_bls_key"] == 1


def test_a_validator_with_little_balance_that_is_not_in_the_set_hides_no_inactive_one() -> None:
    driver = RoundDriver([60], keyless=40)
    goal = driver.join()
    driver.underfunded = (inactive_validator(7, 40), inactive_validator(8, 30, balance=2_000))
    assert driver.outcome(goal) == "lost"
    assert driver.reasons(goal)["inactive"] == 1
    assert "no_bls_key" not in driver.reasons(goal)


def test_a_validator_with_little_balance_that_does_not_sign_is_named_with_its_balance() -> None:
    driver = RoundDriver([60, 40])
    goal = driver.join()
    driver.underfunded = (inactive_validator(2, 40, balance=2_000),)
    driver.sign(1)
    assert driver.outcome(goal, DEADLINE) == "late"
    (missing,) = driver.shortfalls[goal].missing
    assert (missing.balance, missing.state) == ("2000", "underfunded: balance 0.000002 AVAX")
    assert missing.public_key == "0x" + public_key(2).hex()


def test_a_goal_that_lacks_weight_without_a_key_fails_when_the_inactive_are_known() -> None:
    for final_at, failed_at in ((0.3, 0.3), (inf, 1.0)):
        driver = RoundDriver([60], keyless=40, activity_final_at=inf)
        driver.underfunded = None
        goal = driver.join()
        assert driver.outcome(goal, 0.0) == "waiting"
        assert driver.round.next_wakeup(0.0) == 1.0
        driver.round.set_inactive(frozenset(), final_at, None)
        assert driver.outcome(goal, failed_at) == "lost"
        # What is not known may be inactive.
        assert driver.shortfalls[goal].verdict is Verdict.WAIT
        assert driver.asks == []


def test_an_uptime_that_was_not_reached_is_lost_for_now() -> None:
    driver = RoundDriver([30, 30, 40], rules=UPTIME_RULES)
    goal = driver.join()
    driver.refuse(2, 1, 2)
    assert driver.outcome(goal) == "lost"
    assert driver.shortfalls[goal].verdict is Verdict.WAIT
    assert driver.reasons(goal)["uptime_not_reached"] == 2


def test_a_bad_share_is_lost_for_now() -> None:
    driver = RoundDriver([40, 60])
    goal = driver.join(100)
    driver.advance(0.0)
    driver.lie(1)
    driver.sign(2)
    assert driver.outcome(goal) == "lost"
    assert driver.rejected == [1]
    assert driver.shortfalls[goal].verdict is Verdict.WAIT
    assert driver.reasons(goal) == {"bad_signature": 1}
    assert driver.shortfalls[goal].cause == "40.0 % of the weight sent a wrong signature"


def test_a_malformed_response_is_lost_for_now() -> None:
    driver = RoundDriver([40, 60])
    goal = driver.join()
    driver.respond_without_share(NoSignature.MALFORMED, 1)
    assert driver.outcome(goal) == "lost"
    assert driver.shortfalls[goal].verdict is Verdict.WAIT


def test_a_bad_share_from_the_cache_lets_its_validator_be_asked() -> None:
    driver = RoundDriver([40, 60])
    goal = driver.join(100)
    driver.find(1, is_bad=True)
    driver.advance(0.0)
    assert driver.asked_nodes() == [2]
    driver.sign(2)
    assert driver.outcome(goal, 0.1) == "waiting"
    assert driver.asks[1:] == [(0.1, [1], False)]


def test_a_share_that_replaced_a_checked_one_counts_as_unchecked() -> None:
    driver = RoundDriver([40, 60])
    driver.join(100)
    driver.advance(0.0)
    member, first = driver.node(1).member, driver.share(1)
    member.share = driver.share(1)
    goal = driver.join(100)
    driver.round.shares.accept(SumCheck(goal, [], [], [(member, first)]))
    assert not member.is_checked
    driver.round.shares.accept(SumCheck(goal, [], [], [(member, member.share)]))
    assert member.is_checked


def test_shares_of_another_round_wake_the_round_whose_quorum_they_complete() -> None:
    driver = RoundDriver([20] * 5)
    goal = driver.join(40)
    driver.advance(0.0)
    driver.find(1)
    assert not driver._is_due
    driver.find(2)
    assert driver._is_due
    assert driver.outcome(goal, 0.1) == "complete"


def test_a_share_that_another_round_found_bad_is_dropped_and_another_share_is_not() -> None:
    driver = RoundDriver([20] * 5)
    driver.join(80)
    driver.advance(0.0)
    share = driver.share(1)
    driver.round.on_share_added(public_key(1), share)
    driver.advance(0.1)
    driver.round.on_share_rejected(public_key(1), driver.share(1))
    assert (driver.round.table.signed_weight, driver._is_due) == (20, False)
    driver.round.on_share_rejected(public_key(1), share)
    assert (driver.round.table.signed_weight, driver._is_due) == (0, True)
    driver.round.on_share_rejected(public_key(9), share)


def test_only_losses_for_good_make_the_verdict_never() -> None:
    driver = RoundDriver([20, 20, 60])
    goal = driver.join()
    driver.refuse(1, 1)
    driver.respond_without_share(NoSignature.MALFORMED, 2)
    assert driver.outcome(goal) == "lost"
    assert driver.shortfalls[goal].verdict is Verdict.WAIT
    driver = RoundDriver([20, 20, 60])
    goal = driver.join()
    driver.refuse(1, 1, 2)
    assert driver.outcome(goal) == "lost"
    assert driver.shortfalls[goal].verdict is Verdict.NEVER


def test_a_permanent_refusal_cannot_be_taken_back_but_a_share_counts() -> None:
    driver = RoundDriver([40, 60])
    goal = driver.join(50)
    driver.refuse(1, 1)
    driver.refuse(11, 1)
    assert driver.outcome(goal) == "waiting"
    demanding = driver.join(100)
    assert driver.outcome(demanding) == "lost"
    driver.sign(1, 2)
    patient = driver.join(100)
    assert driver.outcome(patient) == "complete"


def test_the_worst_of_a_key_s_replies_is_named_and_of_two_that_are_as_bad_the_last() -> None:
    driver = RoundDriver(validators=two_nodes())
    goal = driver.join(100)
    driver.round.connected(driver.connected)
    driver.refuse(11, 1)
    driver.refuse(12, 1)
    (missing, _) = explain(driver.round, goal, 77, SUBNET, running_s=2.0).missing
    assert missing.error_code == 12
    driver.refuse(1, 101)
    (missing, _) = explain(driver.round, goal, 77, SUBNET, running_s=2.0).missing
    assert missing.error_code == 1


def test_any_node_of_a_key_suffices() -> None:
    driver = RoundDriver(validators=two_nodes())
    goal = driver.join(100)
    driver.refuse(1, 1)
    assert driver.outcome(goal) == "waiting"
    driver.sign(101, 2)
    assert driver.outcome(goal) == "complete"


def test_a_share_of_one_node_outlasts_the_refusal_of_the_other_node_of_its_key() -> None:
    driver = RoundDriver(validators=two_nodes())
    goal = driver.join(100)
    driver.sign(1)
    driver.refuse(1, 101)
    driver.sign(2)
    assert driver.outcome(goal) == "complete"


@pytest.mark.parametrize(("code", "verdict"), [(None, Verdict.WAIT), (1, Verdict.NEVER)])
def test_a_key_is_lost_when_every_node_of_it_is(code: int | None, verdict: Verdict) -> None:
    driver = RoundDriver(validators=two_nodes())
    goal = driver.join()
    driver.refuse(1, 1)
    if code is None:
        driver.respond_without_share(NoSignature.MALFORMED, 101)
    else:
        driver.refuse(code, 101)
    assert driver.outcome(goal) == "lost"
    assert driver.shortfalls[goal].verdict is verdict


def test_a_bad_share_of_one_node_leaves_the_other_node_of_its_key() -> None:
    driver = RoundDriver(validators=two_nodes())
    goal = driver.join(100)
    driver.lie(1)
    driver.sign(2)
    assert driver.outcome(goal) == "waiting"
    assert driver.rejected == [1]
    driver.sign(101)
    assert driver.outcome(goal) == "complete"


# Out of reach.


def test_a_node_that_cannot_be_dialled_before_the_deadline_is_lost_for_now() -> None:
    driver = RoundDriver([40, 60])
    goal, patient = driver.join(), driver.join(deadline=30.0)
    as_late = driver.join(deadline=20.0)
    driver.advance(0.0)
    driver.lose_connection(1, retry_at=20.0)
    assert driver.outcome(goal) == driver.outcome(as_late) == "lost"
    assert driver.shortfalls[goal].verdict is Verdict.WAIT
    assert driver.reasons(goal)["not_connected"] == 1
    assert driver.outcome(patient) == "waiting"


def test_a_node_that_is_never_dialled_again_is_lost_at_any_deadline() -> None:
    driver = RoundDriver([40, 60])
    goal = driver.join(deadline=1e9)
    driver.advance(0.0)
    driver.lose_connection(1, inf, reason="private_address")
    assert driver.outcome(goal) == "lost"
    assert driver.reasons(goal)["private_address"] == 1


def test_a_node_that_is_being_connected_is_awaited() -> None:
    driver = RoundDriver([40, 60])
    goal = driver.join()
    driver.advance(0.0)
    driver.round.disconnected(node(1))
    driver.round.unreachable(node(1), None)
    assert driver.outcome(goal) == "waiting"


def test_a_node_that_reconnects_is_not_lost() -> None:
    driver = RoundDriver([40, 60])
    goal = driver.join()
    driver.advance(0.0)
    driver.lose_connection(1, retry_at=20.0)
    driver.round.connected([node(1)])
    assert driver.outcome(goal) == "waiting"


def test_a_node_that_has_signed_may_disconnect() -> None:
    driver = RoundDriver([40, 60])
    goal = driver.join()
    driver.advance(0.0)
    driver.sign(1)
    driver.lose_connection(1, retry_at=99.0)
    driver.sign(2)
    assert driver.outcome(goal) == "complete"


def test_one_node_out_of_reach_leaves_the_other_of_its_key() -> None:
    driver = RoundDriver(validators=two_nodes())
    goal = driver.join()
    driver.advance(0.0)
    driver.lose_connection(1, retry_at=99.0)
    assert driver.outcome(goal) == "waiting"
    driver.lose_connection(101, retry_at=99.0)
    assert driver.outcome(goal) == "lost"


def test_a_key_with_one_node_that_refused_and_one_out_of_reach_is_lost_for_now() -> None:
    driver = RoundDriver(validators=two_nodes())
    goal = driver.join()
    driver.advance(0.0)
    driver.refuse(1, 1)
    driver.lose_connection(101, retry_at=99.0)
    assert driver.outcome(goal) == "lost"
    assert driver.shortfalls[goal].verdict is Verdict.WAIT


def test_a_failure_names_blocking_nodes_only_if_their_connection_would_help() -> None:
    driver = RoundDriver([40, 60])
    goal = driver.join()
    driver.advance(0.0)
    driver.lose_connection(1, retry_at=20.0)
    driver.advance(0.1)
    assert driver.round.goals.disconnected_blockers(goal) == [node(1)]
    driver = RoundDriver([30, 10, 60])
    goal, of_stored = driver.join(80), driver.join(80, stored_only=True)
    driver.advance(0.0)
    driver.refuse(1, 1)
    driver.lose_connection(2, retry_at=20.0)
    driver.advance(0.1)
    assert driver.round.goals.disconnected_blockers(goal) == []
    assert driver.round.goals.disconnected_blockers(of_stored) == []


def test_a_request_for_stored_signatures_says_which_weight_was_not_asked() -> None:
    driver = RoundDriver([40, 60])
    goal = driver.join(stored_only=True)
    assert driver.outcome(goal) == "lost"
    shortfall = explain(driver.round, goal, 77, SUBNET, running_s=99.0)
    assert shortfall.cause == "100.0 % of the weight was not asked"


# Suspect shares.


def test_a_share_of_an_offender_is_verified_alone_and_only_if_it_is_needed() -> None:
    driver = RoundDriver([40, 60], offenders={public_key(1)})
    light, heavy = driver.join(60), driver.join(100)
    driver.find(1)
    driver.advance(0.0)
    assert not [action for action in driver.actions if isinstance(action, Verify)]
    driver.sign(2)
    driver.advance(0.1)
    assert driver.completed[light] == [2]
    assert driver.completed[heavy] == [2, 1]


def test_a_share_that_differs_from_the_stored_one_is_verified_alone() -> None:
    stored = StoredShare(public_key(1), signature(1, b"other"), True)
    driver = RoundDriver([40, 60], stored=ArchiveEntry(shares=(stored,)))
    goal = driver.join(100)
    driver.find(1)
    driver.advance(0.0)
    assert driver.round.table.members[driver.index(1)].status is ShareStatus.SUSPECT
    driver.sign(2)
    assert driver.outcome(goal) == "complete"
    checks = [type(action.check) for action in driver.actions if isinstance(action, Verify)]
    assert checks == [SearchStep, SumCheck]


# Explanations.


def test_the_shortfall_names_the_heaviest_missing_validators_with_their_last_replies() -> None:
    weights = [100 + number for number in range(30)]
    driver = RoundDriver(weights, keyless=500)
    goal = driver.join(100)
    driver.find(*range(1, 11))
    driver.round.connected(driver.connected)
    driver.refuse(11, 30)
    driver.respond_without_share(NoSignature.EMPTY, 29)
    shortfall = explain(driver.round, goal, 77, SUBNET, running_s=2.0)
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
    assert (keyless.reason, keyless.weight, keyless.public_key, keyless.node_ids) == (
        "no_bls_key",
        "500",
        UNSET,
        (),
    )
    assert (refused.reason, refused.error_code, refused.error_message) == (
        "validation_unknown",
        11,
        "because",
    )
    assert refused.public_key == "0x" + public_key(30).hex()
    assert empty.reason == "empty_answer"
    missing_weights = [int(missing.weight) for missing in shortfall.missing]
    assert missing_weights == sorted(missing_weights, reverse=True)
    assert not any("The daemon started" in hint for hint in shortfall.hints)
    assert any("BLS key" in hint for hint in shortfall.hints)
    assert any("RegisterL1ValidatorTx" in hint for hint in shortfall.hints)


def test_at_most_fifty_missing_validators_are_named() -> None:
    driver = RoundDriver([1] * 70)
    shortfall = explain(driver.round, driver.join(), 1, SUBNET)
    assert len(shortfall.missing) == 50
    assert sum(shortfall.counts.values()) == 70


def test_a_goal_that_leaves_is_neither_completed_nor_failed() -> None:
    driver = RoundDriver([50, 50])
    goal = driver.join(100)
    driver.advance(0.0)
    driver.round.leave(goal)
    driver.sign(1, 2)
    driver.advance(DEADLINE)
    assert driver.round.is_idle
    assert not [action for action in driver.actions if isinstance(action, Complete | Fail)]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_running_sums_always_agree_with_a_recount(data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.integers(1, 50), min_size=1, max_size=8))
    driver = RoundDriver(
        weights, keyless=data.draw(st.integers(0, 20)), settings=AggregationSettings(probes=2)
    )
    goal = driver.join(data.draw(st.integers(1, 100)), deadline=3.0)
    driver.advance(0.0)
    numbers = st.integers(1, len(weights))
    events = st.sampled_from(["sign", "lie", "find", "final", "retry", "empty", "away", "back"])
    for step, (event, number) in enumerate(
        data.draw(st.lists(st.tuples(events, numbers), max_size=40)), 1
    ):
        _send(driver, event, number)
        driver.advance(step / 10)
        _assert_sums(driver, goal)


def _send(driver: RoundDriver, event: str, number: int) -> None:
    match event:
        case "sign":
            driver.sign(number)
        case "lie":
            driver.lie(number)
        case "find":
            driver.find(number, is_bad=number % 2 == 0)
        case "final" | "retry":
            driver.refuse(1 if event == "final" else 11, number)
        case "empty":
            driver.respond_without_share(NoSignature.EMPTY, number)
        case "away":
            driver.lose_connection(number, retry_at=99.0)
        case "back":
            driver.round.connected([node(number)])


def _assert_sums(driver: RoundDriver, goal: QuorumGoal) -> None:
    table = driver.round.table
    for status in ShareStatus:
        weights = [member.weight for member in table.members if member.status is status]
        keyless = driver.validators.keyless_weight if status is ShareStatus.IMPOSSIBLE else 0
        assert table.weight[status] == sum(weights) + keyless
    pending = [member for member in table.members if member.status is ShareStatus.PENDING]
    away = [
        member.weight
        for member in pending
        if all(record.unreachable for record in table.nodes_of(member))
    ]
    assert table.unreachable_weight(50.0) == sum(away)
    assert table.connected_weight == sum(
        member.weight for member in table.members if member.connections
    )
    missing = explain(driver.round, goal, 1, SUBNET).missing
    assert (
        sum(int(validator.weight) for validator in missing) + table.signed_weight
        == table.total_weight
    )
