"""API keys are stored as digests; all daemons of a store share the page token key."""

from __future__ import annotations

import asyncio

import pytest

from tests.store.fixtures import PATIENCE_S, hasty_settings, store_at
from warpseal.store.api_key import ApiKey, NameTaken, digest_key, new_key_text
from warpseal.store.api_keys import add_key, list_keys, revoke_key
from warpseal.store.store import Store, open_store

PATIENT = {"call_timeout_s": PATIENCE_S}


def build_key(name: str, text: str, created_at: float = 1.0) -> ApiKey:
    digest = digest_key(text)
    assert digest is not None
    return ApiKey(name, digest, text[-4:], 100, 0, created_at)


async def add(store: Store, key: ApiKey) -> None:
    await store.database.write(lambda connection: add_key(connection, key))


async def test_an_api_key_is_found_by_its_digest_before_and_after_it_is_revoked(
    any_store_url: str,
) -> None:
    text = new_key_text()
    key = build_key("explorer", text)
    async with store_at(any_store_url, **PATIENT) as store:
        await add(store, key)
    async with store_at(any_store_url, **PATIENT) as store:
        assert await store.api_keys.find_key(key.digest) == key
        assert await store.api_keys.find_key(b"\x01" * 32) is None
        assert await store.database.write(
            lambda connection: revoke_key(connection, "explorer", 5.5)
        )
        assert await store.database.write(
            lambda connection: revoke_key(connection, "explorer", 9.0)
        )
        assert not await store.database.write(
            lambda connection: revoke_key(connection, "unknown", 5.5)
        )
        stored = await store.api_keys.find_key(key.digest)
        assert stored is not None
        assert stored.revoked_at == 5.5


async def test_api_key_names_are_unique_and_keys_are_listed_oldest_first(
    any_store_url: str,
) -> None:
    second, first = build_key("b", new_key_text(), 2.0), build_key("a", new_key_text(), 1.0)
    async with store_at(any_store_url, **PATIENT) as store:
        await add(store, second)
        await add(store, first)
        with pytest.raises(NameTaken):
            await add(store, build_key("a", new_key_text()))
        assert await store.database.read(list_keys, PATIENCE_S) == (first, second)


async def test_daemons_of_one_store_share_the_page_token_key(postgres_url: str) -> None:
    async with (
        open_store(hasty_settings(postgres_url, **PATIENT), None) as first,
        open_store(hasty_settings(postgres_url, **PATIENT), None) as other,
    ):
        keys, same = await asyncio.gather(first.api_keys.token_keys(), other.api_keys.token_keys())
    assert [len(key) for key in keys] == [32]
    assert same == keys
    async with store_at(postgres_url, **PATIENT) as store:
        assert await store.api_keys.token_keys() == keys


async def test_the_page_token_key_survives_a_restart(any_store_url: str) -> None:
    async with store_at(any_store_url, **PATIENT) as store:
        keys = await store.api_keys.token_keys()
    async with store_at(any_store_url, **PATIENT) as store:
        assert await store.api_keys.token_keys() == keys


@pytest.mark.parametrize(
    "text",
    ["", "wsk_", "wsk_111", "wsk_0OIl", "key", "wsk_" + "z" * 300, "wsk_é", "wsk_" + "1" * 40],
)
def test_a_malformed_key_has_no_digest(text: str) -> None:
    assert digest_key(text) is None


def test_new_keys_are_distinct_and_not_contained_in_their_digests() -> None:
    texts = {new_key_text() for _ in range(50)}
    assert len(texts) == 50
    for text in texts:
        digest = digest_key(text)
        assert digest is not None
        assert text.encode() not in digest
