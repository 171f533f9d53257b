"""The caches of shares and finished results, their common bound, and who is under suspicion."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.aggregation.fixtures import public_key, signature
from warpseal.aggregation.goals import QuorumGoal
from warpseal.aggregation.result_cache import ResultCache, SignedResult
from warpseal.aggregation.share_cache import (
    SHARE_COST_BYTES,
    CachedShare,
    ShareCache,
    SharedByteLimit,
)
from warpseal.bls import MalformedShare, sum_shares
from warpseal.warp.ids import MessageID

FIRST, SECOND, THIRD = (MessageID(sha256(text).digest()) for text in (b"1", b"2", b"3"))
SET, OTHER_SET = b"s" * 32, b"o" * 32
KEY = public_key(1)


@dataclass(eq=False)
class RecordingListener:
    """A listener that remembers."""

    added: list[bytes] = field(default_factory=list)
    rejected: list[bytes] = field(default_factory=list)

    def on_share_added(self, public_key: bytes, share: CachedShare) -> None:
        self.added.append(share.raw)

    def on_share_rejected(self, public_key: bytes, share: CachedShare) -> None:
        self.rejected.append(share.raw)


def raw(number: int, text: bytes = b"x") -> bytes:
    return signature(number, text)


def cache(max_messages: int = 10, limit_bytes: int = 10**6) -> ShareCache:
    return ShareCache(max_messages, SharedByteLimit(limit_bytes))


# Shares.


def test_a_share_is_decoded_once_and_kept_by_message_and_key() -> None:
    shares = cache()
    share = shares.get_or_add(FIRST, KEY, raw(1))
    assert share.raw == sum_shares([share.point]) == raw(1)
    assert not share.is_verified
    assert shares.get_or_add(FIRST, KEY, raw(1)) is share
    assert shares.subscribe(FIRST, RecordingListener()) == {KEY: share}
    assert shares.subscribe(SECOND, RecordingListener()) == {}


def test_the_first_of_two_different_shares_of_a_key_stays_until_it_is_rejected() -> None:
    shares = cache()
    first = shares.get_or_add(FIRST, KEY, raw(1, b"lie"))
    assert shares.get_or_add(FIRST, KEY, raw(1)) is first
    shares.reject(FIRST, KEY, first)
    assert shares.get_or_add(FIRST, KEY, raw(1)).raw == raw(1)


def test_nothing_replaces_a_share_that_was_verified_alone() -> None:
    shares = cache()
    proven = shares.get_or_add(FIRST, KEY, raw(1))
    proven.is_verified = True
    assert shares.get_or_add(FIRST, KEY, raw(1, b"lie")) is proven


def test_bytes_that_are_no_point_are_no_share() -> None:
    shares = cache()
    with pytest.raises(MalformedShare):
        shares.get_or_add(FIRST, KEY, b"\x80" + b"\xfe" * 95)
    with pytest.raises(MalformedShare):
        shares.get_or_add(FIRST, KEY, b"\xc0" + bytes(95))
    assert shares.subscribe(FIRST, RecordingListener()) == {}


def test_every_other_round_of_the_message_is_notified_of_a_share() -> None:
    shares, own, other, stranger = (
        cache(),
        RecordingListener(),
        RecordingListener(),
        RecordingListener(),
    )
    shares.subscribe(FIRST, own)
    shares.subscribe(FIRST, other)
    shares.subscribe(SECOND, stranger)
    shares.get_or_add(FIRST, KEY, raw(1), sender=own)
    shares.get_or_add(FIRST, KEY, raw(1), sender=own)
    assert (own.added, other.added, stranger.added) == ([], [raw(1)], [])


def test_every_round_of_the_message_is_notified_of_a_bad_share() -> None:
    shares, own, other = cache(), RecordingListener(), RecordingListener()
    shares.subscribe(FIRST, own)
    shares.subscribe(FIRST, other)
    share = shares.get_or_add(FIRST, KEY, raw(1), sender=own)
    shares.reject(FIRST, KEY, share)
    assert own.rejected == other.rejected == [raw(1)]
    assert shares.subscribe(FIRST, RecordingListener()) == {}
    shares.unsubscribe(FIRST, other)
    shares.get_or_add(FIRST, KEY, raw(1), sender=own)
    assert other.added == [raw(1)]


def test_a_round_that_ends_is_not_notified_any_more_and_the_others_are() -> None:
    shares, ended, open_ = cache(), RecordingListener(), RecordingListener()
    shares.subscribe(FIRST, ended)
    shares.subscribe(FIRST, open_)
    shares.unsubscribe(FIRST, ended)
    shares.get_or_add(FIRST, KEY, raw(1))
    assert (ended.added, open_.added) == ([], [raw(1)])
    shares.unsubscribe(FIRST, open_)


def test_the_number_of_messages_is_bounded_and_the_least_recently_used_goes_first() -> None:
    shares = cache(max_messages=2)
    shares.get_or_add(FIRST, KEY, raw(1))
    shares.get_or_add(SECOND, KEY, raw(1))
    shares.subscribe(FIRST, RecordingListener())
    shares.get_or_add(THIRD, KEY, raw(1))
    assert len(shares) == 2
    assert KEY in shares.subscribe(FIRST, RecordingListener())
    assert shares.subscribe(SECOND, RecordingListener()) == {}


def test_the_bytes_of_shares_are_bounded() -> None:
    budget = SharedByteLimit(5 * SHARE_COST_BYTES)
    shares = ShareCache(100, budget)
    for number in range(1, 12):
        shares.get_or_add(
            MessageID(sha256(b"%d" % number).digest()), public_key(number), raw(number)
        )
        assert budget.used_bytes <= 5 * SHARE_COST_BYTES
    assert 1 <= len(shares) <= 4


def test_a_message_larger_than_the_bound_is_evicted_as_a_whole() -> None:
    budget = SharedByteLimit(3 * SHARE_COST_BYTES)
    shares = ShareCache(100, budget)
    for number in range(1, 9):
        shares.get_or_add(FIRST, public_key(number), raw(number))
    assert budget.used_bytes <= 3 * SHARE_COST_BYTES


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.booleans()), max_size=40))
def test_evicting_everything_frees_all_bytes(steps: list[tuple[int, int, bool]]) -> None:
    budget = SharedByteLimit(6 * SHARE_COST_BYTES)
    shares = ShareCache(3, budget)
    for number, key, rejects in steps:
        message_id = MessageID(sha256(b"%d" % number).digest())
        share = shares.get_or_add(message_id, public_key(key), raw(key))
        if rejects:
            shares.reject(message_id, public_key(key), share)
        assert 0 <= budget.used_bytes <= 6 * SHARE_COST_BYTES
        assert len(shares) <= 3
    while shares._evict_oldest():
        pass
    assert budget.used_bytes == 0


# Finished results.


def signed_result(weight: int, size: int = 300) -> SignedResult:
    return SignedResult(b"m" * size, weight, 3)


def goal(quorum: int, buffer: int = 0) -> QuorumGoal:
    return QuorumGoal(quorum, buffer, 15.0, 100)


def result_cache(limit_bytes: int = 10**6) -> ResultCache:
    return ResultCache(SharedByteLimit(limit_bytes), limit_bytes, 30.0)


def test_a_result_serves_every_goal_whose_target_it_meets() -> None:
    cached = result_cache()
    cached.put(FIRST, SET, signed_result(80), goal(80), 0.0)
    assert cached.find(FIRST, SET, goal(67), 0.0) == signed_result(80)
    assert cached.find(FIRST, SET, goal(67, 13), 0.0) == signed_result(80)
    assert cached.find(FIRST, SET, goal(67, 14), 0.0) is None
    assert cached.find(FIRST, SET, goal(81), 0.0) is None


def test_a_result_is_of_one_message_and_one_set() -> None:
    cached = result_cache()
    cached.put(FIRST, SET, signed_result(80), goal(80), 0.0)
    assert cached.find(SECOND, SET, goal(67), 0.0) is None
    assert cached.find(FIRST, OTHER_SET, goal(67), 0.0) is None


def test_the_lightest_sufficient_signer_set_is_returned() -> None:
    cached = result_cache()
    for weight in (90, 70, 80):
        cached.put(FIRST, SET, signed_result(weight), goal(weight), 0.0)
    assert cached.find(FIRST, SET, goal(67), 0.0) == signed_result(70)
    assert cached.find(FIRST, SET, goal(71), 0.0) == signed_result(80)
    assert cached.find(FIRST, SET, goal(85), 0.0) == signed_result(90)


def test_a_result_that_missed_its_buffer_serves_the_same_request_for_half_a_minute() -> None:
    cached = result_cache()
    cached.put(FIRST, SET, signed_result(70), goal(67, 20), 0.0)
    assert cached.find(FIRST, SET, goal(67, 20), 29.9) == signed_result(70)
    assert cached.find(FIRST, SET, goal(67, 20), 30.0) is None
    assert cached.find(FIRST, SET, goal(67, 19), 1.0) is None
    assert cached.find(FIRST, SET, goal(60, 27), 1.0) is None
    assert cached.find(FIRST, SET, goal(67), 99.0) == signed_result(70)


def test_lookups_are_counted() -> None:
    cached = result_cache()
    cached.find(FIRST, SET, goal(67), 0.0)
    cached.put(FIRST, SET, signed_result(70), goal(67), 0.0)
    cached.find(FIRST, SET, goal(67), 0.0)
    assert (cached.lookups.hits, cached.lookups.misses) == (1, 1)


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(50, 100), st.integers(0, 30)), max_size=60)
)
def test_results_stay_within_half_of_the_bound(steps: list[tuple[int, int, int]]) -> None:
    budget = SharedByteLimit(20_000)
    cached = ResultCache(budget, 20_000, 30.0)
    for number, weight, buffer in steps:
        message_id = MessageID(bytes([number]) * 32)
        cached.put(message_id, SET, signed_result(weight), goal(50, buffer), 0.0)
        assert 0 <= cached.used_bytes <= 10_000
        assert budget.used_bytes == cached.used_bytes


def test_results_are_evicted_oldest_first_for_what_has_no_other_room() -> None:
    budget = SharedByteLimit(10**6)
    cached = ResultCache(budget, 10**6, 30.0)
    for message_id in (FIRST, SECOND):
        cached.put(message_id, SET, signed_result(70), goal(67), 0.0)
    budget.add(10**6 - cached.used_bytes + 1)
    assert cached.find(FIRST, SET, goal(67), 0.0) is None
    assert cached.find(SECOND, SET, goal(67), 0.0) == signed_result(70)
    budget.add(10**6)
    assert cached.used_bytes == 0


def test_more_than_the_bound_is_used_if_no_cache_has_an_entry() -> None:
    budget = SharedByteLimit(10**6)
    cached = ResultCache(budget, 10**6, 30.0)
    for message_id in (FIRST, SECOND):
        cached.put(message_id, SET, signed_result(70), goal(67), 0.0)
    budget.add(2 * 10**6)
    assert (cached.used_bytes, budget.used_bytes) == (0, 2 * 10**6)


def test_shares_are_evicted_before_results() -> None:
    limit_bytes = 8 * SHARE_COST_BYTES
    budget = SharedByteLimit(limit_bytes)
    shares = ShareCache(10, budget)
    cached = ResultCache(budget, limit_bytes, 30.0)
    shares.get_or_add(FIRST, public_key(1), raw(1))
    shares.get_or_add(FIRST, public_key(2), raw(2))
    cached.put(FIRST, SET, signed_result(70), goal(67), 0.0)
    for number in range(3, 7):
        shares.get_or_add(SECOND, public_key(number), raw(number))
    assert cached.find(FIRST, SET, goal(67), 0.0) == signed_result(70)
    assert shares.subscribe(FIRST, RecordingListener()) == {}
