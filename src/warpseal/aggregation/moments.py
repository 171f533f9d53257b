"""Locating one or two bad shares in a small group without splitting it.

With e_x the deviation of the share at position x, the moments of a group are the products over its positions of
e_x, e_x^x and e_x^(x^2). If exactly one share deviates, at i, then M1 = M0^i; if exactly two, at i and j, then
M2 M0^(ij) = M1^(i+j). Colluders can feign such an equation, so what is located here is a claim, to be proven.

Source: L. Law and B. J. Matt, "Finding invalid signatures in pairing-based batches" (2007).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from warpseal.bls import NO_DEVIATION, Deviation, invert_deviation, multiply_deviations

T = TypeVar("T")

Moments = tuple[Deviation, ...]
MAX_MOMENTS: Final = 3


def weights_of(moment: int, size: int) -> list[int]:
    """Return the weights of a group's positions in a moment: 1, the position, its square."""
    return [position**moment for position in range(size)]


def weighted_sum(terms: Sequence[T], weights: Sequence[int], add: Callable[[T, T], T]) -> T | None:
    """Return the sum of terms, each taken as often as its weight says; None when all weights are 0."""
    total: T | None = None
    for bit in reversed(range(max(weights, default=0).bit_length())):
        if total is not None:
            total = add(total, total)
        for term, weight in zip(terms, weights, strict=True):
            if weight >> bit & 1:
                total = term if total is None else add(total, term)
    return total


def locate(moments: Moments, size: int) -> tuple[int, ...] | None:
    """Return the positions at which a group's only bad shares seem to be, as far as its moments tell."""
    if len(moments) < 2:
        return None
    powers = _powers(moments[0], size)
    for position in range(size):
        if powers[position] == moments[1]:
            return (position,)
    return None if len(moments) < MAX_MOMENTS else _locate_pair(moments, powers, size)


def rest(whole: Moments, left: Moments, left_size: int) -> Moments:
    """Return the moments of a group's right half, whose positions count from its own start."""
    right = [multiply_deviations(one, invert_deviation(other)) for one, other in zip(whole, left, strict=False)]
    if len(right) > 1:
        m0, m1 = right[0], right[1]
        down = invert_deviation(_power(m0, left_size))
        right[1] = multiply_deviations(m1, down)
        if len(right) > 2:
            # (x - m)^2 = x^2 - 2m (x - m) - m^2, and right[1] counts x - m already.
            twice = invert_deviation(_power(right[1], 2 * left_size))
            right[2] = multiply_deviations(
                multiply_deviations(right[2], twice), invert_deviation(_power(m0, left_size**2))
            )
    return tuple(right)


def _locate_pair(moments: Moments, powers: Sequence[Deviation], size: int) -> tuple[int, ...] | None:
    sums = _powers(moments[1], 2 * size)
    # M2 M0^(ij), first for j = i + 1, and from there on by steps of M0^i.
    start = moments[2]
    for first in range(size - 1):
        product = start
        for second in range(first + 1, size):
            if product == sums[first + second]:
                return (first, second)
            product = multiply_deviations(product, powers[first])
        start = multiply_deviations(multiply_deviations(start, powers[first + 1]), powers[first + 1])
    return None


def _powers(value: Deviation, count: int) -> list[Deviation]:
    powers = [NO_DEVIATION]
    while len(powers) < count:
        powers.append(multiply_deviations(powers[-1], value))
    return powers


def _power(value: Deviation, exponent: int) -> Deviation:
    result = NO_DEVIATION
    for bit in bin(exponent)[2:]:
        result = multiply_deviations(result, result)
        if bit == "1":
            result = multiply_deviations(result, value)
    return result
