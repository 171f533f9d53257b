"""Validations are counted while they are current, watched and confirmed."""

from __future__ import annotations

from msgspec.structs import replace

from tests.validators.uptime.fixtures import (
    NODE,
    OTHER,
    SETTINGS,
    START_UNIX_S,
    FakePeers,
    validation,
)
from warpseal.node.p_chain import CurrentValidation
from warpseal.store.values import ValidationRow
from warpseal.validators.settings import UptimeSettings
from warpseal.validators.uptime.node_uptime import NodeUptimes, Uptime
from warpseal.validators.uptime.validation_uptime import ValidationUptime
from warpseal.warp.ids import NodeID


class UptimeScenario:
    """The uptime of validations over fake peers, on a clock in seconds that starts at 0."""

    def __init__(self, settings: UptimeSettings = SETTINGS) -> None:
        self.peers = FakePeers()
        self.uptimes = NodeUptimes(self.peers, settings)
        self.validations = ValidationUptime(self.uptimes, settings)
        self.now_s = 0
        self.uptimes.heartbeat(0)

    def wait(self, seconds: int, *node_ids: NodeID) -> None:
        """Let time pass with a heartbeat every second; at the end the daemon hears from these
        nodes.
        """
        for _ in range(seconds):
            self.now_s += 1
            self.uptimes.heartbeat(self.now_s * 1_000)
        for node_id in node_ids:
            self.peers.last_heard[node_id] = self.now_s

    def connect(self) -> None:
        self.peers.connect(NODE, self.now_s)
        self.uptimes.advance(NODE, self.now_s * 1_000)

    def drop(self) -> None:
        self.peers.drop(NODE)
        self.uptimes.advance(NODE, self.now_s * 1_000)

    def watch(self, *validations: CurrentValidation) -> None:
        self.validations.watch(validations, self.now_s * 1_000, START_UNIX_S + self.now_s)

    def uptime(self, one: CurrentValidation) -> Uptime:
        return self.validations.uptime(one, self.now_s * 1_000, START_UNIX_S + self.now_s)

    def rows(self) -> tuple[ValidationRow, ...]:
        self.validations.count(self.now_s * 1_000, START_UNIX_S + self.now_s)
        return self.validations.unwritten_rows()


def test_time_before_a_validation_is_watched_does_not_count_even_if_it_is_decided_later() -> None:
    scenario = UptimeScenario()
    scenario.connect()
    scenario.wait(10)
    scenario.watch(validation())
    assert scenario.uptime(validation()) == Uptime()
    scenario.wait(5, NODE)
    assert scenario.uptime(validation()) == Uptime(5_000, 5_000)


def test_time_before_the_start_of_a_validation_does_not_count() -> None:
    scenario = UptimeScenario()
    one = validation(start_unix_s=START_UNIX_S + 30)
    scenario.connect()
    scenario.watch(one)
    scenario.wait(29, NODE)
    assert scenario.uptime(one) == Uptime()
    scenario.wait(1)
    assert scenario.uptime(one) == Uptime()
    scenario.wait(12, NODE)
    assert scenario.uptime(one) == Uptime(12_000, 12_000)


def test_an_inactive_validation_is_observed_and_not_connected() -> None:
    scenario = UptimeScenario()
    scenario.connect()
    scenario.watch(validation())
    scenario.wait(60, NODE)
    assert scenario.uptime(validation()) == Uptime(60_000, 60_000)
    scenario.watch(validation(is_active=False))
    for _ in range(4):
        scenario.wait(10)
        scenario.watch(validation(is_active=False))
    scenario.wait(10, NODE)
    scenario.watch(validation())
    assert scenario.uptime(validation()) == Uptime(110_000, 60_000)
    scenario.wait(20, NODE)
    assert scenario.uptime(validation()) == Uptime(130_000, 80_000)


def test_silence_while_a_validation_was_inactive_is_not_credited_once_its_node_is_heard() -> None:
    scenario = UptimeScenario()
    scenario.connect()
    scenario.watch(validation(is_active=False))
    scenario.wait(15)
    scenario.watch(validation())
    scenario.wait(5, NODE)
    assert scenario.uptime(validation()) == Uptime(20_000, 5_000)


def test_the_time_in_which_a_validation_became_inactive_is_not_credited() -> None:
    scenario = UptimeScenario()
    scenario.connect()
    scenario.watch(validation())
    scenario.wait(60, NODE)
    scenario.watch(validation(is_active=False))
    assert scenario.uptime(validation()) == Uptime(60_000, 0)


def test_a_validation_unconfirmed_for_five_minutes_is_not_counted_until_it_is_confirmed() -> None:
    scenario = UptimeScenario()
    scenario.connect()
    scenario.watch(validation())
    scenario.wait(300, NODE)
    assert scenario.uptime(validation()) == Uptime(300_000, 300_000)
    scenario.wait(400, NODE)
    assert scenario.uptime(validation()) == Uptime(300_000, 300_000)
    scenario.wait(10)
    scenario.watch(validation())
    scenario.wait(10, NODE)
    assert scenario.uptime(validation()) == Uptime(310_000, 310_000)


def test_two_validations_of_a_node_are_counted_separately() -> None:
    scenario = UptimeScenario()
    scenario.connect()
    scenario.watch(validation(1))
    scenario.wait(30, NODE)
    scenario.watch(validation(1), validation(2))
    scenario.wait(10, NODE)
    scenario.uptimes.update(scenario.now_s * 1_000)
    scenario.drop()
    scenario.wait(60)
    assert scenario.uptime(validation(1)) == Uptime(100_000, 40_000)
    assert scenario.uptime(validation(2)) == Uptime(70_000, 10_000)
    assert scenario.uptime(validation(1)).percentage == 40.0


def test_a_validation_continues_from_its_stored_row_whenever_that_is_read() -> None:
    stored_row = ValidationRow(
        validation().validation_id, NODE, 1_000, START_UNIX_S - 60, 500_000, 400_000
    )
    before, after = UptimeScenario(), UptimeScenario()
    before.validations.load_rows([stored_row])
    for scenario in (before, after):
        scenario.connect()
        scenario.watch(validation())
        scenario.wait(20, NODE)
    after.validations.load_rows([stored_row])
    assert before.uptime(validation()) == after.uptime(validation()) == Uptime(520_000, 420_000)
    assert (
        before.rows()
        == after.rows()
        == (replace(stored_row, seen_at=START_UNIX_S, observed_ms=520_000, connected_ms=420_000),)
    )


def test_only_changed_rows_are_written_and_unchanged_ones_once_a_day() -> None:
    scenario = UptimeScenario()
    scenario.watch(validation())
    scenario.validations.mark_written(scenario.rows())
    scenario.wait(60)
    scenario.watch(validation())
    assert scenario.rows() == ()
    scenario.validations.watch([validation()], 86_400_000, START_UNIX_S + 86_400)
    (row,) = scenario.validations.unwritten_rows()
    assert row.seen_at == START_UNIX_S + 86_400


def test_a_validation_that_ended_long_ago_is_forgotten() -> None:
    scenario = UptimeScenario()
    scenario.connect()
    scenario.watch(validation())
    scenario.wait(10, NODE)
    scenario.validations.drop_old(START_UNIX_S + SETTINGS.retention_s)
    assert scenario.uptime(validation()) == Uptime(10_000, 10_000)
    scenario.validations.drop_old(START_UNIX_S + SETTINGS.retention_s + 1)
    assert scenario.uptime(validation()) == Uptime()
    assert scenario.validations.node_ids == frozenset()


def test_validations_are_bounded_in_number_and_those_that_ended_make_room() -> None:
    scenario = UptimeScenario(UptimeSettings(max_validations=2))
    scenario.connect()
    scenario.watch(validation(1), validation(2), validation(3, OTHER))
    scenario.wait(10, NODE)
    assert [scenario.uptime(validation(number)).observed_ms for number in (1, 2, 3)] == [
        10_000,
        10_000,
        0,
    ]
    scenario.wait(295)
    scenario.watch(validation(2), validation(3))
    scenario.wait(10, NODE)
    assert scenario.uptime(validation(1)) == Uptime()
    assert scenario.uptime(validation(3)) == Uptime(10_000, 10_000)


def test_an_unwatched_validation_has_an_empty_uptime_of_100_percent() -> None:
    assert UptimeScenario().uptime(validation()) == Uptime()
    assert Uptime().percentage == 100
    assert (Uptime(2_999, 1_999).connected_s, Uptime(2_999, 999).connected_s) == (1, 0)
