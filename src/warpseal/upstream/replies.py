"""Agreement and contradiction among the replies of several nodes to one question; pure.

The chain goes on while nodes are called, so different replies may be of different heights. They are
a contradiction only if no heights explain the difference, or if both nodes were at the same height.
Values are compared as decoded: a node may order the members of a set as it likes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from enum import Enum, auto
from hashlib import sha256
from itertools import combinations
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

T = TypeVar("T")

_DIGEST_DIGITS: Final = 12


class Difference(Enum):
    """How two replies differ.

    HEIGHT: the state at one height may differ so from the state at another.
    CONFLICT: no two heights explain the difference.
    """

    NONE = auto()
    HEIGHT = auto()
    CONFLICT = auto()


Compare = Callable[[T, T], Difference]


class Reply(Struct, Generic[T], frozen=True):
    """The reply of one node.

    position: place of the node in the configured list, from 0.
    value: None if the node has no such record.
    height: height of the node's last accepted block before and after the reply; None if it is
        unknown or changed in between.
    """

    position: int
    value: T | None
    height: int | None = None


def find_difference(first: Reply[T], second: Reply[T], compare: Compare[T]) -> Difference:
    """Return how two replies differ. A record that one node lacks may be too new for it."""
    if first.value is second.value:
        return Difference.NONE
    if first.value is None or second.value is None:
        return Difference.HEIGHT
    return compare(first.value, second.value)


def agree(first: Reply[T], second: Reply[T], compare: Compare[T]) -> bool:
    """Return whether two replies say the same.

    A node may forge its height, which therefore excuses no difference.
    """
    return find_difference(first, second, compare) is Difference.NONE


def contradict(first: Reply[T], second: Reply[T], compare: Compare[T]) -> bool:
    """Return whether no two heights explain the difference of two replies."""
    difference = find_difference(first, second, compare)
    if difference is Difference.CONFLICT:
        return True
    return (
        difference is not Difference.NONE
        and first.height is not None
        and first.height == second.height
    )


def classify_replies(replies: Iterable[Reply[T]], compare: Compare[T]) -> list[list[Reply[T]]]:
    """Return the replies in classes that agree with their first one, in the given order."""
    classes: list[list[Reply[T]]] = []
    for reply in replies:
        for others in classes:
            if agree(others[0], reply, compare):
                others.append(reply)
                break
        else:
            classes.append([reply])
    return classes


def find_agreement(
    replies: Iterable[Reply[T]], quorum: int, compare: Compare[T]
) -> list[Reply[T]] | None:
    """Return the largest class of equal replies; None if it has fewer than `quorum`.

    A class that has the record wins over an equally large class that lacks it, since nodes that
    lag overrule no others; otherwise the first of equally large classes wins.
    """

    def rank(members: list[Reply[T]]) -> tuple[int, bool]:
        return len(members), members[0].value is not None

    largest = max(classify_replies(replies, compare), key=rank, default=[])
    return largest if len(largest) >= quorum else None


def count_lacking(
    replies: Iterable[Reply[T]], quorum: int, unasked: int, compare: Compare[T]
) -> int:
    """Return the number of nodes that have to be asked yet for `quorum` equal replies.

    Nodes that lack a record do not end the search as long as enough others may have it.

    unasked: number of nodes that were not asked; the result is at most this.
    """
    most_equal, without_record = 0, 0
    for members in classify_replies(replies, compare):
        if members[0].value is None:
            without_record = len(members)
        else:
            most_equal = max(most_equal, len(members))
    if most_equal >= quorum:
        return 0
    if without_record >= quorum and most_equal + unasked < quorum:
        return 0
    return min(unasked, quorum - most_equal)


def are_explicable(replies: Sequence[Reply[T]], compare: Compare[T]) -> bool:
    """Return whether the heights of the nodes may explain that some of the replies differ."""
    return any(
        not agree(first, second, compare) and not contradict(first, second, compare)
        for first, second in combinations(replies, 2)
    )


def find_quorum_height(heights: Collection[int], quorum: int) -> int | None:
    """Return the highest height that `quorum` nodes have reached; None if fewer have a height."""
    if len(heights) < quorum:
        return None
    return sorted(heights, reverse=True)[quorum - 1]


class _Claim(NamedTuple):
    """A height that one node reported.

    agreed: height that enough nodes had reached at the time of the report.
    at: time of the report, seconds.
    """

    height: int
    agreed: int
    at: float


class HeightClaims:
    """The heights that single nodes report, until enough other nodes reach them.

    A node may be ahead of the others, but then they follow.

    quorum: number of nodes that are enough; a node is judged by so many others, not by fewer.
    grace_s: time that the others may take to follow while their height grows.
    """

    def __init__(self, quorum: int, grace_s: float) -> None:
        self._quorum = quorum
        self._grace_s = grace_s
        self._claims: dict[tuple[str, int], _Claim] = {}

    def update(self, method: str, heights: Mapping[int, int], agreed: int, now: float) -> list[int]:
        """Note the heights of nodes; return the nodes whose earlier height the others do not reach.

        heights: height by the position of the node.
        """
        forging: list[int] = []
        # The agreed height needs `quorum` nodes beside the judged one: of fewer, the nodes that are
        # behind could be the liars.
        if len(heights) <= self._quorum:
            for position in heights:
                self._claims.pop((method, position), None)
            return forging
        for position, height in heights.items():
            claim = self._claims.get((method, position))
            if claim is None or agreed >= claim.height:
                self._claims.pop((method, position), None)
                if height > agreed:
                    self._claims[method, position] = _Claim(height, agreed, now)
            elif now - claim.at >= self._grace_s and agreed > claim.agreed:
                del self._claims[method, position]
                forging.append(position)
        return forging


def make_digest(value: object) -> str:
    """Return a short digest of a reply, by which an operator distinguishes replies."""
    return sha256(msgspec.msgpack.encode(value)).hexdigest()[:_DIGEST_DIGITS]


def compare_fixed(first: T, second: T) -> Difference:
    """Compare facts that never change, such as a set at a height."""
    return Difference.NONE if first == second else Difference.CONFLICT


def compare_grown(first: Sequence[Hashable], second: Sequence[Hashable]) -> Difference:
    """Compare lists in any order to which chains are added, and from which none is removed."""
    before, after = set(first), set(second)
    if before == after:
        return Difference.NONE
    has_grown = before < after or after < before
    return Difference.HEIGHT if has_grown else Difference.CONFLICT


def compare_amounts(first: T, second: T) -> Difference:
    """Compare amounts and times that change with every block."""
    return Difference.NONE if first == second else Difference.HEIGHT
