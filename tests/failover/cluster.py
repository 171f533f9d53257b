"""Three PostgreSQL servers under Patroni with etcd, on the loopback address, from Debian's
packages.

Source of truth: Patroni 3.0 `docs/patroni_configuration.rst`. The servers refuse root, and run as
an unprivileged user.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psycopg

from tests.store.postgres import children_of, reachable_folder, signal_all, unprivileged_user

INSTALL = "apt-get install patroni etcd-server python3-etcd postgresql-15 pgbouncer"
_BINARIES = Path("/usr/lib/postgresql/15/bin")
_PROGRAMS = ("etcd", "patroni", str(_BINARIES / "postgres"))
_DATABASE = "warpseal"
# A failover takes as long as the lease of the primary, if the whole machine is lost. Patroni allows
# no shorter one.
_TTL_S = 20
_START_S = 120.0
_POLL_S = 0.05


def missing_programs() -> list[str]:
    """Return the programs that are not installed."""
    return [program for program in _PROGRAMS if shutil.which(program) is None]


@dataclass
class Member:
    """One server, and the Patroni that runs it.

    public_port: port at which the other members reach the server.
    """

    name: str
    folder: Path
    port: int
    rest_port: int
    public_port: int
    patroni: subprocess.Popen[bytes] | None = None

    def url(self, host: str = "127.0.0.1") -> str:
        """Return the URL of this server only."""
        return f"postgresql://postgres:quiet@{host}:{self.port}/{_DATABASE}"

    def postgres_pids(self) -> list[int]:
        """Return the process ids of the server, its own first; none if it does not run."""
        with suppress(OSError, ValueError):
            pid = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
            return [pid, *children_of(pid)]
        return []


@dataclass
class Cluster:
    """Three members, which `start` starts."""

    folder: Path
    members: list[Member] = field(init=False)
    etcd_port: int = 0
    _etcd: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.members = []
        for number in range(3):
            port = _free_port()
            self.members.append(
                Member(f"pg{number}", self.folder / f"pg{number}", port, _free_port(), port)
            )

    def url(self, ports: Iterable[int] = ()) -> str:
        """Return the URL with all servers, as libpq reads it.

        ports: ports at which the servers are reached.
        """
        hosts = ",".join(
            f"127.0.0.1:{port}" for port in ports or (member.port for member in self.members)
        )
        return f"postgresql://postgres:quiet@{hosts}/{_DATABASE}"

    def start(self) -> None:
        """Start etcd and the members, and wait for a primary with two standbys."""
        peer_port, self.etcd_port = _free_port(), _free_port()
        peer, client = f"http://127.0.0.1:{peer_port}", f"http://127.0.0.1:{self.etcd_port}"
        words = [
            "etcd",
            "--name",
            "etcd",
            "--data-dir",
            str(self.folder / "etcd"),
            "--unsafe-no-fsync",
        ]
        words += [
            "--listen-peer-urls",
            peer,
            "--initial-advertise-peer-urls",
            peer,
            "--initial-cluster",
            f"etcd={peer}",
        ]
        words += ["--listen-client-urls", client, "--advertise-client-urls", client]
        self._etcd = self._run(words, "etcd")
        for member in self.members:
            member.folder.mkdir()
            _own(member.folder)
            (member.folder / "patroni.yml").write_text(json.dumps(self._config(member)))
            self.start_member(member)
            _wait(lambda: self.primary() is not None, "primary")
        _wait(lambda: self.standbys() == 2, "standbys")
        with psycopg.connect(
            self.members[0].url().replace(f"/{_DATABASE}", "/postgres"), autocommit=True
        ) as session:
            session.execute(f"CREATE DATABASE {_DATABASE}")

    def start_member(self, member: Member) -> None:
        """Start the Patroni of a member, which starts its server."""
        member.patroni = self._run(["patroni", str(member.folder / "patroni.yml")], member.name)

    def primary(self) -> Member | None:
        """Return the member that takes writes now."""
        for member in self.members:
            with suppress(psycopg.Error), connect(member, "postgres") as session:
                if session.execute("SELECT pg_is_in_recovery()").fetchone() == (False,):
                    return member
        return None

    def standbys(self) -> int:
        """Return how many standbys follow the primary; 0 while Patroni knows none that has all that
        was committed.
        """
        primary = self.primary()
        query = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
        with suppress(psycopg.Error, OSError):
            if primary is not None and "sync_standby" in self._roles(primary):
                with connect(primary, "postgres") as session:
                    return int(session.execute(query).fetchall()[0][0])
        return 0

    def kill(self, member: Member, *, with_patroni: bool) -> None:
        """Kill all processes of a server with SIGKILL, and its Patroni as well if the whole machine
        is lost.
        """
        if with_patroni and member.patroni is not None:
            member.patroni.kill()
            member.patroni.wait()
        signal_all(member.postgres_pids(), signal.SIGKILL)

    def stop(self) -> None:
        """End everything."""
        for member in self.members:
            self.kill(member, with_patroni=True)
        if self._etcd is not None:
            self._etcd.kill()
            self._etcd.wait()

    def log(self) -> str:
        """Return the last lines of all logs."""
        return "\n".join(
            f"== {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-20:])
            for path in sorted(self.folder.glob("*.log"))
        )

    def _roles(self, member: Member) -> list[str]:
        with urlopen(f"http://127.0.0.1:{member.rest_port}/cluster", timeout=2) as reply:
            return [item["role"] for item in json.load(reply)["members"]]

    def _run(self, words: Sequence[str], name: str) -> subprocess.Popen[bytes]:
        user, is_root = unprivileged_user(), os.geteuid() == 0
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={"PATH": os.environ["PATH"], "HOME": str(self.folder), "LC_ALL": "C.UTF-8"},
                user=user.pw_uid if is_root else None,
                group=user.pw_gid if is_root else None,
                extra_groups=[] if is_root else None,
                start_new_session=True,
            )

    def _config(self, member: Member) -> dict[str, object]:
        rest = f"127.0.0.1:{member.rest_port}"
        users = {"superuser": "postgres", "replication": "replicator", "rewind": "rewinder"}
        dcs = {
            "ttl": _TTL_S,
            "loop_wait": 1,
            "retry_timeout": 3,
            # A primary whose processes have ended is replaced at once.
            "primary_start_timeout": 0,
            # What was committed is on a standby, which alone becomes the next primary.
            "synchronous_mode": True,
            "postgresql": {
                "use_pg_rewind": True,
                "use_slots": True,
                "parameters": {"wal_log_hints": "on", "max_connections": 100},
            },
        }
        return {
            "scope": "warpseal",
            "name": member.name,
            "restapi": {"listen": rest, "connect_address": rest},
            "etcd3": {"host": f"127.0.0.1:{self.etcd_port}"},
            "bootstrap": {
                "dcs": dcs,
                "initdb": [{"encoding": "UTF8"}, {"locale": "C"}],
                "pg_hba": [
                    "host all all 127.0.0.1/32 md5",
                    "host replication all 127.0.0.1/32 md5",
                ],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{member.port}",
                "connect_address": f"127.0.0.1:{member.public_port}",
                "data_dir": str(member.folder / "data"),
                "bin_dir": str(_BINARIES),
                "pgpass": str(member.folder / "pgpass"),
                "authentication": {
                    role: {"username": name, "password": "quiet"} for role, name in users.items()
                },
                # Processes are killed here and not machines: the system's page cache survives.
                "parameters": {
                    "unix_socket_directories": str(member.folder),
                    "shared_buffers": "32MB",
                    "fsync": "off",
                },
            },
        }


@contextmanager
def new_cluster() -> Iterator[Cluster]:
    """Return a cluster that is not started, and end it."""
    folder = reachable_folder()
    _own(folder)
    cluster = Cluster(folder)
    try:
        yield cluster
    except BaseException:
        print(cluster.log())
        raise
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def connect(member: Member, database: str = _DATABASE) -> psycopg.Connection[tuple[Any, ...]]:
    """Return a session of one server, whatever it is."""
    return psycopg.connect(
        member.url().replace(f"/{_DATABASE}", f"/{database}"),
        autocommit=True,
        connect_timeout=2,
        options="-c statement_timeout=3s",
    )


def _own(folder: Path) -> None:
    if os.geteuid() == 0:
        user = unprivileged_user()
        os.chown(folder, user.pw_uid, user.pw_gid)


def _free_port() -> int:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port: int = reserved.getsockname()[1]
        return port


def _wait(condition: Callable[[], bool], name: str) -> None:
    deadline = time.monotonic() + _START_S
    while not condition():
        assert time.monotonic() < deadline, f"no {name} after {_START_S:g} s"
        time.sleep(_POLL_S)
