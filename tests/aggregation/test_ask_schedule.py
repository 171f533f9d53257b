"""Which validators are asked, when, and when again: connections and shares in, requests out."""

from __future__ import annotations

from random import Random

import pytest

from tests.aggregation.fixtures import index_of, members, node
from warpseal.aggregation.ask_schedule import Ask, AskSchedule
from warpseal.aggregation.members import MemberTable, ShareStatus
from warpseal.aggregation.settings import AggregationSettings
from warpseal.warp.validator_set import CanonicalValidatorSet, Validator, required_weight

SETTINGS = AggregationSettings(reask_jitter=0.0)
# No validator is asked at once for its weight alone.
NO_LARGE = AggregationSettings(reask_jitter=0.0, always_ask_percent=100)


class ScheduleDriver:
    """A schedule, its table and a clock. cover_weight: weight that is to be selected."""

    def __init__(
        self, weights: list[int], settings: AggregationSettings = SETTINGS, connected: bool = True
    ) -> None:
        self.table = MemberTable(members(weights))
        self.schedule = AskSchedule(self.table, settings, Random(7))
        self.schedule.begin(0.0)
        self.cover_weight = required_weight(self.table.total_weight, 95)
        if connected:
            self.connect(*range(1, len(weights) + 1))

    def connect(self, *numbers: int) -> None:
        for number in numbers:
            record = self.table.nodes[node(number)]
            if self.table.connect(record):
                self.schedule.add_connected(record)

    def disconnect(self, number: int) -> None:
        self.table.disconnect(self.table.nodes[node(number)])

    def set_status(self, number: int, status: ShareStatus) -> None:
        self.table.set_status(self.table.members[index_of(self.table.validators, number)], status)

    def first_asks(self, now: float = 0.0, missing_weight: int = 0) -> list[int]:
        asks = self.schedule.due_asks(now, self.cover_weight, missing_weight)
        return [number for ask in asks if not ask.is_reask for number in numbers_of(ask)]

    def reasks(self, now: float, missing_weight: int = 0) -> list[int]:
        asks = self.schedule.due_asks(now, self.cover_weight, missing_weight)
        return [number for ask in asks if ask.is_reask for number in numbers_of(ask)]


def numbers_of(ask: Ask) -> list[int]:
    return [int.from_bytes(node_id, "big") for node_id in ask.node_ids]


def test_the_first_wave_asks_the_heaviest_until_95_percent() -> None:
    driver = ScheduleDriver([50, 20, 10, 6, 5, 4] + [1] * 5, NO_LARGE)
    assert driver.first_asks() == [1, 2, 3, 4, 5, 6]


def test_the_first_wave_asks_as_far_as_a_higher_target() -> None:
    driver = ScheduleDriver([50, 20, 10, 6, 5, 4] + [1] * 5, NO_LARGE)
    driver.cover_weight = 100
    assert sorted(driver.first_asks()) == list(range(1, 12))


def test_every_validator_with_one_percent_is_asked_at_once() -> None:
    heavy, one_percent, below = 9_600, 101, 99
    driver = ScheduleDriver([heavy, one_percent, one_percent, below, below])
    assert driver.table.total_weight == 10_000
    assert sorted(driver.first_asks()) == [1, 2, 3]


def test_inactive_validators_are_asked_last_at_any_weight() -> None:
    driver = ScheduleDriver([50, 30, 20], NO_LARGE)
    driver.table.set_inactive(frozenset({node(1)}))
    driver.cover_weight = 50
    assert driver.first_asks() == [2, 3]


def test_a_validator_that_has_signed_counts_and_is_not_asked() -> None:
    driver = ScheduleDriver([50, 45, 5], NO_LARGE)
    driver.set_status(1, ShareStatus.SIGNED)
    assert driver.first_asks() == [2]


def test_a_loss_lets_the_next_validators_be_asked() -> None:
    driver = ScheduleDriver([50, 30, 15, 3, 2], NO_LARGE)
    assert driver.first_asks() == [1, 2, 3]
    driver.set_status(3, ShareStatus.UNAVAILABLE)
    assert driver.first_asks(0.01) == [4, 5]


def test_a_validator_that_disconnects_is_replaced_and_one_that_has_signed_is_not() -> None:
    driver = ScheduleDriver([50, 30, 15, 3, 2], NO_LARGE)
    assert driver.first_asks() == [1, 2, 3]
    driver.set_status(2, ShareStatus.SIGNED)
    driver.disconnect(2)
    assert driver.first_asks(0.01) == []
    driver.disconnect(3)
    assert driver.first_asks(0.02) == [4, 5]


def test_each_second_validators_with_about_the_missing_weight_are_asked() -> None:
    driver = ScheduleDriver([500, 300, 150, 21, 19, 10], NO_LARGE)
    assert driver.first_asks() == [1, 2, 3]
    assert driver.first_asks(0.99, missing_weight=15) == []
    assert driver.schedule.next_at() <= 1.0
    assert driver.first_asks(1.0, missing_weight=15) == [4]
    assert driver.first_asks(2.0, missing_weight=15) == [5]
    assert driver.first_asks(3.0, missing_weight=15) == [6]
    assert driver.first_asks(4.0, missing_weight=15) == []


def test_a_disconnected_validator_does_not_fill_the_wave_and_is_asked_when_it_connects() -> None:
    driver = ScheduleDriver([50, 30, 15, 3, 2], NO_LARGE, connected=False)
    driver.connect(1, 3, 4, 5)
    assert driver.first_asks() == [1, 3, 4, 5]
    driver.connect(2)
    assert driver.first_asks(0.2) == [2]


def test_a_validator_that_reconnects_is_asked_once_more() -> None:
    driver = ScheduleDriver([50, 50])
    driver.first_asks()
    driver.disconnect(1)
    driver.set_status(2, ShareStatus.SIGNED)
    assert driver.reasks(0.5) == []
    driver.connect(1)
    assert driver.first_asks(0.6) == [1]
    assert driver.reasks(1.1) == [1]


def test_all_nodes_of_a_key_are_asked() -> None:
    both = Validator(members([1]).validators[0].public_key, 10, (node(1), node(9)))
    table = MemberTable(CanonicalValidatorSet((both,), 10))
    schedule = AskSchedule(table, SETTINGS, Random(1))
    schedule.begin(0.0)
    for record in table.nodes.values():
        table.connect(record)
    assert [numbers_of(ask) for ask in schedule.due_asks(0.0, 10, 10)] == [[1, 9]]
    assert table.connected_weight == 10


def test_reasks_come_a_half_one_two_and_then_every_four_seconds_after_the_last_request() -> None:
    driver = ScheduleDriver([40, 60])
    driver.first_asks()
    driver.set_status(2, ShareStatus.SIGNED)
    moments: list[float] = []
    now = 0.0
    while now < 16.5:
        now = driver.schedule.next_at()
        if driver.reasks(now):
            moments.append(now)
    assert moments == pytest.approx([0.5, 1.5, 3.5, 7.5, 11.5, 15.5, 19.5])


def test_reasks_are_spread_by_jitter() -> None:
    driver = ScheduleDriver([1] * 600, AggregationSettings())
    driver.first_asks()
    driver.set_status(1, ShareStatus.SIGNED)
    moments: list[float] = []
    while len(moments) < 5:
        now = driver.schedule.next_at()
        assert driver.reasks(now)
        moments.append(now)
    assert len(set(moments)) == 5
    assert all(0.45 <= moment <= 0.55 for moment in moments)


def test_a_validator_that_signed_or_is_lost_is_not_asked_again() -> None:
    driver = ScheduleDriver([30, 30, 30, 10])
    driver.first_asks()
    driver.set_status(1, ShareStatus.SIGNED)
    driver.set_status(2, ShareStatus.IMPOSSIBLE)
    driver.set_status(3, ShareStatus.UNAVAILABLE)
    assert driver.reasks(0.5) == [4]


def test_until_a_first_share_comes_eight_validators_picked_at_random_are_asked_again() -> None:
    driver = ScheduleDriver([1] * 100)
    assert len(driver.first_asks()) == 100
    picks = []
    now = 0.0
    while now < 15:
        now = driver.schedule.next_at()
        reasked = driver.reasks(now)
        if reasked:
            picks.append((now, reasked))
    assert [len(reasked) for _, reasked in picks] == [8] * len(picks)
    assert [moment for moment, _ in picks[:4]] == pytest.approx([0.5, 1.5, 3.5, 7.5])
    assert len({tuple(reasked) for _, reasked in picks}) == len(picks)


def test_the_first_share_opens_the_reasks_to_all() -> None:
    driver = ScheduleDriver([1] * 100)
    driver.first_asks()
    assert len(driver.reasks(0.5)) == 8
    assert driver.reasks(1.2) == []
    driver.set_status(1, ShareStatus.SIGNED)
    assert sorted(driver.reasks(1.3)) == list(range(2, 101))
    assert driver.reasks(1.4) == []


def test_recently_probed_validators_are_not_asked_twice_when_the_first_share_comes() -> None:
    driver = ScheduleDriver([1] * 100)
    driver.first_asks()
    probed = driver.reasks(0.5)
    signer = next(number for number in range(1, 101) if number not in probed)
    driver.set_status(signer, ShareStatus.SIGNED)
    assert not set(driver.reasks(0.6)) & set(probed)
    assert set(driver.reasks(1.1)) >= set(probed)


def test_a_validator_that_reconnects_when_a_probe_is_due_is_asked_only_once() -> None:
    driver = ScheduleDriver([50, 50])
    driver.first_asks()
    driver.disconnect(1)
    driver.connect(1)
    asks = driver.schedule.due_asks(0.5, driver.cover_weight, 0)
    assert [(numbers_of(ask), ask.is_reask) for ask in asks] == [([1], False), ([2], True)]


def test_connected_weight_counts_each_key_once() -> None:
    driver = ScheduleDriver([5, 7, 9])
    assert driver.table.connected_weight == 21
    driver.disconnect(2)
    driver.disconnect(2)
    assert driver.table.connected_weight == 14
    driver.connect(2, 2)
    assert driver.table.connected_weight == 21


def test_only_a_change_of_a_connection_is_reported() -> None:
    table = ScheduleDriver([5, 7, 9], connected=False).table
    record = table.nodes[node(2)]
    assert not table.disconnect(record)
    assert [table.connect(record), table.connect(record)] == [True, False]
    assert [table.disconnect(record), table.disconnect(record)] == [True, False]
