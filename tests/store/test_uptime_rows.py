"""Observed uptime is stored under the id of the observer; rows grow, and old rows are pruned."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.store.fixtures import PATIENCE_S, hasty_settings, store_at
from warpseal.store.errors import StoreDown
from warpseal.store.store import Store, open_store
from warpseal.store.url import OFF
from warpseal.store.values import HourRow, StoredUptime, ValidationRow
from warpseal.warp.ids import NodeID

PATIENT = {"call_timeout_s": PATIENCE_S}
OURS, THEIRS = NodeID(b"\x01" * 20), NodeID(b"\x02" * 20)
NODE, OTHER = NodeID(b"\x0a" * 20), NodeID(b"\x0b" * 20)
VALIDATION = ValidationRow(
    b"\x07" * 32, NODE, first_at=1_000, seen_at=5_000, observed_ms=90_000, connected_ms=60_000
)
HOUR = HourRow(500_000, NODE, 3_600_000, 1_800_000)


async def load_uptime(store: Store, observer: NodeID = OURS, first_hour: int = 0) -> StoredUptime:
    return await store.observed.load(observer, first_hour, 0)


async def test_observed_uptime_survives_a_restart(any_store_url: str) -> None:
    async with store_at(any_store_url, **PATIENT) as store:
        await store.observed.write(OURS, [VALIDATION], [HOUR, replace(HOUR, node_id=OTHER)])
    async with store_at(any_store_url, **PATIENT) as store:
        uptime_rows = await load_uptime(store)
    assert uptime_rows.validations == (VALIDATION,)
    assert uptime_rows.recent_nodes == {NODE, OTHER}
    assert set(uptime_rows.hours) == {HOUR, replace(HOUR, node_id=OTHER)}


async def test_rows_of_two_observers_of_a_node_are_separate(any_store_url: str) -> None:
    async with store_at(any_store_url, **PATIENT) as store:
        await store.observed.write(OURS, [VALIDATION], [HOUR])
        await store.observed.write(
            THEIRS, [replace(VALIDATION, connected_ms=1)], [replace(HOUR, connected_ms=2)]
        )
        assert (await load_uptime(store)).validations == (VALIDATION,)
        assert await store.observed.hours(OURS, NODE, 0, HOUR.hour) == [HOUR]
        assert (await load_uptime(store, THEIRS)).hours == (replace(HOUR, connected_ms=2),)


async def test_a_row_that_is_written_again_is_replaced_and_never_added_to(
    any_store_url: str,
) -> None:
    more = replace(VALIDATION, seen_at=6_000, observed_ms=91_000, connected_ms=61_000)
    async with store_at(any_store_url, **PATIENT) as store:
        for row in (VALIDATION, VALIDATION, more, more):
            await store.observed.write(OURS, [row], [HOUR])
        assert (await load_uptime(store)).validations == (more,)
        assert (await load_uptime(store)).hours == (HOUR,)


async def test_the_totals_of_a_row_never_decrease(any_store_url: str) -> None:
    less = replace(VALIDATION, observed_ms=89_999, connected_ms=89_999)
    async with store_at(any_store_url, **PATIENT) as store:
        await store.observed.write(OURS, [VALIDATION], [HOUR])
        await store.observed.write(OURS, [less], [replace(HOUR, observed_ms=5, connected_ms=5)])
        assert (await load_uptime(store)).validations == (VALIDATION,)
        assert (await load_uptime(store)).hours == (HOUR,)


async def test_hours_of_a_node_come_oldest_first_within_both_bounds(any_store_url: str) -> None:
    hours = [replace(HOUR, hour=number, connected_ms=number) for number in range(100, 110)]
    async with store_at(any_store_url, **PATIENT) as store:
        await store.observed.write(
            OURS, [], [*reversed(hours), replace(HOUR, hour=104, node_id=OTHER)]
        )
        assert await store.observed.hours(OURS, NODE, 103, 106) == hours[3:7]
        assert (await load_uptime(store, first_hour=109)).hours == (hours[9],)
        assert (await store.observed.load(OURS, 0, 105)).recent_nodes == {NODE}


async def test_a_node_that_was_connected_in_any_of_the_hours_is_distinguished_from_one_that_was_not(
    any_store_url: str,
) -> None:
    absent = [
        replace(HOUR, hour=number, node_id=OTHER, connected_ms=0) for number in range(100, 110)
    ]
    async with store_at(any_store_url, **PATIENT) as store:
        await store.observed.write(OURS, [], [replace(HOUR, hour=105, connected_ms=1), *absent])
        await store.observed.write(
            OURS, [], [replace(HOUR, hour=number, connected_ms=0) for number in (104, 106)]
        )
        await store.observed.write(THEIRS, [], [replace(HOUR, hour=109, node_id=OTHER)])
        assert await store.observed.connected_nodes(OURS, 100) == {NODE: True, OTHER: False}
        assert await store.observed.connected_nodes(OURS, 106) == {NODE: False, OTHER: False}
        assert await store.observed.connected_nodes(THEIRS, 110) == {}


async def test_thousands_of_rows_are_written_in_batches(any_store_url: str) -> None:
    hours = [HourRow(7, NodeID(number.to_bytes(20, "big")), number, 0) for number in range(2_500)]
    async with store_at(any_store_url, **PATIENT) as store:
        await store.observed.write(OURS, [], hours)
        assert len((await load_uptime(store)).hours) == 2_500


async def test_old_rows_of_all_observers_are_pruned(any_store_url: str) -> None:
    async with store_at(any_store_url, **PATIENT) as store:
        hours = [replace(HOUR, hour=number) for number in range(100)]
        for observer in (OURS, THEIRS):
            await store.observed.write(
                observer, [VALIDATION, replace(VALIDATION, validation_id=b"\x08" * 32)], hours
            )
        await store.observed.write(OURS, [replace(VALIDATION, seen_at=9_000)], [])
        while await store.observed.prune(90, 8_000):
            pass
        assert [row.hour for row in await store.observed.hours(OURS, NODE, 0, 99)] == list(
            range(90, 100)
        )
        assert [row.seen_at for row in (await load_uptime(store)).validations] == [9_000]
        assert (await load_uptime(store, THEIRS)).validations == ()
        assert len((await load_uptime(store, THEIRS)).hours) == 10


async def test_pending_rows_are_written_before_the_store_is_closed(any_store_url: str) -> None:
    async with store_at(any_store_url, **PATIENT) as store:
        store.observed.write_later(OURS, [VALIDATION], [HOUR])
    async with store_at(any_store_url, **PATIENT) as store:
        assert (await load_uptime(store)).validations == (VALIDATION,)


async def test_without_a_store_reads_are_refused_and_background_writes_do_not_raise() -> None:
    async with open_store(hasty_settings(OFF), None) as store:
        store.observed.write_later(OURS, [VALIDATION], [HOUR])
        with pytest.raises(StoreDown):
            await load_uptime(store)
        with pytest.raises(StoreDown):
            await store.observed.write(OURS, [VALIDATION], [])
        with pytest.raises(StoreDown):
            await store.observed.hours(OURS, NODE, 0, 1)
