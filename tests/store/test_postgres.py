"""The PostgreSQL server that tests of the store run on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.store.postgres import PostgresServer

SHORT_S = 1


def test_every_test_has_an_empty_database_of_its_own(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    other = postgres_server.create_database()
    with psycopg.connect(postgres_url) as ours, psycopg.connect(other) as theirs:
        ours.execute("CREATE TABLE kept (number integer)")
        ours.commit()
        tables = "SELECT count(*) FROM pg_tables WHERE tablename = 'kept'"
        assert ours.execute(tables).fetchone() == (1,)
        assert theirs.execute(tables).fetchone() == (0,)
    postgres_server.drop_database(other)


def test_the_test_server_listens_on_a_socket_only_and_never_runs_as_root(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
    owner = (Path(str(conninfo_to_dict(postgres_url)["host"])) / "data").stat().st_uid
    assert owner != 0
    assert os.geteuid() in (0, owner)


def test_another_process_uses_the_same_url(postgres_url: str) -> None:
    program = (
        "import psycopg, sys;"
        " print(psycopg.connect(sys.argv[1]).execute('SELECT 41 + 1').fetchone()[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, postgres_url], capture_output=True, text=True, check=True
    )
    assert done.stdout == "42\n"


def test_committed_rows_survive_a_stop(postgres_server: PostgresServer, postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS number")
    with postgres_server.stopped(), pytest.raises(psycopg.OperationalError):
        psycopg.connect(postgres_url)
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT number FROM kept").fetchone() == (7,)


def test_a_paused_server_neither_answers_nor_refuses(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    with psycopg.connect(postgres_url) as connection:
        with postgres_server.paused(), pytest.raises(psycopg.errors.ConnectionTimeout):
            psycopg.connect(postgres_url, connect_timeout=SHORT_S)
        assert connection.execute("SELECT 1").fetchone() == (1,)
