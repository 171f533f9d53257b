"""A connection to a PostgreSQL server that dies at each statement: nothing is lost or done twice.

Environment: DISK_POINTS is the number of statements of each work at which it dies, 0 for all.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

import psycopg
import pytest

from tests.disks.lossy_link import SOCKET_NAME, Loss, LossyLink
from tests.disks.test_sqlite_files import choose_points
from tests.disks.works import WORKS, Work
from tests.store.postgres import PostgresServer

# A new database for each of them costs more than a file.
POINTS: Final = int(os.environ.get("DISK_POINTS", "3"))


class LivingProcess:
    """A process that is not killed."""

    is_killed = False

    def kill(self) -> None:
        """Only a disk ends its process."""


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
    losses = 0
    with ServerSetup(kind, postgres_server) as setup:
        for at in choose_points(setup.counts[loss], POINTS):
            with setup.run() as (work, link):
                link.lose(loss, at)
                try:
                    acknowledged = asyncio.run(work.run(LivingProcess()))
                    assert acknowledged == list(range(work.count))
                    losses += link.has_lost
                    assert asyncio.run(work.read()) == acknowledged
                except BaseException as error:
                    error.add_note(f"{loss} {at}")
                    raise
                # A daemon waits for a server that does not answer.
                assert work.refusals == []
    assert losses
