"""The search finds exactly the bad shares, few or many."""

from __future__ import annotations

from collections.abc import Collection
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.aggregation.fixtures import parsed_key, public_key, signature
from tests.bls.witness import fast_aggregate_verify
from warpseal import bls
from warpseal.aggregation.bad_shares import BadShareFinder, SearchResult, ShareUnderTest
from warpseal.bls import NO_DEVIATION, Deviation, Share

MESSAGE = b"what they sign"
HASHED = bls.hash_to_curve(MESSAGE)
# A point of the curve that lies outside of the subgroup.
STRAY = bls.decode_share(b"\x80" + bytes(94) + b"\x02")


def share(number: int, message: bytes = MESSAGE) -> Share:
    return bls.decode_share(signature(number, message))


def under_test(number: int, point: Share | None = None) -> ShareUnderTest:
    return ShareUnderTest(
        number, parsed_key(public_key(number)), share(number) if point is None else point
    )


def shares_of(count: int, bad: Collection[int] = ()) -> list[ShareUnderTest]:
    """Return shares 1..count, those of `bad` over another message."""
    return [
        under_test(n, share(n, b"lie %d" % n) if n in bad else None) for n in range(1, count + 1)
    ]


def search(members: list[ShareUnderTest], step: int = 1_000) -> tuple[BadShareFinder, SearchResult]:
    """Search to the end; return the findings of all steps."""
    finder = BadShareFinder(MESSAGE)
    finder.add(members)
    results = [finder.split(0)]
    while finder.unresolved:
        results.append(finder.split(step))
    return finder, SearchResult(
        tuple(share for result in results for share in result.clean),
        tuple(share for result in results for share in result.proven),
        tuple(share for result in results for share in result.bad),
    )


def numbers(shares: tuple[ShareUnderTest, ...]) -> list[int]:
    return sorted(share.index for share in shares)


def assert_exactly(result: SearchResult, count: int, bad: Collection[int]) -> None:
    assert numbers(result.bad) == sorted(bad)
    good = numbers((*result.clean, *result.proven))
    assert good == [number for number in range(1, count + 1) if number not in bad]


# The primitives.


def test_a_right_share_does_not_deviate_and_a_wrong_one_does() -> None:
    key = parsed_key(public_key(1))
    assert bls.compute_deviation(key, share(1), HASHED) == NO_DEVIATION
    assert bls.compute_deviation(key, share(2), HASHED) != NO_DEVIATION


def test_deviations_divide_as_shares_are_subtracted() -> None:
    key = bls.add_public_keys(parsed_key(public_key(1)), parsed_key(public_key(2)))
    whole = bls.compute_deviation(key, bls.add_shares(share(1, b"a"), share(2, b"b")), HASHED)
    assert bls.divide_deviations(whole, deviation(1, b"a")) == deviation(2, b"b")
    assert bls.divide_deviations(whole, whole) == NO_DEVIATION
    assert bls.divide_deviations(whole, NO_DEVIATION) == whole


def test_points_outside_of_the_subgroup_are_recognised() -> None:
    assert bls.is_in_subgroup(share(1))
    assert not bls.is_in_subgroup(STRAY)
    assert bls.is_in_subgroup(bls.subtract_shares(STRAY, STRAY))


def deviation(number: int, message: bytes) -> Deviation:
    return bls.compute_deviation(parsed_key(public_key(number)), share(number, message), HASHED)


# The search.


@pytest.mark.parametrize("count", [1, 2, 3, 5, 16, 17, 40])
def test_good_shares_are_clean_by_one_measurement(count: int) -> None:
    finder, result = search(shares_of(count))
    assert_exactly(result, count, ())
    assert finder.measurements == 1
    assert len(result.proven) == (1 if count == 1 else 0)


@pytest.mark.parametrize(
    ("count", "bad"),
    [
        (1, {1}),
        (2, {1}),
        (2, {1, 2}),
        (3, {1, 2, 3}),
        (4, {2, 3}),
        (5, {1, 3, 5}),
        (16, {7}),
        (16, {1, 16}),
        (16, {2, 3, 4}),
        (17, set(range(1, 18))),
        (33, {5, 6, 7, 8, 30}),
        (60, {1}),
        (60, set(range(1, 61, 7))),
    ],
)
def test_exactly_the_bad_ones_are_found(count: int, bad: set[int]) -> None:
    _, result = search(shares_of(count, bad))
    assert_exactly(result, count, bad)


@settings(max_examples=25)
@given(
    st.integers(1, 40),
    st.randoms(use_true_random=False),
    st.sampled_from([0.02, 0.1, 0.3, 0.8]),
    st.integers(1, 9),
)
def test_exactly_the_bad_shares_are_found_for_any_number_of_them(
    count: int, random: Random, rate: float, step: int
) -> None:
    bad = {number for number in range(1, count + 1) if random.random() < rate}
    _, result = search(shares_of(count, bad), step)
    assert_exactly(result, count, bad)


def test_one_bad_share_among_many_costs_the_logarithm() -> None:
    finder, result = search(shares_of(200, {77}))
    assert numbers(result.bad) == [77]
    assert finder.measurements <= 9


def test_many_bad_shares_cost_less_than_five_measurements_each() -> None:
    bad = set(range(3, 200, 10))
    finder, result = search(shares_of(200, bad))
    assert_exactly(result, 200, bad)
    assert finder.measurements <= 5 * len(bad)


def test_a_share_outside_of_the_subgroup_is_found_like_any_other() -> None:
    members = shares_of(20, {4})
    members[10] = under_test(11, bls.add_shares(share(11), STRAY))
    _, result = search(members)
    assert_exactly(result, 20, {4, 11})


def test_two_colluders_outside_of_the_subgroup_are_found_and_frame_no_other_share() -> None:
    for _ in range(5):
        members = shares_of(20)
        members[3] = under_test(4, bls.add_shares(share(4), STRAY))
        members[12] = under_test(13, bls.subtract_shares(share(13), STRAY))
        _, result = search([*members, *shares_of(21, {21})[20:]])
        assert set(numbers(result.bad)) >= {21}
        assert set(numbers(result.bad)) <= {4, 13, 21}


def test_two_colluders_whose_errors_cancel_frame_no_other_share_and_are_not_proven() -> None:
    error = share(1, b"error")
    for _ in range(5):
        members = shares_of(12, {9})
        members[1] = under_test(2, bls.add_shares(share(2), error))
        members[6] = under_test(7, bls.subtract_shares(share(7), error))
        _, result = search(members)
        assert set(numbers(result.bad)) in ({9}, {2, 7, 9})
        assert not {2, 7} & set(numbers(result.proven))


def test_shares_can_be_measured_singly() -> None:
    finder = BadShareFinder(MESSAGE)
    finder.add_alone(shares_of(4, {2}))
    result = finder.split(0)
    assert numbers(result.proven) == [1, 3, 4]
    assert numbers(result.bad) == [2]
    assert result.clean == ()


def test_a_search_can_be_interrupted_and_names_the_unresolved_shares() -> None:
    bad = set(range(1, 61, 6))
    finder = BadShareFinder(MESSAGE)
    members = shares_of(60, bad)
    finder.add(members)
    bad_shares: list[ShareUnderTest] = []
    while finder.unresolved:
        open_before = {share.index for share in finder.unresolved}
        result = finder.split(3)
        bad_shares += result.bad
        assert {share.index for share in result.bad} <= open_before
    assert numbers(tuple(bad_shares)) == sorted(bad)


def test_a_search_among_no_shares_finds_nothing() -> None:
    finder = BadShareFinder(MESSAGE)
    finder.add([])
    assert finder.split(1) == SearchResult((), (), ())


def test_clean_shares_verify_as_a_sum() -> None:
    _, result = search(shares_of(30, {3, 17, 18}))
    clean = [*result.clean, *result.proven]
    keys = [public_key(share.index) for share in clean]
    assert fast_aggregate_verify(keys, MESSAGE, bls.sum_shares([tested.share for tested in clean]))
