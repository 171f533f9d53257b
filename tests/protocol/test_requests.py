"""The requests of one connection."""

from __future__ import annotations

import random
import re

from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.peers import CHAIN, request
from warpseal.protocol.requests import PeerRequest, RequestLimits, RequestTable

SMALL = RequestLimits(outstanding=2, sent_per_s=5, queued=4, slot_timeout_s=3.0)


def written(frames: bytes | None) -> list[int]:
    """Return the ids of the requests behind written bytes."""
    return [int(number) for number in re.findall(rb"<(\d+)>", frames or b"")]


def submit_all(table: RequestTable, requests: list[PeerRequest], now: float = 0.0) -> list[int]:
    return [number for request in requests for number in written(table.submit(request, now))]


def test_a_request_is_in_flight_before_its_bytes_are_returned() -> None:
    table = RequestTable(RequestLimits())
    first = request(1)
    assert table.submit(first, 0.0) == first.frame
    assert table.in_flight == table.outstanding == 1
    assert table.match_response(CHAIN, 1, 0.0) is first


def test_requests_above_the_outstanding_limit_are_queued() -> None:
    table = RequestTable(SMALL)
    assert submit_all(table, [request(n) for n in (1, 2, 3, 4)]) == [1, 2]
    assert table.release(0.0) == b""
    assert table.match_response(CHAIN, 2, 0.1)
    assert written(table.release(0.1)) == [3]
    assert table.queued == 1


def test_a_peer_is_congested_while_as_many_requests_are_queued_as_may_be_outstanding() -> None:
    table = RequestTable(SMALL)
    for number in range(1, 4):
        table.submit(request(number), 0.0)
        assert not table.is_congested
    table.submit(request(4), 0.0)
    assert table.is_congested
    # It answers slowly: a queue remains for seconds.
    assert table.match_response(CHAIN, 1, 2.5)
    assert written(table.release(2.5)) == [3]
    table.submit(request(5), 2.5)
    assert table.is_congested
    assert table.match_response(CHAIN, 2, 2.7)
    table.release(2.7)
    assert not table.is_congested


def test_a_silent_peer_is_not_congested() -> None:
    table = RequestTable(SMALL)
    for number in range(1, 7):
        table.submit(request(number, deadline=100.0), 0.0)
    # A slow event loop makes few checks, so it does not take a peer for silent.
    for now in (0.0, 0.5, 1.0, 1.5, 9.0, 9.9):
        table.forget_expired(now)
        table.release(now)
        assert table.is_congested
    table.forget_expired(10.0)
    assert table.queued == 2
    assert not table.is_congested


def test_a_response_ends_the_silence_of_a_peer() -> None:
    table = RequestTable(SMALL)
    for number in range(1, 7):
        table.submit(request(number, deadline=100.0), 0.0)
    for now in range(5):
        table.forget_expired(float(now))
    assert not table.is_congested
    assert table.match_response(CHAIN, 1, 5.0)
    assert table.is_congested


def test_sixteen_are_outstanding_by_default() -> None:
    table = RequestTable(RequestLimits())
    assert submit_all(table, [request(n) for n in range(40)]) == list(range(16))


def test_a_slot_is_free_three_seconds_after_writing_and_the_response_still_counts() -> None:
    table = RequestTable(SMALL)
    submit_all(table, [request(n) for n in (1, 2, 3)])
    assert table.release_at(1.0) == 3.0
    assert table.release(2.9) == b""
    assert written(table.release(3.0)) == [3]
    late = table.match_response(CHAIN, 1, 9.9)
    assert late is not None
    assert late.request_id == 1


def test_requests_without_a_response_in_time_are_counted_once() -> None:
    table = RequestTable(SMALL)
    submit_all(table, [request(n) for n in (1, 2)])
    assert table.match_response(CHAIN, 1, 1.0)
    table.forget_expired(3.0)
    assert (table.pop_timeouts(), table.pop_timeouts()) == (1, 0)


def test_a_response_behind_the_deadline_is_unexpected() -> None:
    table = RequestTable(SMALL)
    submit_all(table, [request(1, deadline=5.0)])
    assert table.match_response(CHAIN, 1, 5.0) is None


def test_a_response_counts_until_the_latest_deadline_that_its_request_had() -> None:
    table = RequestTable(SMALL)
    extended = [request(number, deadline=5.0) for number in (1, 2)]
    submit_all(table, extended)
    for pending in extended:
        pending.extend(7.0)
        pending.extend(6.0)
    assert table.match_response(CHAIN, 1, 6.9) is extended[0]
    assert table.match_response(CHAIN, 2, 7.0) is None


def test_a_late_response_does_not_free_the_slot_of_another_request() -> None:
    table = RequestTable(SMALL)
    submit_all(table, [request(n) for n in (1, 2, 3, 4, 5)])
    assert written(table.release(3.0)) == [3, 4]
    assert table.match_response(CHAIN, 1, 3.1)
    assert table.outstanding == 2
    assert table.release(3.1) == b""


def test_the_rate_holds_in_every_second() -> None:
    table = RequestTable(RequestLimits(outstanding=100, sent_per_s=5, queued=100))
    assert submit_all(table, [request(n, deadline=20.0) for n in range(8)], 10.0) == [0, 1, 2, 3, 4]
    assert table.release_at(10.2) == 11.0
    assert table.release(10.99) == b""
    assert written(table.release(11.0)) == [5, 6, 7]


def test_the_next_request_goes_a_second_after_the_oldest_of_the_last_ones() -> None:
    table = RequestTable(RequestLimits(outstanding=100, sent_per_s=2, queued=100))
    table.submit(request(1, deadline=20.0), 10.0)
    table.submit(request(2, deadline=20.0), 10.5)
    table.submit(request(3, deadline=20.0), 10.6)
    assert table.release_at(10.6) == 11.0
    assert written(table.release(11.0)) == [3]


def test_first_asks_go_before_re_asks_and_older_before_younger() -> None:
    table = RequestTable(SMALL)
    submit_all(table, [request(1), request(2)])
    submit_all(
        table, [request(3, is_reask=True), request(4), request(5, is_reask=True), request(6)]
    )
    order = []
    for response_ids in (1, 2, 4, 6):
        table.match_response(CHAIN, response_ids, 2.0)
        order += written(table.release(2.0))
    assert order == [4, 6, 3, 5]


def test_a_full_queue_refuses_but_a_first_ask_displaces_the_youngest_re_ask() -> None:
    table = RequestTable(SMALL)
    submit_all(
        table,
        [request(1), request(2), request(3), request(4, is_reask=True), request(5, is_reask=True)],
    )
    assert table.submit(request(6), 0.0) == b""
    assert table.submit(request(7, is_reask=True), 0.0) is None
    assert table.submit(request(8), 0.0) == b""
    assert table.submit(request(9), 0.0) == b""
    assert table.submit(request(10), 0.0) is None
    assert table.queued == 4
    order = []
    for response_ids in (1, 2, 3, 6):
        table.match_response(CHAIN, response_ids, 5.0)
        order += written(table.release(5.0))
    assert order == [3, 6, 8, 9]


def test_expired_requests_are_never_written() -> None:
    table = RequestTable(SMALL)
    submit_all(table, [request(1), request(2), request(3, deadline=1.0), request(4)])
    table.match_response(CHAIN, 1, 2.0)
    assert written(table.release(2.0)) == [4]
    assert table.queued == 0


def test_expired_requests_make_room_in_a_full_queue() -> None:
    table = RequestTable(SMALL)
    submit_all(table, [request(n, deadline=1.0) for n in range(6)])
    assert table.submit(request(7), 0.5) is None
    assert table.submit(request(8), 1.5) == b""
    assert table.queued == 1


def test_a_closed_queued_request_is_never_sent() -> None:
    table = RequestTable(SMALL)
    gone, stays = request(3), request(4)
    submit_all(table, [request(1), request(2), gone, stays])
    gone.close()
    table.match_response(CHAIN, 1, 0.5)
    assert written(table.release(0.5)) == [4]


def test_a_closed_request_keeps_its_slot() -> None:
    table = RequestTable(SMALL)
    gone = request(1)
    submit_all(table, [gone, request(2), request(3)])
    gone.close()
    assert table.release(1.0) == b""
    assert table.match_response(CHAIN, 1, 1.0) is gone
    assert gone.on_response is None
    assert written(table.release(1.0)) == [3]


def test_other_chains_unknown_ids_and_second_responses_are_unexpected() -> None:
    table = RequestTable(SMALL)
    submit_all(table, [request(1)])
    assert table.match_response(bytes(32), 1, 0.1) is None
    assert table.match_response(CHAIN, 2, 0.1) is None
    assert table.match_response(CHAIN, 1, 0.1) is not None
    assert table.match_response(CHAIN, 1, 0.1) is None


def test_unanswered_requests_are_forgotten_at_their_deadline() -> None:
    table = RequestTable(RequestLimits())
    submit_all(table, [request(n, deadline=10.0 + n) for n in range(10)])
    table.forget_expired(14.5)
    assert table.in_flight == 5
    assert table.outstanding == 0
    table.forget_expired(15.0)
    assert table.in_flight == 4
    table.forget_expired(30.0)
    assert table.in_flight == 0


@given(st.integers(0, 2**32 - 1))
def test_the_limits_hold_in_any_course_of_events(seed: int) -> None:
    rnd = random.Random(seed)
    limits = RequestLimits(outstanding=3, sent_per_s=6, queued=5, slot_timeout_s=1.0)
    table = RequestTable(limits)
    now, count, response_ids = 0.0, 0, set[int]()
    written_at: dict[int, float] = {}
    for _ in range(200):
        now += rnd.choice((0.0, 0.01, 0.3))
        if rnd.random() < 0.6:
            count += 1
            out = table.submit(
                request(count, now + rnd.choice((0.2, 4.0)), is_reask=rnd.random() < 0.5), now
            )
        else:
            if written_at and (number := rnd.choice(list(written_at))) not in response_ids:
                table.match_response(CHAIN, number, now)
                response_ids.add(number)
            out = table.release(now)
        for number in written(out):
            assert number not in written_at
            written_at[number] = now
        assert table.queued <= limits.queued
        unanswered = [n for n, at in written_at.items() if n not in response_ids and at > now - 1.0]
        assert len(unanswered) <= limits.outstanding
        assert sum(at > now - 1.0 for at in written_at.values()) <= limits.sent_per_s
        wake = table.release_at(now)
        assert (wake is None) == (table.queued == 0)


@given(st.permutations(range(12)))
def test_responses_match_their_requests_in_any_order(order: list[int]) -> None:
    table = RequestTable(RequestLimits())
    requests = [request(n) for n in range(12)]
    submit_all(table, requests)
    assert [table.match_response(CHAIN, n, 1.0) for n in order] == [requests[n] for n in order]
    assert table.in_flight == table.outstanding == 0


def checks_until_silent(table: RequestTable) -> int:
    """Return how many checks, a second apart, take the peer of waiting requests for silent."""
    for number in range(1, 7):
        table.submit(request(number, deadline=100.0), 40.0)
    for count in range(1, 60):
        table.forget_expired(39.0 + count)
        if not table.is_congested:
            return count
    raise AssertionError("the peer is never silent")


def test_time_without_requests_is_no_silence() -> None:
    idle = RequestTable(SMALL)
    for now in range(40):
        idle.forget_expired(float(now))
    assert checks_until_silent(idle) == checks_until_silent(RequestTable(SMALL))
