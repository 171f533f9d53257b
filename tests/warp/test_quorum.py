"""Quorums against exact fractions."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpseal.warp.validator_set import has_quorum, required_weight

weights = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize(
    ("total", "percentage", "required"),
    [
        (100_000_000, 67, 67_000_000),
        (67_000_000, 100, 67_000_000),
        (100, 67, 67),
        (99, 67, 67),
        (1, 67, 1),
        (3, 67, 3),
        (10**16, 67, 67 * 10**14),
        (2**64 - 1, 100, 2**64 - 1),
        (5, 0, 0),
        (0, 67, 0),
    ],
)
def test_required_weights_are_those_of_the_notes(total: int, percentage: int, required: int) -> None:
    assert required_weight(total, percentage) == required


@given(weights, weights, st.integers(0, 100))
def test_a_quorum_is_met_exactly_when_the_fraction_is_reached(signed: int, total: int, percentage: int) -> None:
    reached = Fraction(signed) >= Fraction(total) * Fraction(percentage, 100)
    assert has_quorum(signed, total, percentage) == reached
    assert (signed >= required_weight(total, percentage)) == reached


@given(weights, st.integers(1, 100))
def test_one_unit_less_than_required_is_not_enough(total: int, percentage: int) -> None:
    required = required_weight(total, percentage)
    assert has_quorum(required, total, percentage)
    assert required == 0 or not has_quorum(required - 1, total, percentage)
