"""Page tokens in the metrics database: found by every daemon on it, bounded, removed after they
expired.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from tests.usage.test_database import database
from warpseal.store.connection import Connection
from warpseal.usage import page_tokens
from warpseal.usage.errors import TooManyPageTokens
from warpseal.usage.page_tokens import VALID_S, PageTokenRow, PageTokenStore
from warpseal.usage.retention import UsageRetention
from warpseal.usage.settings import UsageSettings

NOW = 1_800_000_000


class Clock:
    """A clock that a test sets."""

    now = float(NOW)

    def __call__(self) -> float:
        return self.now


def count(connection: Connection) -> int:
    """Return the number of rows."""
    return int(connection.value("SELECT count(*) FROM page_tokens"))


async def test_a_token_is_a_random_uuid_that_another_daemon_finds(any_metrics_url: str) -> None:
    clock = Clock()
    async with database(any_metrics_url) as opened:
        store = PageTokenStore(opened, clock)
        tokens = await asyncio.gather(*(store.add(b"body %d" % number) for number in range(20)))
    assert len({UUID(token).version for token in tokens}) == 1
    assert len(set(tokens)) == 20
    async with database(any_metrics_url) as opened:
        store = PageTokenStore(opened, clock)
        rows = [await store.find(token) for token in tokens]
        assert rows == [PageTokenRow(NOW + VALID_S, b"body %d" % number) for number in range(20)]
        for unknown in (
            "",
            "x",
            "0" * 36,
            "1" * 32,
            str(UUID(int=1)),
            "{" + tokens[0] + "}",
            tokens[0] + "\0",
        ):
            assert await store.find(unknown) is None


async def test_expired_rows_are_removed_as_new_ones_are_added(any_metrics_url: str) -> None:
    clock = Clock()
    async with database(any_metrics_url) as opened:
        store = PageTokenStore(opened, clock)
        old = [await store.add(b"") for _ in range(30)]
        clock.now += 3_600
        newer = await store.add(b"")
        clock.now += VALID_S - 3_600
        await store.add(b"")
        assert await opened.read(count) == 32
        clock.now += 1
        await store.add(b"")
        assert await opened.read(count) == 3
        assert [await store.find(token) for token in old] == [None] * 30
        assert await store.find(newer) is not None


async def test_expired_rows_are_removed_with_old_usage(any_metrics_url: str) -> None:
    clock = Clock()
    async with database(any_metrics_url) as opened:
        store = PageTokenStore(opened, clock)
        for _ in range(230):
            await store.add(b"")
        clock.now += 1
        last = await store.add(b"")
        clock.now += VALID_S
        await UsageRetention(opened, UsageSettings(), clock, clock).remove()
        assert await opened.read(count) == 1
        assert await store.find(last) is not None


async def test_no_token_is_added_beyond_the_bound(
    any_metrics_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_tokens, "_COUNTED_EVERY", 2)
    clock = Clock()
    async with database(any_metrics_url) as first, database(any_metrics_url) as second:
        stores = [PageTokenStore(opened, clock, 5) for opened in (first, second)]
        for number in range(5):
            await stores[number % 2].add(b"")
        clock.now += 1
        for store in stores:
            for _ in range(3):
                with pytest.raises(TooManyPageTokens, match="5 page tokens are valid"):
                    await store.add(b"")
        clock.now += VALID_S
        assert await stores[0].find(await stores[1].add(b"new")) == PageTokenRow(
            int(clock.now) + VALID_S, b"new"
        )
        assert await first.read(count) == 1
