"""When each wanted node is dialled."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpseal.peers.dial_schedule import DialPlan, Pace, Stage
from warpseal.runtime.backoff import Backoff
from warpseal.warp.ids import NodeID

GAP_S = 10.0


def node(number: int) -> NodeID:
    return NodeID(number.to_bytes(20, "big"))


A, B = node(1), node(2)


def plan(**pace: float) -> DialPlan:
    return DialPlan(Pace(**{"dials_per_s": 1e6, "burst": 10_000, **pace}), Random(7))  # type: ignore[arg-type]


def fail(made: DialPlan, node_id: NodeID, now: float, *, exempt: bool = False) -> None:
    made.failed(node_id, "unreachable", now, reached=False, exempt=exempt)


def due_at(made: DialPlan, node_id: NodeID) -> float:
    prospect = made.get(node_id)
    assert prospect is not None
    assert prospect.stage is Stage.WAITING
    return prospect.due_at


def test_all_wanted_nodes_are_dialled_at_once_in_their_order() -> None:
    made = plan()
    made.want([node(n) for n in range(1_000)], 0.0)
    assert made.take(0.0, 2_000) == [node(n) for n in range(1_000)]


def test_no_more_are_dialled_than_there_are_slots() -> None:
    made = plan()
    made.want([A, B], 0.0)
    assert made.take(0.0, 0) == []
    assert made.take(0.0, 1) == [A]
    assert made.take(0.0, 1) == [B]


def test_dials_are_spread_by_the_pace_after_the_first_burst() -> None:
    made = plan(dials_per_s=100.0, burst=10)
    made.want([node(n) for n in range(100)], 0.0)
    assert len(made.take(0.0, 100)) == 10
    assert made.next_at(0.0) == pytest.approx(0.01)
    assert len(made.take(0.05, 100)) == 5


def test_the_delays_grow_to_the_cap_and_carry_jitter() -> None:
    made, now, delays = plan(gap_s=0.0), 0.0, []
    made.want([A], now)
    for _ in range(40):
        assert made.take(now, 1) == [A]
        fail(made, A, now, exempt=True)
        delays.append(due_at(made, A) - now)
        now = due_at(made, A)
    assert 1 <= delays[0] < 2
    assert all(after > before or after >= 45 for before, after in pairwise(delays))
    assert all(30 < delay < 60.001 for delay in delays[-20:])
    assert len(set(delays)) == len(delays)


def test_two_attempts_at_one_node_lie_ten_seconds_apart() -> None:
    made = plan()
    made.want([A], 0.0)
    made.take(0.0, 1)
    fail(made, A, 0.5)
    assert due_at(made, A) == GAP_S
    assert made.take(9.99, 1) == []
    assert made.take(10.0, 1) == [A]


def test_loopback_is_exempt_from_the_gap() -> None:
    made = plan()
    made.want([A], 0.0)
    made.take(0.0, 1)
    fail(made, A, 0.5, exempt=True)
    assert 1.5 <= due_at(made, A) < 2.5


def test_a_connection_lost_after_its_handshake_is_dialled_at_once_but_for_the_gap() -> None:
    made = plan()
    made.want([A], 0.0)
    made.take(0.0, 1)
    fail(made, A, 1.0)
    made.take(10.0, 1)
    made.connected(A, 11.0, exempt=False)
    made.lost(A, 12.0)
    assert due_at(made, A) == 20.0
    made.take(20.0, 1)
    made.connected(A, 21.0, exempt=False)
    made.lost(A, 500.0)
    assert due_at(made, A) == 500.0


def test_a_loopback_node_that_hangs_up_at_once_is_not_dialled_in_a_tight_loop() -> None:
    made, now = plan(), 0.0
    made.want([A], now)
    for _ in range(6):
        assert made.take(now, 1) == [A]
        made.connected(A, now, exempt=True)
        made.lost(A, now)
        now = due_at(made, A)
    assert now > 5.0


def test_a_node_that_restarts_on_loopback_is_found_again_at_once() -> None:
    made = plan()
    made.want([A], 0.0)
    made.take(0.0, 1)
    made.connected(A, 0.1, exempt=True)
    made.lost(A, 60.0)
    assert due_at(made, A) == 60.0


def test_failures_are_counted_until_a_success() -> None:
    made = plan()
    made.want([A], 0.0)
    made.take(0.0, 1)
    made.failed(A, "hung_up", 1.0, reached=True, exempt=False)
    prospect = made.get(A)
    assert prospect is not None
    assert (prospect.failures, prospect.reached, prospect.reason) == (1, 1, "hung_up")
    made.take(due_at(made, A), 1)
    made.connected(A, 20.0, exempt=False)
    assert (prospect.failures, prospect.reached, prospect.reason) == (0, 0, "")


def test_a_hurry_pulls_redials_to_ten_seconds_after_the_last_attempt() -> None:
    made, now = plan(), 0.0
    made.want([A], now)
    for _ in range(8):
        made.take(now, 1)
        fail(made, A, now + 1)
        started, now = now, due_at(made, A)
    assert now > started + GAP_S
    assert made.hurry([A], started + 2) == started + GAP_S
    assert due_at(made, A) == started + GAP_S
    assert made.hurry([A], started + 30) == started + GAP_S


def test_a_hurry_for_nobody_that_can_be_dialled_names_no_moment() -> None:
    made = plan()
    made.want([A], 0.0)
    made.take(0.0, 1)
    made.park(A)
    assert made.hurry([A, B], 1.0) is None


def test_a_node_being_dialled_counts_as_dialled_now() -> None:
    made = plan()
    made.want([A], 0.0)
    made.take(0.0, 1)
    assert made.hurry([A], 3.0) == 3.0


def test_a_node_without_address_waits_for_one_and_is_dialled_as_soon_as_there_is() -> None:
    made = plan()
    made.want([A], 0.0)
    made.take(0.0, 1)
    made.park(A)
    assert made.parked() == [A]
    assert made.next_at(1.0) is None
    made.ready(A, 2.0)
    assert made.take(2.0, 1) == [A]


def test_a_new_address_ends_the_backoff_but_not_the_gap() -> None:
    made = plan()
    made.want([A], 0.0)
    made.take(0.0, 1)
    fail(made, A, 1.0)
    made.take(10.0, 1)
    fail(made, A, 40.0)
    assert due_at(made, A) > 40.0
    made.ready(A, 40.0)
    assert due_at(made, A) == 40.0
    made.take(40.0, 1)
    fail(made, A, 41.0)
    made.ready(A, 42.0)
    assert due_at(made, A) == 50.0


def test_an_attempt_that_was_meant_for_another_counts_for_the_gap() -> None:
    made = plan()
    made.want([A, B], 0.0)
    made.take(0.0, 1)
    made.take(0.0, 1)
    made.park(B)
    made.touched(B, 1.0, exempt=False)
    made.ready(B, 2.0)
    assert due_at(made, B) == 1.0 + GAP_S


def test_an_unwanted_node_is_dialled_no_more_and_its_gap_survives() -> None:
    made = plan()
    made.want([A], 0.0)
    made.take(0.0, 1)
    made.unwant([A], 1.0)
    fail(made, A, 2.0)
    assert made.get(A) is None
    assert made.next_at(3.0) is None
    made.want([A], 3.0)
    assert made.take(9.0, 1) == []
    assert made.take(10.0, 1) == [A]


def test_events_of_nodes_that_nobody_wants_change_nothing() -> None:
    made = plan()
    made.connected(A, 0.0, exempt=False)
    made.lost(A, 1.0)
    made.ready(A, 1.0)
    made.park(A)
    assert len(made) == 0
    assert made.next_at(2.0) is None


@given(st.lists(st.tuples(st.sampled_from("fcplhrtx"), st.integers(0, 3), st.floats(0, 8)), max_size=60))
@settings(max_examples=150, deadline=None)
def test_whatever_happens_no_node_is_dialled_twice_within_the_gap(events: list[tuple[str, int, float]]) -> None:
    made = DialPlan(Pace(dials_per_s=1e6, burst=1_000, gap_s=GAP_S, backoff=Backoff()), Random(1))
    made.want([node(n) for n in range(4)], 0.0)
    now, last = 0.0, dict[NodeID, float]()
    for kind, number, passed in events:
        now += passed
        for node_id in made.take(now, 10):
            assert now - last.get(node_id, -GAP_S) >= GAP_S - 1e-6
            last[node_id] = now
        _happen(made, kind, node(number), now)


def _happen(made: DialPlan, kind: str, who: NodeID, now: float) -> None:
    match kind:
        case "f":
            made.failed(who, "hung_up", now, reached=True, exempt=False)
        case "c":
            prospect = made.get(who)
            if prospect is not None and prospect.stage is Stage.DIALLING:
                made.connected(who, now, exempt=False)
        case "l":
            made.lost(who, now)
        case "h":
            made.hurry([who], now)
        case "r":
            made.ready(who, now)
        case "t":
            made.touched(who, now, exempt=False)
        case "p":
            made.unwant([who], now)
        case "x":
            made.want([who], now)


def test_a_node_whose_address_came_late_still_goes_before_those_that_were_wanted_behind_it() -> None:
    made = plan()
    made.want([A, B, node(3), node(4)], 0.0)
    assert made.take(0.0, 2) == [A, B]
    made.park(A)
    made.park(B)
    made.ready(B, 1.0)
    made.ready(A, 1.0)
    assert made.take(1.0, 3) == [A, B, node(3)]
