"""Messages that are certainly not kept."""

from __future__ import annotations

from tests.store.world import message, signature, store_at
from warpseal.store.bloom import MessageFilter
from warpseal.store.values import ArchiveEntry


def test_what_was_added_is_held_and_hardly_anything_else() -> None:
    known = MessageFilter()
    for number in range(1_000):
        known.add(message(number).id)
    assert all(message(number).id in known for number in range(1_000))
    assert sum(message(number).id in known for number in range(1_000, 3_000)) < 20


async def test_what_was_kept_before_a_restart_is_known_after_it(any_store_url: str) -> None:
    async with store_at(any_store_url) as store:
        await store.archive.keep_signature(message(1), signature(1))
        assert (await store.archive.load(message(1).id)).signatures == (signature(1),)
    async with store_at(any_store_url) as store:
        assert (await store.archive.load(message(1).id)).signatures == (signature(1),)
        assert await store.archive.load(message(2).id) == ArchiveEntry()
