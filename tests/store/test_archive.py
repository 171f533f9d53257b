"""Signatures are read back, in whatever order they were written, from either database."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from tests.eventually import until
from tests.store.fixtures import load_beside, message, share, signature, store_at, wait_for_entry
from warpseal.store.eviction import measure
from warpseal.store.values import ArchiveEntry


async def test_an_unknown_message_has_an_empty_entry(any_store_url: str) -> None:
    async with store_at(any_store_url) as store:
        assert await store.archive.load(message(1).id) == ArchiveEntry()


async def test_stored_shares_and_signatures_survive_a_restart(any_store_url: str) -> None:
    async with store_at(any_store_url) as store:
        store.archive.store_shares(message(1), [share(1), share(2, verified=True)])
        await store.archive.store_signature(message(1), signature(1, 2, 1, 3))
    async with store_at(any_store_url) as store:
        entry = await store.archive.load(message(1).id)
    assert set(entry.shares) == {share(1), share(2, verified=True)}
    assert entry.signatures == (signature(1, 2, 1, 3),)


async def test_messages_and_those_with_a_signature_are_found_by_their_ids(
    any_store_url: str,
) -> None:
    async with store_at(any_store_url) as store:
        store.archive.store_shares(message(1), [share(1)])
        await store.archive.store_signature(message(2), signature(1))
        await wait_for_entry(store, message(1), lambda entry: bool(entry.shares))
        messages = [message(number) for number in (1, 2, 3)]
        assert await store.archive.find_signed([entry.id for entry in messages]) == frozenset(
            [message(2).id]
        )
        assert await store.archive.find_signed([]) == frozenset()
        assert [await store.archive.find_message(entry.id) for entry in messages] == [
            message(1),
            message(2),
            None,
        ]


async def test_a_signature_is_committed_when_its_wait_is_over_and_shares_may_follow(
    any_store_url: str,
) -> None:
    async with store_at(any_store_url, gather_s=3600.0) as store:
        store.archive.store_shares(message(1), [share(1)])
        await store.archive.store_signature(message(1), signature(1))
        assert load_beside(any_store_url, message(1)) == ArchiveEntry((signature(1),), ())
    async with store_at(any_store_url) as store:
        assert (await store.archive.load(message(1).id)).shares == (share(1),)


async def test_shares_are_written_in_the_background(any_store_url: str) -> None:
    async with store_at(any_store_url) as store:
        store.archive.store_shares(message(1), [share(1)])
        assert (
            await wait_for_entry(store, message(1), lambda entry: bool(entry.shares))
        ).shares == (share(1),)


async def test_the_first_candidate_of_a_key_is_kept(any_store_url: str) -> None:
    async with store_at(any_store_url) as store:
        store.archive.store_shares(message(1), [share(1), share(1, variant=1)])
        store.archive.store_shares(message(1), [share(1, variant=2)])
    async with store_at(any_store_url) as store:
        store.archive.store_shares(message(1), [share(1, variant=3)])
    async with store_at(any_store_url) as store:
        assert (await store.archive.load(message(1).id)).shares == (share(1),)


async def test_a_verified_share_replaces_a_candidate_and_nothing_replaces_it(
    any_store_url: str,
) -> None:
    verified = share(1, verified=True, variant=1)
    async with store_at(any_store_url) as store:
        store.archive.store_shares(message(1), [share(1)])
        store.archive.store_shares(message(1), [verified])
        store.archive.store_shares(
            message(1), [share(1, variant=2), share(1, verified=True, variant=3)]
        )
    async with store_at(any_store_url) as store:
        assert (await store.archive.load(message(1).id)).shares == (verified,)


async def test_the_first_verified_share_of_a_key_in_a_list_is_kept(any_store_url: str) -> None:
    async with store_at(any_store_url) as store:
        store.archive.store_shares(
            message(1), [share(1, verified=True), share(1, verified=True, variant=1)]
        )
    async with store_at(any_store_url) as store:
        assert (await store.archive.load(message(1).id)).shares == (share(1, verified=True),)


async def test_a_verified_share_marks_an_equal_candidate_as_verified(any_store_url: str) -> None:
    async with store_at(any_store_url) as store:
        store.archive.store_shares(message(1), [share(1), share(1, verified=True)])
    async with store_at(any_store_url) as store:
        assert (await store.archive.load(message(1).id)).shares == (share(1, verified=True),)


async def test_a_rejected_share_makes_room_for_the_next_and_order_counts(
    any_store_url: str,
) -> None:
    async with store_at(any_store_url) as store:
        store.archive.store_shares(message(1), [share(1), share(2)])
        store.archive.reject_share(message(1).id, share(1).public_key, share(1).signature)
        store.archive.store_shares(message(1), [share(1, variant=1)])
        store.archive.reject_share(
            message(1).id, share(2).public_key, share(2, variant=1).signature
        )
        store.archive.reject_share(message(9).id, share(2).public_key, share(2).signature)
    async with store_at(any_store_url) as store:
        entry = await store.archive.load(message(1).id)
        assert set(entry.shares) == {share(1, variant=1), share(2)}
        assert await store.archive.load(message(9).id) == ArchiveEntry()


async def test_several_signatures_come_newest_first_and_equal_ones_once(any_store_url: str) -> None:
    async with store_at(any_store_url) as store:
        for number in (1, 2, 1):
            await store.archive.store_signature(message(1), signature(number))
        assert (await store.archive.load(message(1).id)).signatures == (signature(1), signature(2))


async def test_evictable_messages_keep_their_latest_four_signatures_and_permanent_ones_keep_all(
    any_store_url: str,
) -> None:
    async with store_at(any_store_url) as store:
        store.archive.pin(message(2))
        for number in range(7):
            await store.archive.store_signature(message(1), signature(number))
            await store.archive.store_signature(message(2), signature(number))
    newest_first = tuple(signature(number) for number in reversed(range(7)))
    async with store_at(any_store_url) as store:
        assert (await store.archive.load(message(1).id)).signatures == newest_first[:4]
        assert (await store.archive.load(message(2).id)).signatures == newest_first


async def test_candidates_of_messages_kept_for_ever_wait_to_be_verified(any_store_url: str) -> None:
    async with store_at(any_store_url) as store:
        store.archive.store_shares(message(1), [share(1), share(2), share(3, verified=True)])
        store.archive.store_shares(message(2), [share(1)])
        store.archive.pin(message(1))
    async with store_at(any_store_url) as store:
        ((entry, candidates),) = await store.archive.unverified(10)
        assert (entry, set(candidates)) == (message(1), {share(1), share(2)})
        assert sum(len(shares) for _, shares in await store.archive.unverified(1)) == 1
        store.archive.mark_verified(message(1).id, share(1).public_key, share(1).signature)
        store.archive.mark_verified(
            message(1).id, share(2).public_key, share(2, variant=1).signature
        )
    async with store_at(any_store_url) as store:
        assert await store.archive.unverified(10) == ((message(1), (share(2),)),)
        store.archive.reject_share(message(1).id, share(2).public_key, share(2).signature)
    async with store_at(any_store_url) as store:
        assert await store.archive.unverified(10) == ()
        assert set((await store.archive.load(message(1).id)).shares) == {
            share(1, verified=True),
            share(3, verified=True),
        }


async def test_cancelling_a_wait_does_not_cancel_the_write(any_store_url: str) -> None:
    async with store_at(any_store_url) as store:
        write = store.archive.store_signature(message(1), signature(1))
        await asyncio.sleep(0)
        write.cancel()
        await wait_for_entry(store, message(1), lambda entry: entry.signatures == (signature(1),))


async def test_many_messages_at_once_are_all_kept(any_store_url: str) -> None:
    numbers = range(60)
    async with store_at(any_store_url) as store:
        for number in numbers:
            store.archive.store_shares(message(number), [share(number), share(number + 1)])
        await asyncio.gather(
            *(store.archive.store_signature(message(n), signature(n)) for n in numbers)
        )
    async with store_at(any_store_url) as store:
        for number in numbers:
            entry = await store.archive.load(message(number).id)
            assert (set(entry.shares), entry.signatures) == (
                {share(number), share(number + 1)},
                (signature(number),),
            )


async def test_stored_rows_are_counted(any_store_url: str) -> None:
    async with store_at(any_store_url) as store:
        store.archive.store_shares(message(1), [share(1), share(2, verified=True)])
        store.archive.pin(message(1))
        store.archive.store_shares(message(2), [share(1)])
        await store.archive.store_signature(message(2), signature(1))
    async with store_at(any_store_url) as store:
        contents = await store.database.read(measure)
        assert contents.evictable_bytes < contents.size_bytes
        counted = replace(contents, size_bytes=0, evictable_bytes=0)
        counts = (
            counted.messages,
            counted.messages_for_ever,
            counted.shares,
            counted.shares_verified,
        )
        assert (counts, counted.signatures) == ((2, 1, 3, 1), 1)
        await until(lambda: store.status().size_bytes > 0)
        assert store.status().evictable_bytes == contents.evictable_bytes


async def test_without_a_store_every_message_is_unknown() -> None:
    async with store_at("off") as store:
        store.archive.store_shares(message(1), [share(1)])
        await store.archive.store_signature(message(1), signature(1))
        store.archive.pin(message(1))
        assert await store.archive.load(message(1).id) == ArchiveEntry()
        assert await store.archive.unverified(10) == ()
        assert store.status().is_up
        assert store.status().url == "off"
