"""The real PostgreSQL server of all worlds of a command: a database for each world, and a control
connection that sees what the server's processes wait for.

It runs in real time, and so fast that no time passes in the world meanwhile. What worlds must not
see of it is its clock: `clock_timestamp` of a world's database is read from a file.
"""

from __future__ import annotations

import select
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

import psycopg

from tests.store.postgres import PostgresServer

_TEMPLATE: Final = "world"
# The schema of all tables of a world, so that its functions come before those of PostgreSQL.
SEARCH_PATH: Final = "world,pg_catalog"
_SET_UP: Final = """
CREATE SCHEMA world;
CREATE FUNCTION world.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
  'SELECT to_timestamp(pg_read_file(current_database()::text)::float8)'
"""
_STATES: Final = """
SELECT pid, cardinality(pg_blocking_pids(pid)) > 0, wait_event
FROM pg_stat_activity
WHERE pid = ANY(%s)
"""
_PAUSE_S: Final = 0.0003


class BackendState(StrEnum):
    """What a process of the server does."""

    BLOCKED = "blocked"
    IDLE = "idle"
    RUNNING = "running"
    GONE = "gone"


class Cluster:
    """The server, with the interface that worlds need of it."""

    def __init__(self) -> None:
        self._server = PostgresServer()
        self._owner_pid = _real_pid()
        self._controls: dict[int, psycopg.Connection[tuple[object, ...]]] = {}
        self._databases = 0

    def start(self) -> None:
        """Start the server, and make the database that the others are copies of."""
        self._server.set_up()
        # A template is copied while it has no connection.
        control = self._connect("postgres")
        control.execute(f"CREATE DATABASE {_TEMPLATE} TEMPLATE template0 STRATEGY file_copy")
        control.close()
        template = self._connect(_TEMPLATE)
        template.execute(_SET_UP)
        template.close()

    def stop(self) -> None:
        """End the server and remove its files, unless it is that of another process."""
        if self._owner_pid == _real_pid():
            self._server.remove()

    @property
    def folder(self) -> str:
        """The folder of its socket."""
        return parse_qs(urlsplit(self._server.url()).query)["host"][0]

    def create_database(self) -> str:
        """Return the name of a new database."""
        self._databases += 1
        name = f"{_TEMPLATE}_{_real_pid()}_{self._databases}"
        self._control.execute(f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE} STRATEGY file_copy")
        return name

    def drop_database(self, name: str) -> None:
        """Remove a database, and the connections to it."""
        self._control.execute(f"DROP DATABASE {name} WITH (FORCE)")
        self._clock_file(name).unlink(missing_ok=True)

    def signatures(self, name: str) -> set[bytes]:
        """Return the signatures in the store of a database."""
        connection = self._connect(name)
        rows = connection.execute("SELECT signature FROM world.signatures").fetchall()
        connection.close()
        return {bytes(signature) for (signature,) in rows if isinstance(signature, bytes)}

    def set_clock(self, name: str, unix_s: float) -> None:
        """Let the clock of a database show a time."""
        self._clock_file(name).write_text(repr(unix_s))

    def states(self, pids: list[int]) -> dict[int, BackendState]:
        """Return what processes of the server do now."""
        states = dict.fromkeys(pids, BackendState.GONE)
        for pid, is_blocked, event in self._control.execute(_STATES, (pids,)).fetchall():
            assert isinstance(pid, int)
            if is_blocked:
                states[pid] = BackendState.BLOCKED
            elif event == "ClientRead":
                states[pid] = BackendState.IDLE
            else:
                states[pid] = BackendState.RUNNING
        return states

    def blockers(self, pid: int) -> list[int]:
        """Return the processes for whose locks a process waits."""
        row = self._control.execute("SELECT pg_blocking_pids(%s)", (pid,)).fetchone()
        assert row is not None
        assert isinstance(row[0], list)
        return row[0]

    def cancel(self, pid: int) -> None:
        """Cancel the statement of a process."""
        self._control.execute("SELECT pg_cancel_backend(%s)", (pid,))

    def terminate(self, pid: int) -> None:
        """End a process, and its connection with it."""
        self._control.execute("SELECT pg_terminate_backend(%s)", (pid,))

    def pause(self) -> None:
        """Let the server work for a moment of real time."""
        select.select([], [], [], _PAUSE_S)

    @property
    def _control(self) -> psycopg.Connection[tuple[object, ...]]:
        # Processes of the command, which are forks, have a connection each.
        pid = _real_pid()
        if pid not in self._controls:
            self._controls[pid] = self._connect("postgres")
        return self._controls[pid]

    def _connect(self, database: str) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.Connection.connect(
            host=self.folder, user="postgres", dbname=database, autocommit=True
        )

    def _clock_file(self, name: str) -> Path:
        return Path(self.folder) / "data" / name


_running: list[Cluster] = []


def start_cluster() -> None:
    """Start the server of all worlds that this command and its forks run. Raises OSError."""
    cluster = Cluster()
    try:
        cluster.start()
    except BaseException:
        cluster.stop()
        raise
    _running.append(cluster)


def stop_cluster() -> None:
    """End the server, if this process has started one."""
    while _running:
        _running.pop().stop()


def has_cluster() -> bool:
    """Return whether the server runs."""
    return bool(_running)


def running_cluster() -> Cluster:
    """Return the server of all worlds."""
    return _running[-1]


def _real_pid() -> int:
    return int(Path("/proc/self").readlink().name)
