"""A connection to a PostgreSQL server that dies at each statement: nothing is lost or done twice.

Environment: DISK_POINTS is the number of statements of each work at which it dies, 0 for all.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, Self

import psycopg
import pytest

from tests.disks.index_works import INDEX_WORKS
from tests.disks.lossy_link import SOCKET_NAME, Loss, LossyLink
from tests.disks.service_works import SERVER_WORKS, SERVICE_WORKS, Operator, OperatorWork, operating
from tests.disks.test_sqlite_files import choose_points
from tests.disks.usage_works import USAGE_WORKS
from tests.disks.works import PAUSE_S, QUICK, STORE_WORKS, LivingProcess, Work, repeat
from tests.store.fixtures import store_at
from tests.store.postgres import PostgresServer
from tests.store.test_l1_records import blocks, transaction
from warpseal.store import locks
from warpseal.store.api_keys import list_keys
from warpseal.store.engine import MAY_BE_STORED
from warpseal.store.errors import StoreDown
from warpseal.warp.ids import P_CHAIN

WORKS: Final = (*STORE_WORKS, *USAGE_WORKS, *INDEX_WORKS, *SERVICE_WORKS, *SERVER_WORKS)
# A new database for each of them costs more than a file.
POINTS: Final = int(os.environ.get("DISK_POINTS", "3"))


@pytest.fixture(autouse=True)
def _no_renewal_by_a_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run of a work has the same messages, however long it takes."""
    monkeypatch.setattr(locks, "_RENEW_S", 3_600.0)
    monkeypatch.setattr(locks, "_WRITER_RENEW_S", 3_600.0)


class ServerSetup:
    """A work whose database is prepared once, and copied for each run."""

    def __init__(self, kind: type[Work], server: PostgresServer) -> None:
        self._kind = kind
        self._server = server
        self._folder = server.make_folder("link")
        self._template = server.create_database()
        kind(Path(), self._template).prepare()
        with self.run() as (work, link):
            assert asyncio.run(work.run(LivingProcess())) == list(range(work.count))
            # The messages of a run that nothing disturbs.
            self.counts = dict(link.counts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.drop_database(self._template)

    @contextmanager
    def run(self) -> Iterator[tuple[Work, LossyLink]]:
        """Give a copy of the database behind a link of its own."""
        name = self._template.removeprefix("postgresql://postgres@/").partition("?")[0]
        with psycopg.connect(self._server.url(), autocommit=True) as session:
            session.execute(f"CREATE DATABASE run TEMPLATE {name} STRATEGY file_copy".encode())
        direct = self._template.replace(f"/{name}?", "/run?")
        url = direct.replace(str(self._folder.parent), str(self._folder))
        try:
            with LossyLink(self._folder, self._folder.parent) as link:
                yield self._kind(Path(), url), link
        finally:
            (self._folder / SOCKET_NAME).unlink()
            self._server.drop_database(direct)


@pytest.mark.parametrize("loss", Loss)
@pytest.mark.parametrize("kind", WORKS)
def test_whichever_statement_ends_the_connection_all_is_stored_once(
    postgres_server: PostgresServer, kind: type[Work], loss: Loss
) -> None:
    with ServerSetup(kind, postgres_server) as setup:
        for at in choose_points(setup.counts[loss], POINTS):
            with setup.run() as (work, link):
                link.lose(loss, at)
                try:
                    acknowledged = asyncio.run(work.run(LivingProcess()))
                    assert acknowledged == list(range(work.count))
                    # Each run has the same messages.
                    assert link.has_lost
                    assert asyncio.run(work.read()) == acknowledged
                except BaseException as error:
                    error.add_note(f"{loss} {at} of {setup.counts[loss]}")
                    raise
                # A daemon waits for a server that does not answer.
                assert work.refusals == []


async def add_webhook(operator: Operator, number: int) -> str:
    """Add a webhook; return the text of the error."""
    return (await operator.add_webhook(f"https://receiver.example/{number}")).error


async def has_webhook(operator: Operator, number: int) -> bool:
    """Return whether the webhook is stored."""
    return f"https://receiver.example/{number}" in await operator.webhooks()


async def create_key(operator: Operator, number: int) -> str:
    """Create an API key by the command; return the text of the error."""
    return (await operator.create_key(f"caller-{number}")).error


async def has_key(operator: Operator, number: int) -> bool:
    """Return whether the key is stored."""
    keys = await operator.store.database.read(list_keys)
    return f"caller-{number}" in [key.name for key in keys]


async def append_block(operator: Operator, number: int) -> str:
    """Append a block of the P-Chain, a write that is not repeated; return the text of the error."""
    height = 2 * number + 1
    read, own = blocks(height, height), transaction(number, height)
    try:
        await operator.store.l1.append(P_CHAIN, read, [own], [])
    except StoreDown as error:
        return str(error)
    return ""


async def has_block(operator: Operator, number: int) -> bool:
    """Return whether the block is stored."""
    return await operator.store.l1.transaction(transaction(number, 0).tx_id) is not None


Add = Callable[[Operator, int], Coroutine[Any, Any, str]]
Has = Callable[[Operator, int], Coroutine[Any, Any, bool]]
CHANGES: Final = {
    "webhook": (add_webhook, has_webhook),
    "key": (create_key, has_key),
    "block": (append_block, has_block),
}


@pytest.mark.parametrize("loss", Loss)
@pytest.mark.parametrize(("add", "has"), CHANGES.values(), ids=CHANGES)
def test_the_error_of_an_outage_says_whether_the_change_may_have_been_stored(
    postgres_server: PostgresServer, add: Add, has: Has, loss: Loss
) -> None:
    """The outage begins at each statement of the change in turn."""

    async def judge(work: Work, link: LossyLink) -> Counter[tuple[str, bool]]:
        outcomes: Counter[tuple[str, bool]] = Counter()
        async with store_at(work.url, **QUICK) as store, operating(store, work.url) as operator:
            numbers = count()

            async def connect() -> None:
                error = await add(operator, next(numbers))
                while error or not store.status().is_up:
                    await asyncio.sleep(PAUSE_S)
                    error = await add(operator, next(numbers))
                link.mend()

            await connect()
            assert await add(operator, next(numbers)) == ""
            for at in range(1, link.counts[loss] + 1):
                await connect()
                number = next(numbers)
                link.lose(loss, at, is_outage=True)
                error = await add(operator, number)
                assert link.has_lost
                link.mend()
                is_stored = await repeat(partial(has, operator, number))
                doubt = "doubt" if MAY_BE_STORED in error else "refusal" if error else "success"
                outcomes[doubt, is_stored] += 1
        return outcomes

    setup = ServerSetup(OperatorWork, postgres_server)
    with setup, setup.run() as (work, link):
        outcomes = asyncio.run(judge(work, link))
    # Exactly the COMMIT leaves a doubt.
    assert outcomes["doubt", loss is Loss.REPLY] == 1
    assert outcomes["refusal", False] > 2
    assert outcomes.keys() <= {("doubt", loss is Loss.REPLY), ("refusal", False), ("success", True)}
