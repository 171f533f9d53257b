"""Addresses that outlive the process."""

from __future__ import annotations

from tests.store.world import store_at
from warpseal.store.values import AddressKind, AddressRow
from warpseal.warp.ids import NodeID

NODE, OTHER = NodeID(b"\x01" * 20), NodeID(b"\x02" * 20)
WORKED = AddressRow(NODE, AddressKind.WORKED, "203.0.113.1", 9651, 1_700_000_000.25, 100)
SIGNED = AddressRow(NODE, AddressKind.SIGNED, "2001:db8::1", 9652, 0.0, 2**40)
OF_OTHER = AddressRow(OTHER, AddressKind.WORKED, "203.0.113.2", 65535, 1_600_000_000.0, 0)


async def test_what_was_remembered_comes_back_the_latest_reached_last(any_store_url: str) -> None:
    async with store_at(any_store_url) as store:
        await store.addresses.keep([WORKED, SIGNED, OF_OTHER])
    async with store_at(any_store_url) as store:
        assert await store.addresses.load() == [SIGNED, OF_OTHER, WORKED]


async def test_what_is_not_remembered_any_more_is_forgotten(any_store_url: str) -> None:
    moved = AddressRow(NODE, AddressKind.WORKED, "203.0.113.9", 9651, 1_800_000_000.0, 200)
    async with store_at(any_store_url) as store:
        await store.addresses.keep([WORKED, SIGNED, OF_OTHER])
        await store.addresses.keep([moved, OF_OTHER])
        assert await store.addresses.load() == [OF_OTHER, moved]
    async with store_at(any_store_url) as store:
        await store.addresses.load()
        await store.addresses.keep([OF_OTHER])
        assert await store.addresses.load() == [OF_OTHER]


async def test_what_another_daemon_keeps_is_left_alone(any_store_url: str) -> None:
    async with store_at(any_store_url) as store:
        await store.addresses.keep([WORKED])
    async with store_at(any_store_url) as store:
        await store.addresses.keep([OF_OTHER])
        assert await store.addresses.load() == [OF_OTHER, WORKED]


async def test_only_changes_are_written(any_store_url: str) -> None:
    async with store_at(any_store_url) as store:
        await store.addresses.keep([WORKED, OF_OTHER])
        before = store.status()
        await store.addresses.keep([WORKED, OF_OTHER])
        assert store.status() == before
        assert await store.addresses.load() == [OF_OTHER, WORKED]


async def test_where_nothing_is_kept_nothing_comes_back() -> None:
    async with store_at("off") as store:
        await store.addresses.keep([WORKED])
        assert await store.addresses.load() == []
