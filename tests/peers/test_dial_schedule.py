"""When each wanted node is dialed."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpseal.peers.dial_schedule import DialLimits, DialSchedule, DialStage
from warpseal.runtime.retry import Backoff
from warpseal.warp.ids import NodeID

GAP_S = 10.0


def node(number: int) -> NodeID:
    return NodeID(number.to_bytes(20, "big"))


A, B = node(1), node(2)


def make_schedule(**limits: float) -> DialSchedule:
    return DialSchedule(DialLimits(**{"dials_per_s": 1e6, "burst": 10_000, **limits}), Random(7))  # type: ignore[arg-type]


def fail(schedule: DialSchedule, node_id: NodeID, now: float, *, is_loopback: bool = False) -> None:
    schedule.record_failure(
        node_id, "unreachable", now, tcp_accepted=False, is_loopback=is_loopback
    )


def due_at(schedule: DialSchedule, node_id: NodeID) -> float:
    state = schedule.get(node_id)
    assert state is not None
    assert state.stage is DialStage.WAITING
    return state.due_at


def test_new_nodes_are_dialed_immediately_in_their_order() -> None:
    schedule = make_schedule()
    schedule.track([node(n) for n in range(1_000)], 0.0)
    assert schedule.take_due(0.0, 2_000) == [node(n) for n in range(1_000)]


def test_no_more_nodes_are_dialed_than_there_are_slots() -> None:
    schedule = make_schedule()
    schedule.track([A, B], 0.0)
    assert schedule.take_due(0.0, 0) == []
    assert schedule.take_due(0.0, 1) == [A]
    assert schedule.take_due(0.0, 1) == [B]


def test_dials_after_the_first_burst_are_rate_limited() -> None:
    schedule = make_schedule(dials_per_s=100.0, burst=10)
    schedule.track([node(n) for n in range(100)], 0.0)
    assert len(schedule.take_due(0.0, 100)) == 10
    assert schedule.next_dial_at(0.0) == pytest.approx(0.01)
    assert len(schedule.take_due(0.05, 100)) == 5


@given(st.floats(0, 1e6), st.integers(51, 200))
def test_a_dial_is_due_at_the_time_that_is_named_for_it(start: float, count: int) -> None:
    schedule = DialSchedule(DialLimits(), Random(0))
    schedule.track([node(number) for number in range(count)], start)
    now, dialed = start, 0
    while (due_at := schedule.next_dial_at(now)) is not None:
        now = due_at
        due = len(schedule.take_due(now, slots=count))
        assert due
        dialed += due
    assert dialed == count


def test_delays_grow_to_the_cap_with_jitter() -> None:
    schedule, now, delays = make_schedule(gap_s=0.0), 0.0, []
    schedule.track([A], now)
    for _ in range(40):
        assert schedule.take_due(now, 1) == [A]
        fail(schedule, A, now, is_loopback=True)
        delays.append(due_at(schedule, A) - now)
        now = due_at(schedule, A)
    assert 1 <= delays[0] < 2
    assert all(after > before or after >= 45 for before, after in pairwise(delays))
    assert all(30 < delay < 60.001 for delay in delays[-20:])
    assert len(set(delays)) == len(delays)


def test_two_attempts_at_a_node_are_ten_seconds_apart() -> None:
    schedule = make_schedule()
    schedule.track([A], 0.0)
    schedule.take_due(0.0, 1)
    fail(schedule, A, 0.5)
    assert due_at(schedule, A) == GAP_S
    assert schedule.take_due(9.99, 1) == []
    assert schedule.take_due(10.0, 1) == [A]


def test_loopback_is_exempt_from_the_gap() -> None:
    schedule = make_schedule()
    schedule.track([A], 0.0)
    schedule.take_due(0.0, 1)
    fail(schedule, A, 0.5, is_loopback=True)
    assert 1.5 <= due_at(schedule, A) < 2.5


def test_a_lost_connection_is_redialed_as_soon_as_the_gap_allows() -> None:
    schedule = make_schedule()
    schedule.track([A], 0.0)
    schedule.take_due(0.0, 1)
    fail(schedule, A, 1.0)
    schedule.take_due(10.0, 1)
    schedule.record_connected(A, 11.0, is_loopback=False)
    schedule.record_disconnect(A, 12.0)
    assert due_at(schedule, A) == 20.0
    schedule.take_due(20.0, 1)
    schedule.record_connected(A, 21.0, is_loopback=False)
    schedule.record_disconnect(A, 500.0)
    assert due_at(schedule, A) == 500.0


def test_a_loopback_node_that_disconnects_immediately_is_not_dialed_in_a_tight_loop() -> None:
    schedule, now = make_schedule(), 0.0
    schedule.track([A], now)
    for _ in range(6):
        assert schedule.take_due(now, 1) == [A]
        schedule.record_connected(A, now, is_loopback=True)
        schedule.record_disconnect(A, now)
        now = due_at(schedule, A)
    assert now > 5.0


def test_a_restarted_loopback_node_is_redialed_immediately() -> None:
    schedule = make_schedule()
    schedule.track([A], 0.0)
    schedule.take_due(0.0, 1)
    schedule.record_connected(A, 0.1, is_loopback=True)
    schedule.record_disconnect(A, 60.0)
    assert due_at(schedule, A) == 60.0


def test_failures_are_counted_until_a_success() -> None:
    schedule = make_schedule()
    schedule.track([A], 0.0)
    schedule.take_due(0.0, 1)
    schedule.record_failure(A, "hung_up", 1.0, tcp_accepted=True, is_loopback=False)
    state = schedule.get(A)
    assert state is not None
    assert (state.failures, state.failed_handshakes, state.reason) == (1, 1, "hung_up")
    schedule.take_due(due_at(schedule, A), 1)
    schedule.record_connected(A, 20.0, is_loopback=False)
    assert (state.failures, state.failed_handshakes, state.reason) == (0, 0, "")


def test_redial_soon_moves_redials_to_ten_seconds_after_the_last_attempt() -> None:
    schedule, now = make_schedule(), 0.0
    schedule.track([A], now)
    for _ in range(8):
        schedule.take_due(now, 1)
        fail(schedule, A, now + 1)
        started, now = now, due_at(schedule, A)
    assert now > started + GAP_S
    assert schedule.redial_soon([A], started + 2) == started + GAP_S
    assert due_at(schedule, A) == started + GAP_S
    assert schedule.redial_soon([A], started + 30) == started + GAP_S


def test_redial_soon_returns_none_if_no_node_can_be_dialed() -> None:
    schedule = make_schedule()
    schedule.track([A], 0.0)
    schedule.take_due(0.0, 1)
    schedule.wait_for_address(A)
    assert schedule.redial_soon([A, B], 1.0) is None


def test_redial_soon_counts_a_dial_in_progress_as_now() -> None:
    schedule = make_schedule()
    schedule.track([A], 0.0)
    schedule.take_due(0.0, 1)
    assert schedule.redial_soon([A], 3.0) == 3.0


def test_a_node_without_address_is_dialed_as_soon_as_one_is_known() -> None:
    schedule = make_schedule()
    schedule.track([A], 0.0)
    schedule.take_due(0.0, 1)
    schedule.wait_for_address(A)
    assert schedule.next_dial_at(1.0) is None
    schedule.record_new_address(A, 2.0)
    assert schedule.take_due(2.0, 1) == [A]


def test_a_new_address_ends_the_backoff_but_not_the_gap() -> None:
    schedule = make_schedule()
    schedule.track([A], 0.0)
    schedule.take_due(0.0, 1)
    fail(schedule, A, 1.0)
    schedule.take_due(10.0, 1)
    fail(schedule, A, 40.0)
    assert due_at(schedule, A) > 40.0
    schedule.record_new_address(A, 40.0)
    assert due_at(schedule, A) == 40.0
    schedule.take_due(40.0, 1)
    fail(schedule, A, 41.0)
    schedule.record_new_address(A, 42.0)
    assert due_at(schedule, A) == 50.0


def test_a_dial_of_another_node_that_reached_this_one_counts_for_the_gap() -> None:
    schedule = make_schedule()
    schedule.track([A, B], 0.0)
    schedule.take_due(0.0, 1)
    schedule.take_due(0.0, 1)
    schedule.wait_for_address(B)
    schedule.record_attempt(B, 1.0, is_loopback=False)
    schedule.record_new_address(B, 2.0)
    assert due_at(schedule, B) == 1.0 + GAP_S


def test_an_untracked_node_is_not_dialed_and_its_gap_is_remembered() -> None:
    schedule = make_schedule()
    schedule.track([A], 0.0)
    schedule.take_due(0.0, 1)
    schedule.untrack([A], 1.0)
    fail(schedule, A, 2.0)
    assert schedule.get(A) is None
    assert schedule.next_dial_at(3.0) is None
    schedule.track([A], 3.0)
    assert schedule.take_due(9.0, 1) == []
    assert schedule.take_due(10.0, 1) == [A]


def test_events_of_untracked_nodes_change_nothing() -> None:
    schedule = make_schedule()
    schedule.record_connected(A, 0.0, is_loopback=False)
    schedule.record_disconnect(A, 1.0)
    schedule.record_new_address(A, 1.0)
    schedule.wait_for_address(A)
    assert len(schedule) == 0
    assert schedule.next_dial_at(2.0) is None


@given(
    st.lists(
        st.tuples(st.sampled_from("fcplhrtx"), st.integers(0, 3), st.floats(0, 8)), max_size=60
    )
)
@settings(max_examples=150, deadline=None)
def test_no_node_is_dialed_twice_within_the_gap_for_any_events(
    events: list[tuple[str, int, float]],
) -> None:
    schedule = DialSchedule(
        DialLimits(dials_per_s=1e6, burst=1_000, gap_s=GAP_S, backoff=Backoff()), Random(1)
    )
    schedule.track([node(n) for n in range(4)], 0.0)
    now, last = 0.0, dict[NodeID, float]()
    for kind, number, passed in events:
        now += passed
        for node_id in schedule.take_due(now, 10):
            assert now - last.get(node_id, -GAP_S) >= GAP_S - 1e-6
            last[node_id] = now
        apply_event(schedule, kind, node(number), now)


def apply_event(schedule: DialSchedule, kind: str, node_id: NodeID, now: float) -> None:
    match kind:
        case "f":
            schedule.record_failure(node_id, "hung_up", now, tcp_accepted=True, is_loopback=False)
        case "c":
            state = schedule.get(node_id)
            if state is not None and state.stage is DialStage.DIALING:
                schedule.record_connected(node_id, now, is_loopback=False)
        case "l":
            schedule.record_disconnect(node_id, now)
        case "h":
            schedule.redial_soon([node_id], now)
        case "r":
            schedule.record_new_address(node_id, now)
        case "t":
            schedule.record_attempt(node_id, now, is_loopback=False)
        case "p":
            schedule.untrack([node_id], now)
        case "x":
            schedule.track([node_id], now)


def test_a_node_with_a_late_address_is_dialed_before_nodes_tracked_after_it() -> None:
    schedule = make_schedule()
    schedule.track([A, B, node(3), node(4)], 0.0)
    assert schedule.take_due(0.0, 2) == [A, B]
    schedule.wait_for_address(A)
    schedule.wait_for_address(B)
    schedule.record_new_address(B, 1.0)
    schedule.record_new_address(A, 1.0)
    assert schedule.take_due(1.0, 3) == [A, B, node(3)]
