"""The filter of message ids that are certainly not in the store."""

from __future__ import annotations

from tests.store.fixtures import message, signature, store_at
from warpseal.store.archive_rows import MessageFilter
from warpseal.store.values import ArchiveEntry


def test_the_filter_has_all_added_ids_and_few_false_positives() -> None:
    message_filter = MessageFilter()
    for number in range(1_000):
        message_filter.add(message(number).id)
    assert all(message(number).id in message_filter for number in range(1_000))
    assert sum(message(number).id in message_filter for number in range(1_000, 3_000)) < 20


async def test_the_filter_has_the_stored_messages_after_a_restart(any_store_url: str) -> None:
    async with store_at(any_store_url) as store:
        await store.archive.store_signature(message(1), signature(1))
        assert (await store.archive.load(message(1).id)).signatures == (signature(1),)
    async with store_at(any_store_url) as store:
        assert (await store.archive.load(message(1).id)).signatures == (signature(1),)
        assert await store.archive.load(message(2).id) == ArchiveEntry()
