"""Whom a round asks, when, and when again."""

from __future__ import annotations

from random import Random

import pytest

from tests.aggregation.world import index_of, members, node
from warpseal.aggregation.asking import Ask, Asking
from warpseal.aggregation.roll import Fate, Roll
from warpseal.aggregation.settings import AggregationSettings
from warpseal.warp.validator_set import CanonicalValidatorSet, Validator, required_weight

SETTINGS = AggregationSettings(reask_jitter=0.0)


class Board:
    """A roll, its asking, and a clock."""

    def __init__(self, weights: list[int], settings: AggregationSettings = SETTINGS, connected: bool = True) -> None:
        self.roll = Roll(members(weights))
        self.asking = Asking(self.roll, settings, Random(7), 0.0)
        self.cover = required_weight(self.roll.total, 95)
        if connected:
            for number in range(1, len(weights) + 1):
                self.connect(number)

    def connect(self, number: int) -> None:
        self.asking.connect(node(number), self.index(number))

    def disconnect(self, number: int) -> None:
        self.asking.disconnect(node(number), self.index(number))

    def index(self, number: int) -> int:
        return index_of(self.roll.members, number)

    def move(self, number: int, fate: Fate) -> None:
        self.roll.move(self.index(number), fate)
        self.asking.recount(self.index(number))

    def due(self, now: float, missing: int = 0) -> list[Ask]:
        return self.asking.due(now, self.cover, missing)

    def first(self, now: float = 0.0, missing: int = 0) -> list[int]:
        return [number for ask in self.due(now, missing) if not ask.again for number in numbers(ask)]

    def again(self, now: float, missing: int = 0) -> list[int]:
        return [number for ask in self.due(now, missing) if ask.again for number in numbers(ask)]


def numbers(ask: Ask) -> list[int]:
    return [int.from_bytes(node_id, "big") for node_id in ask.node_ids]


def test_the_first_wave_asks_the_heaviest_until_95_percent() -> None:
    board = Board([50, 20, 10, 6, 5, 4] + [1] * 5, settings=AggregationSettings(always_ask_percent=100))
    assert board.first() == [1, 2, 3, 4, 5, 6]


def test_the_first_wave_asks_as_far_as_the_target_where_that_is_higher() -> None:
    board = Board([50, 20, 10, 6, 5, 4] + [1] * 5, settings=AggregationSettings(always_ask_percent=100))
    board.cover = 100
    assert sorted(board.first()) == list(range(1, 12))


def test_everyone_with_one_percent_is_asked_at_once() -> None:
    heavy, one_percent, below = 9_600, 101, 99
    board = Board([heavy, one_percent, one_percent, below, below])
    assert board.roll.total == 10_000
    assert sorted(board.first()) == [1, 2, 3]


def test_reluctant_validators_are_asked_last_whatever_their_weight() -> None:
    board = Board([50, 30, 20], settings=AggregationSettings(always_ask_percent=100))
    board.roll.set_reluctant(frozenset({node(1)}))
    board.cover = 50
    assert board.first() == [2, 3]


def test_who_has_signed_already_counts_and_is_not_asked() -> None:
    board = Board([50, 45, 5], settings=AggregationSettings(always_ask_percent=100))
    board.move(1, Fate.SIGNED)
    assert board.first() == [2]


def test_a_loss_lets_the_next_be_asked() -> None:
    board = Board([50, 30, 15, 3, 2], settings=AggregationSettings(always_ask_percent=100))
    assert board.first() == [1, 2, 3]
    board.move(3, Fate.LOST)
    assert board.first(0.01) == [4, 5]


def test_after_a_second_the_next_are_asked_with_about_the_weight_that_is_missing() -> None:
    board = Board([500, 300, 150, 21, 19, 10], settings=AggregationSettings(always_ask_percent=100))
    assert board.first() == [1, 2, 3]
    assert board.first(0.99, missing=15) == []
    assert board.asking.next_at() <= 1.0
    assert board.first(1.0, missing=15) == [4]
    assert board.first(2.0, missing=15) == [5]
    assert board.first(3.0, missing=15) == [6]
    assert board.first(4.0, missing=15) == []


def test_who_is_not_connected_does_not_fill_the_wave_and_is_asked_on_connecting() -> None:
    board = Board([50, 30, 15, 3, 2], settings=AggregationSettings(always_ask_percent=100), connected=False)
    for number in (1, 3, 4, 5):
        board.connect(number)
    assert board.first() == [1, 3, 4, 5]
    board.connect(2)
    assert board.first(0.2) == [2]


def test_who_comes_back_is_asked_anew() -> None:
    board = Board([50, 50])
    board.first()
    board.disconnect(1)
    board.move(2, Fate.SIGNED)
    assert board.again(0.5) == []
    board.connect(1)
    assert board.first(0.6) == [1]
    assert board.again(1.1) == [1]


def test_all_nodes_of_a_key_are_asked() -> None:
    both = Validator(members([1]).validators[0].public_key, 10, (node(1), node(9)))
    roll = Roll(CanonicalValidatorSet((both,), 10))
    asking = Asking(roll, SETTINGS, Random(1), 0.0)
    asking.connect(node(1), 0)
    asking.connect(node(9), 0)
    assert [numbers(ask) for ask in asking.due(0.0, 10, 10)] == [[1, 9]]
    assert asking.connected_weight == 10


def test_reasks_come_after_a_half_one_two_and_then_every_four_seconds_after_the_last_request() -> None:
    board = Board([40, 60])
    board.first()
    board.move(2, Fate.SIGNED)
    moments: list[float] = []
    now = 0.0
    while now < 16.5:
        now = board.asking.next_at()
        if board.again(now):
            moments.append(now)
    assert moments == pytest.approx([0.5, 1.5, 3.5, 7.5, 11.5, 15.5, 19.5])


def test_reasks_are_spread_by_jitter() -> None:
    board = Board([1] * 600, settings=AggregationSettings())
    board.first()
    board.move(1, Fate.SIGNED)
    moments: list[float] = []
    while len(moments) < 5:
        now = board.asking.next_at()
        assert board.again(now)
        moments.append(now)
    assert len(set(moments)) == 5
    assert all(0.45 <= moment <= 0.55 for moment in moments)


def test_who_signed_or_said_a_last_word_is_not_asked_again() -> None:
    board = Board([30, 30, 30, 10])
    board.first()
    board.move(1, Fate.SIGNED)
    board.move(2, Fate.GONE)
    board.move(3, Fate.LOST)
    assert board.again(0.5) == [4]


def test_while_nobody_has_signed_eight_picked_anew_are_asked_again() -> None:
    board = Board([1] * 100)
    assert len(board.first()) == 100
    picks = []
    now = 0.0
    while now < 15:
        now = board.asking.next_at()
        again = board.again(now)
        if again:
            picks.append((now, again))
    assert [len(again) for _, again in picks] == [8] * len(picks)
    assert [moment for moment, _ in picks[:4]] == pytest.approx([0.5, 1.5, 3.5, 7.5])
    assert len({tuple(again) for _, again in picks}) == len(picks)


def test_the_first_share_opens_the_reasks_to_all() -> None:
    board = Board([1] * 100)
    board.first()
    assert len(board.again(0.5)) == 8
    assert board.again(1.2) == []
    board.move(1, Fate.SIGNED)
    opened = board.again(1.3)
    assert sorted(opened) == list(range(2, 101))
    assert board.again(1.4) == []


def test_those_who_were_probed_just_now_are_not_asked_twice_when_the_first_share_comes() -> None:
    board = Board([1] * 100)
    board.first()
    probed = board.again(0.5)
    signer = next(number for number in range(1, 101) if number not in probed)
    board.move(signer, Fate.SIGNED)
    assert not set(board.again(0.6)) & set(probed)
    assert set(board.again(1.1)) >= set(probed)


def test_connected_weight_counts_each_key_once() -> None:
    board = Board([5, 7, 9])
    assert board.asking.connected_weight == 21
    board.disconnect(2)
    board.disconnect(2)
    assert board.asking.connected_weight == 14
    board.connect(2)
    board.connect(2)
    assert board.asking.connected_weight == 21
