"""Requests read replicas of the index, here a real hot standby, and never go back in time behind a
page token.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from tests.api.data import evm_history as h
from tests.api.data import samples as s
from tests.api.data.evm_fixtures import ask
from tests.eventually import until
from tests.index.fixtures import made_up_history, write_all
from tests.ledger import made_up_network as made_up
from tests.store.postgres import PostgresServer
from warpseal.api.data import evm_context
from warpseal.index import read_session
from warpseal.index.database import index_url
from warpseal.index.evm.database import evm_index_url
from warpseal.index.evm.reader import EvmIndex
from warpseal.index.index import Index
from warpseal.index.settings import IndexSettings
from warpseal.resources.chains import PrimaryChain
from warpseal.resources.queries import CLIENT_HEIGHTS, BlockQuery, ClientHeights, PageRequest
from warpseal.resources.text import NetworkText
from warpseal.store.errors import StoreDown

TOKENS = f"{h.PATH}/nfts/collections/{h.text(h.DOGS)}/tokens"


def query(url: str, text: str) -> Any:
    """Return the first value of a statement."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(text.encode()).fetchone()
        return None if row is None else row[0]


def height_in(headers: Any) -> int:
    """Return the height of the freshness of a response."""
    return int(headers["x-warpseal-index"].partition("height=")[2].partition(";")[0])


async def until_copied(primary: str, standby: str) -> None:
    """Wait until a standby has everything that its primary has written."""
    position = query(primary, "SELECT pg_current_wal_lsn()")
    await until(lambda: query(standby, f"SELECT pg_last_wal_replay_lsn() >= '{position}'"))


@contextmanager
def request_context() -> Iterator[ClientHeights]:
    """Stand for a request without a page token."""
    token = CLIENT_HEIGHTS.set(client := ClientHeights())
    yield client
    CLIENT_HEIGHTS.reset(token)


async def test_pages_come_from_a_standby_unless_it_is_behind_what_their_client_has_seen(
    tmp_path: Path,
    postgres_server: PostgresServer,
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = postgres_url.partition("@/")[2].partition("?")[0]
    # No indexer runs that could complete a page.
    monkeypatch.setattr(evm_context, "WAIT_S", 0.01)
    monkeypatch.setattr(read_session, "_WAIT_S", 60.0)
    blocks = h.facts_of(h.CHAIN)
    write_all(postgres_url, made_up.PARAMS, [record for record, _ in made_up_history(7, 30)])
    async with AsyncExitStack() as stack:
        with h.open_writer(tmp_path, settings=IndexSettings(postgres_url)) as writer:
            writer.begin(0, blocks[0].parent_hash)
            assert writer.candidates(blocks) == set()
            writer.write(blocks[:3])
            writer.write_status(h.status_of(h.CHAIN))
            standby = stack.enter_context(postgres_server.standby())
            standby_url = standby.url(name)
            settings = IndexSettings(postgres_url, read_urls=(standby_url,))
            setups = [
                await stack.enter_async_context(h.indexed_setup(tmp_path, settings=settings))
                for _ in range(3)
            ]
            first, second, third = (
                replace(setup, key_store=setups[0].key_store) for setup in setups
            )
            monkeypatch.setattr(read_session, "_WAIT_S", 0.5)
            index = await stack.enter_async_context(
                EvmIndex(evm_index_url(settings, None, h.CHAIN.blockchain_id), settings)
            )
            await until_copied(postgres_url, standby_url)
            query(standby_url, "SELECT pg_wal_replay_pause()")
            writer.write(blocks[3:])
        old = await ask(first, TOKENS, pageSize=1)
        assert (old.status, height_in(old.headers)) == (200, 2)
        # Reads outside of requests go to the primary, and what they show is never older later.
        (evm_chain,) = second.evm
        assert evm_chain.index is not None
        fresh = await evm_chain.index.progress()
        assert fresh is not None
        assert fresh.height == h.CHAIN.tip
        new = await ask(second, TOKENS, pageSize=1)
        assert height_in(new.headers) == h.CHAIN.tip
        # The first daemon has not seen so much, but its client has.
        assert (
            height_in((await ask(first, TOKENS, pageToken=old.body["nextPageToken"])).headers) == 2
        )
        next_page = await ask(first, TOKENS, pageToken=new.body["nextPageToken"])
        assert (next_page.status, height_in(next_page.headers)) == (200, h.CHAIN.tip)
        without_heights = replace(
            second, evm=(await without_replicas(stack, tmp_path, postgres_url)).evm
        )
        bare = await ask(without_heights, TOKENS, pageSize=1)
        assert (
            height_in((await ask(third, TOKENS, pageToken=old.body["nextPageToken"])).headers) == 2
        )
        assert (
            height_in((await ask(third, TOKENS, pageToken=bare.body["nextPageToken"])).headers)
            == h.CHAIN.tip
        )
        query(standby_url, "SELECT pg_wal_replay_resume()")
        await until_copied(postgres_url, standby_url)
        places = index_url(settings, None)
        primary_chains = Index(places, NetworkText(made_up.NETWORK_ID, s.CHAINS), settings)
        await primary_chains.refresh()
        with request_context():
            assert (await primary_chains.blocks(BlockQuery(PrimaryChain.P), PageRequest(1))).items
        with postgres_server.stopped():
            reply = await ask(first, TOKENS, pageToken=new.body["nextPageToken"])
            assert (reply.status, reply.body["tokens"]) == (200, next_page.body["tokens"])
            with request_context():
                page = await primary_chains.blocks(BlockQuery(PrimaryChain.P), PageRequest(1))
                assert page.items[0].block_number == str(primary_chains.progress()[0].height)
            with pytest.raises(StoreDown):
                await primary_chains.refresh()
        await primary_chains.__aexit__()
        # A standby that does not answer delays one request, which the primary serves.
        with request_context():
            assert (await index.token(h.DOGS, 1)).items
            with standby.paused():
                for _ in range(3):
                    assert (await index.token(h.DOGS, 1)).items


async def without_replicas(stack: AsyncExitStack, folder: Path, url: str) -> Any:
    """Return an API whose daemon knows of no replicas."""
    return await stack.enter_async_context(h.indexed_setup(folder, settings=IndexSettings(url)))


async def test_a_dead_replica_costs_one_attempt_a_minute(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(read_session, "time", SimpleNamespace(monotonic=lambda: clock.now))
    attempts = 0

    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0, family=socket.AF_INET)
    port = server.sockets[0].getsockname()[1]
    dead_url = f"postgresql://me@127.0.0.1:{port}/index?sslmode=disable&gssencmode=disable"
    settings = IndexSettings(postgres_url, read_urls=(dead_url,))
    with h.open_writer(tmp_path, settings=settings) as writer:
        h.write_history(writer)
    url = evm_index_url(settings, None, h.CHAIN.blockchain_id)
    async with server, EvmIndex(url, settings) as index:
        with request_context() as client:
            for minute in range(3):
                clock.now = minute * read_session.RETRY_S
                pages = await asyncio.gather(
                    *(index.tokens(h.DOGS, PageRequest(3)) for _ in range(20))
                )
                assert [len(page.items) for page in pages] == [3] * 20
                assert attempts == minute + 1
            assert list((client.for_token() or {}).values()) == [h.CHAIN.tip]
        assert len((await index.tokens(h.DOGS, PageRequest(3))).items) == 3
    assert attempts == 3
