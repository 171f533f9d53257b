"""Each hour of each node has a row; no row has more than an hour."""

from __future__ import annotations

from tests.validators.uptime.fixtures import NODE, OTHER, START_UNIX_S
from warpseal.store.values import HourRow
from warpseal.validators.uptime.hourly import HourlyUptime, hour_of
from warpseal.validators.uptime.node_uptime import HOUR_MS, UptimeCounter
from warpseal.warp.ids import NodeID

HOUR = hour_of(START_UNIX_S)


def begun(max_rows: int = 1_000) -> tuple[HourlyUptime, UptimeCounter]:
    book = HourlyUptime(max_rows)
    book.start(START_UNIX_S)
    return book, UptimeCounter(0)


def grow(
    counter: UptimeCounter, observed_ms: int, connected_ms: int
) -> dict[NodeID, UptimeCounter]:
    counter.observed_ms += observed_ms
    counter.connected_ms += connected_ms
    return {NODE: counter}


def test_growth_belongs_to_the_hour_in_which_it_was_counted() -> None:
    book, counter = begun()
    book.roll_hour(grow(counter, 60_000, 50_000), START_UNIX_S + 60)
    assert book.rows_of(NODE) == ()
    book.roll_hour(grow(counter, 30_000, 0), START_UNIX_S + 3_600)
    book.count(grow(counter, 5_000, 5_000))
    assert book.rows_of(NODE) == (
        HourRow(HOUR, NODE, 90_000, 50_000),
        HourRow(HOUR + 1, NODE, 5_000, 5_000),
    )
    assert book.rows_of(OTHER) == ()


def test_an_hour_has_never_more_than_its_time_and_keeps_the_proportion() -> None:
    book, counter = begun()
    book.count(grow(counter, HOUR_MS + HOUR_MS // 4, HOUR_MS))
    assert book.rows_of(NODE) == (HourRow(HOUR, NODE, HOUR_MS, HOUR_MS * 4 // 5),)


def test_rows_are_due_until_they_are_written_as_they_are() -> None:
    book, counter = begun()
    book.count(grow(counter, 10, 5))
    due = book.unwritten_rows()
    assert due == (HourRow(HOUR, NODE, 10, 5),)
    book.count(grow(counter, 10, 5))
    book.mark_written(due)
    assert book.unwritten_rows() == (HourRow(HOUR, NODE, 20, 10),)
    book.mark_written(book.unwritten_rows())
    assert book.unwritten_rows() == ()


def test_hours_that_are_over_and_written_leave_memory_and_others_stay() -> None:
    book, counter = begun()
    for number in range(4):
        book.roll_hour(grow(counter, 10, 5), START_UNIX_S + number * 3_600)
        book.count({NODE: counter})
    assert [row.hour - HOUR for row in book.rows_of(NODE)] == [0, 1, 2]
    book.mark_written(book.unwritten_rows())
    assert [row.hour - HOUR for row in book.rows_of(NODE)] == [2]
    assert book.unwritten_rows() == ()


def test_the_current_hour_continues_the_row_of_an_earlier_process() -> None:
    book, counter = begun()
    book.load_rows([HourRow(HOUR, NODE, 100, 90)])
    assert book.unwritten_rows() == ()
    book.count(grow(counter, 10, 5))
    assert book.unwritten_rows() == (HourRow(HOUR, NODE, 110, 95),)


def test_the_oldest_hours_are_dropped_while_the_store_is_down() -> None:
    book, counter = begun(max_rows=3)
    for number in range(10):
        book.roll_hour(grow(counter, 10, 5), START_UNIX_S + number * 3_600)
    assert [row.hour - HOUR for row in book.rows_of(NODE)] == [6, 7, 8]


def test_a_dropped_node_that_returns_continues_its_count() -> None:
    book, counter = begun()
    book.count(grow(counter, 10, 5))
    book.drop_counters([NODE])
    book.count(grow(UptimeCounter(0), 7, 7))
    assert book.rows_of(NODE) == (HourRow(HOUR, NODE, 17, 12),)
