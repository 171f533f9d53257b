"""Eviction: bounds of age and bytes for evictable messages, none for permanent ones."""

from __future__ import annotations

import asyncio
import time

from tests.eventually import until
from tests.store.fixtures import message, share, signature, store_at
from warpseal.store.eviction import measure
from warpseal.store.store import Store
from warpseal.store.values import AddressKind, AddressRow, ArchiveEntry
from warpseal.warp.ids import NodeID

DAY_S = 86_400.0


async def age(store: Store, number: int, seconds: float) -> None:
    """Let a message have been used last so long ago."""
    text = "UPDATE messages SET used_at = ? WHERE message_id = ?"
    await store.database.write(
        lambda connection: connection.run(text, time.time() - seconds, message(number).id)
    )


async def keep(store: Store, *numbers: int) -> None:
    """Keep messages with two shares and a signature each."""
    for number in numbers:
        store.archive.store_shares(message(number), [share(1), share(2)])
    await asyncio.gather(
        *(store.archive.store_signature(message(number), signature(number)) for number in numbers)
    )
    await until(lambda: store.status().waiting_writes == 0)


async def evicted(store: Store, number: int) -> None:
    """Wait until so many were evicted, and that is committed."""
    await until(lambda: store.status().evicted == number)
    await store.database.write(lambda connection: None)


async def test_old_messages_are_evicted_with_their_shares_and_signatures(
    any_store_url: str,
) -> None:
    async with store_at(any_store_url, max_age_s=DAY_S) as store:
        await keep(store, 1, 2)
        await age(store, 1, 2 * DAY_S)
        await evicted(store, 1)
        assert await store.archive.load(message(1).id) == ArchiveEntry()
        assert len((await store.archive.load(message(2).id)).shares) == 2
        contents = await store.database.read(measure)
        assert (contents.messages, contents.shares, contents.signatures) == (1, 2, 1)


async def test_a_loaded_message_counts_as_used(any_store_url: str) -> None:
    async with store_at(any_store_url, max_age_s=DAY_S, first_prune_s=3600.0) as store:
        await keep(store, 1)
        await age(store, 1, 0.9 * DAY_S)
        assert (await store.archive.load(message(1).id)).signatures
    async with store_at(any_store_url, max_age_s=DAY_S / 2) as store:
        await until(lambda: store.status().size_bytes > 0)
        assert (await store.archive.load(message(1).id)).signatures


async def test_permanent_messages_and_their_candidates_are_never_evicted(
    any_store_url: str,
) -> None:
    async with store_at(any_store_url, first_prune_s=3600.0) as store:
        store.archive.pin(message(1))
        await keep(store, 1, 2)
        await age(store, 1, 1000 * DAY_S)
    async with store_at(any_store_url, max_age_s=DAY_S, max_bytes=1) as store:
        await evicted(store, 1)
        assert await store.archive.load(message(2).id) == ArchiveEntry()
        entry = await store.archive.load(message(1).id)
        assert (set(entry.shares), entry.signatures) == ({share(1), share(2)}, (signature(1),))


async def test_a_stored_message_can_become_permanent(any_store_url: str) -> None:
    async with store_at(any_store_url, first_prune_s=3600.0) as store:
        await keep(store, 1)
        store.archive.pin(message(1))
    async with store_at(any_store_url, max_bytes=1) as store:
        await until(lambda: store.status().size_bytes > 0)
        assert len((await store.archive.load(message(1).id)).shares) == 2


async def test_beyond_the_byte_bound_the_least_recently_used_messages_are_evicted(
    any_store_url: str,
) -> None:
    async with store_at(any_store_url, first_prune_s=3600.0) as store:
        await keep(store, *range(10))
        for number in range(10):
            await age(store, number, 1000.0 - number)
    # The sizes of messages with urgent signatures are counted a moment later, at the latest before
    # a store is closed.
    async with store_at(any_store_url, first_prune_s=3600.0) as store:
        each_bytes = (await store.database.read(measure)).evictable_bytes // 10
    async with store_at(any_store_url, max_bytes=each_bytes * 5 + 10, prune_batch=1) as store:
        await evicted(store, 6)
        await asyncio.sleep(0.1)
        numbers = [
            number
            for number in range(10)
            if (await store.archive.load(message(number).id)).signatures
        ]
        assert numbers == [6, 7, 8, 9]


async def test_addresses_are_pruned_by_age_and_number(any_store_url: str) -> None:
    rows = [
        AddressRow(
            NodeID(bytes([number]) * 20), AddressKind.WORKED, "203.0.113.1", 9651, 1.0 + number, 0
        )
        for number in range(6)
    ]
    text = "UPDATE addresses SET kept_at = ? WHERE node_id = ?"
    async with store_at(any_store_url, first_prune_s=3600.0) as store:
        await store.addresses.replace(rows)
        await store.database.write(lambda c: c.run(text, time.time() - 2 * DAY_S, rows[0].node_id))
    async with store_at(any_store_url, max_age_s=DAY_S, max_addresses=3) as store:
        await evicted(store, 3)
        assert len(await store.addresses.load()) == 3
        assert rows[0] not in await store.addresses.load()
