"""Peer addresses survive a restart."""

from __future__ import annotations

from tests.store.fixtures import store_at
from warpseal.store.values import AddressKind, AddressRow
from warpseal.warp.ids import NodeID

NODE, OTHER = NodeID(b"\x01" * 20), NodeID(b"\x02" * 20)
WORKED = AddressRow(NODE, AddressKind.WORKED, "203.0.113.1", 9651, 1_700_000_000.25, 100)
SIGNED = AddressRow(NODE, AddressKind.SIGNED, "2001:db8::1", 9652, 0.0, 2**40)
OF_OTHER = AddressRow(OTHER, AddressKind.WORKED, "203.0.113.2", 65535, 1_600_000_000.0, 0)


async def test_addresses_are_loaded_with_the_most_recently_reached_last(any_store_url: str) -> None:
    async with store_at(any_store_url) as store:
        await store.addresses.replace([WORKED, SIGNED, OF_OTHER])
    async with store_at(any_store_url) as store:
        assert await store.addresses.load() == [SIGNED, OF_OTHER, WORKED]


async def test_addresses_missing_from_a_later_keep_are_deleted(any_store_url: str) -> None:
    moved = AddressRow(NODE, AddressKind.WORKED, "203.0.113.9", 9651, 1_800_000_000.0, 200)
    async with store_at(any_store_url) as store:
        await store.addresses.replace([WORKED, SIGNED, OF_OTHER])
        await store.addresses.replace([moved, OF_OTHER])
        assert await store.addresses.load() == [OF_OTHER, moved]
    async with store_at(any_store_url) as store:
        await store.addresses.load()
        await store.addresses.replace([OF_OTHER])
        assert await store.addresses.load() == [OF_OTHER]


async def test_addresses_of_another_daemon_are_not_deleted(any_store_url: str) -> None:
    async with store_at(any_store_url) as store:
        await store.addresses.replace([WORKED])
    async with store_at(any_store_url) as store:
        await store.addresses.replace([OF_OTHER])
        assert await store.addresses.load() == [OF_OTHER, WORKED]


async def test_only_changed_addresses_are_written(any_store_url: str) -> None:
    async with store_at(any_store_url) as store:
        await store.addresses.replace([WORKED, OF_OTHER])
        before = store.status()
        await store.addresses.replace([WORKED, OF_OTHER])
        assert store.status() == before
        assert await store.addresses.load() == [OF_OTHER, WORKED]


async def test_without_a_store_no_addresses_are_kept() -> None:
    async with store_at("off") as store:
        await store.addresses.replace([WORKED])
        assert await store.addresses.load() == []
