"""The database server of a world: its connections, in virtual time.

A statement is run by a real server while the clock of the world stands still; its way there and its
reply take virtual time. A statement that waits for a lock waits in virtual time, so that the
process that holds the lock can go on. Limits of time are therefore kept here, and not by the
server.
"""

from __future__ import annotations

import fcntl
import re
import select
import termios
from collections.abc import Callable, Generator
from enum import StrEnum
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import psycopg
from psycopg import waiting
from psycopg.conninfo import make_conninfo

from tests.world.cluster import SEARCH_PATH, BackendState, Cluster
from tests.world.threads import ProcessKilled

if TYPE_CHECKING:
    from tests.world.network import Link
    from tests.world.simulation import Process, Simulation

T = TypeVar("T")
Steps = Generator[float, None, T]
"""Work that takes virtual time: it yields seconds, and goes on after them, or when woken."""

ADDRESS: Final = "127.0.0.1", 5_432
URL: Final = f"postgresql://warpseal@{ADDRESS[0]}:{ADDRESS[1]}/store"
# By `tcp_user_timeout` and keepalives both sides give a connection up.
CONNECTION_LIFE_S: Final = 5.5
_CONNECT_TIMEOUT_S: Final = 2.0
_DEADLOCK_TIMEOUT_S: Final = 1.0
_LOOK_S: Final = 0.5
# psycopg tries for five seconds to cancel a statement, and waits for five more for its end.
_CANCEL_S: Final = 10.0
_LIMIT: Final = re.compile(r"(statement|lock)_timeout=(\d+)")
_OPTIONS: Final = (
    f"-c search_path={SEARCH_PATH} -c statement_timeout=0 -c lock_timeout=0"
    " -c deadlock_timeout=1h -c max_parallel_workers_per_gather=0"
)
_IN_TRANSACTION: Final = psycopg.pq.TransactionStatus.INTRANS
_IDLE: Final = psycopg.pq.TransactionStatus.IDLE
_NO_PIPELINE: Final = psycopg.pq.PipelineStatus.OFF
# A generator of psycopg that asks the server for nothing, unless a pipeline is in another one.
_BEGIN_PIPELINE: Final = "_enter_gen"


class Loss(StrEnum):
    """What a connection loses, and itself with it.

    REQUEST: a request, which the server never sees; REPLY: a reply; COMMIT: the reply to a commit.
    """

    REQUEST = "request"
    REPLY = "reply"
    COMMIT = "commit"


class Session:
    """A connection of a process.

    query: what the server was asked, until the reply has come.
    wake: lets the thread or task that waits for the reply go on.
    """

    def __init__(self, process: Process, pgconn: Any, link: Link, options: str) -> None:
        self.process = process
        self.pgconn = pgconn
        self.pid: int = pgconn.backend_pid
        self.link = link
        self.query: _Query | None = None
        self.wake: Callable[[], None] = do_nothing
        self.is_over = False
        limits = {name: float(seconds) for name, seconds in _LIMIT.findall(options)}
        self.statement_limit_s = limits.get("statement") or float("inf")
        self.lock_limit_s = limits.get("lock") or float("inf")

    def check(self) -> None:
        """Raise the error of a connection that has ended, or of a process that has."""
        if not self.process.is_alive:
            raise ProcessKilled
        if self.is_over:
            raise psycopg.OperationalError("server closed the connection unexpectedly")


class DatabaseServer:
    """The server of one world, with a database of its own.

    is_away: whether it refuses connections.
    lost_at: times at which a connection lost a message.
    """

    def __init__(self, simulation: Simulation, cluster: Cluster) -> None:
        self._simulation = simulation
        self._cluster = cluster
        self._database = cluster.create_database()
        self._sessions: dict[int, Session] = {}
        # Processes of the server that wait for a lock; None for one whose connection has ended.
        self._blocked: dict[int, Session | None] = {}
        self._losses: dict[Process, tuple[Loss, int]] = {}
        self._clock_s = 0.0
        self.is_away = False
        self.lost_at: list[float] = []

    def close(self) -> None:
        """Remove the database, and all connections to it."""
        for session in list(self._sessions.values()):
            session.pgconn.finish()
        self._cluster.drop_database(self._database)

    def stored_signatures(self) -> set[bytes]:
        """Return the signatures in the store."""
        return self._cluster.signatures(self._database)

    # Faults.

    def go_away(self) -> None:
        """End all connections, and refuse others until `come_back`."""
        self.is_away = True
        # Those that wait for locks first, so that they do not get them when the others end.
        for pid in [*self._blocked, *self._sessions]:
            self._cluster.terminate(pid)
            while self._cluster.states([pid])[pid] is not BackendState.GONE:
                self._cluster.pause()
            self._blocked.pop(pid, None)
        for session in list(self._sessions.values()):
            self._end(session)

    def come_back(self) -> None:
        """Take connections again."""
        self.is_away = False

    def break_connections(self, process: Process) -> None:
        """End the connections of a process on both sides."""
        for session in list(self._sessions.values()):
            if session.process is process:
                self._end(session)

    def lose(self, process: Process, loss: Loss, at: int) -> None:
        """Lose the request or reply number `at` of a process, counted from now."""
        self._losses[process] = loss, at

    # Connections.

    def open(
        self, kind: Any, process: Process, parameters: dict[str, Any]
    ) -> Steps[tuple[Any, Session]]:
        """Connect; return the connection of psycopg's class with its session."""
        link = self._simulation.network.link(process, ADDRESS)
        yield 2 * self._draw_delay(link)
        if link.is_cut:
            self._simulation.reach("server: connect over a cut link")
            yield _CONNECT_TIMEOUT_S
            if link.is_cut:
                raise psycopg.errors.ConnectionTimeout("connection timeout expired")
        if self.is_away:
            self._simulation.reach("server: connection refused")
            raise psycopg.OperationalError("connection failed: Connection refused")
        options = parameters["options"]
        place = {"host": self._cluster.folder, "user": "postgres", "dbname": self._database}
        name = parameters["application_name"]
        conninfo = make_conninfo(options=f"{options} {_OPTIONS}", application_name=name, **place)
        connection = waiting.wait_conn(kind._connect_gen(conninfo), interval=0.1)
        session = Session(process, connection.pgconn, link, options)
        if not any(other.process is process for other in self._sessions.values()):
            process.on_end.append(lambda: self.break_connections(process))
        self._sessions[session.pid] = session
        yield self._draw_delay(link)
        return connection, session

    def exchange(self, session: Session, work: Generator[Any, Any, T]) -> Steps[T]:
        """Let a generator of psycopg send requests and receive the replies; return its result."""
        session.check()
        if isinstance(work, GeneratorType) and work.__name__ == _BEGIN_PIPELINE:
            query = _Query(work, session.pgconn.socket)
            assert query.is_done
            return cast("T", query.result())
        pgconn = session.pgconn
        yield self._draw_delay(session.link)
        yield from self._cross(session)
        if self._is_due(session, Loss.REQUEST):
            self._lose(session, Loss.REQUEST)
        self._set_clock()
        was_in_transaction = pgconn.transaction_status == _IN_TRANSACTION
        session.query = query = _Query(work, pgconn.socket)
        yield from self._run(session, query)
        if pgconn.status == psycopg.pq.ConnStatus.OK and pgconn.pipeline_status != _NO_PIPELINE:
            self._wait_for_server(session)
        self._settle()
        is_commit = was_in_transaction and pgconn.transaction_status == _IDLE
        if self._is_due(session, Loss.REPLY) or (is_commit and self._is_due(session, Loss.COMMIT)):
            self._lose(session, Loss.COMMIT if is_commit else Loss.REPLY)
        yield self._draw_delay(session.link)
        yield from self._cross(session)
        session.query = None
        result: T = query.result()
        return result

    def interrupt(self, session: Session) -> Steps[None]:
        """Cancel what the server was asked, as psycopg does for a task that is cancelled."""
        query, session.query = session.query, None
        give_up_at = self._simulation.now + _CANCEL_S
        while query is not None and not session.is_over:
            if not session.link.is_cut:
                self._simulation.reach("server: statement cancelled")
                self._cancel(session, query)
                return
            if self._simulation.now >= give_up_at:
                self._end(session)
                return
            yield _LOOK_S

    def end(self, session: Session) -> None:
        """End a connection, as its process closes it."""
        self._end(session)

    def _run(self, session: Session, query: _Query) -> Steps[None]:
        """Run a query until the server has replied to it."""
        began_at = now = self._simulation.now
        blocked_at: float | None = None
        while not query.run(lambda: self._is_blocked(session)):
            now = self._simulation.now
            if blocked_at is None:
                self._simulation.reach("server: a statement waits for a lock")
                blocked_at = now
            error = self._find_limit(session, now - began_at, now - blocked_at)
            if error is not None:
                self._simulation.reach(f"server: {type(error).__name__}")
                self._cancel(session, query)
                raise error
            self._blocked[session.pid] = session
            self._settle()
            yield _LOOK_S
            session.check()
        self._blocked.pop(session.pid, None)

    def _find_limit(
        self, session: Session, statement_s: float, lock_s: float
    ) -> psycopg.Error | None:
        """Return the error of a statement that has waited for too long."""
        if lock_s >= _DEADLOCK_TIMEOUT_S and self._is_deadlocked(session.pid):
            return psycopg.errors.DeadlockDetected("deadlock detected")
        if lock_s >= session.lock_limit_s:
            return psycopg.errors.LockNotAvailable("canceling statement due to lock timeout")
        if statement_s >= session.statement_limit_s:
            return psycopg.errors.QueryCanceled("canceling statement due to statement timeout")
        return None

    def _is_deadlocked(self, pid: int) -> bool:
        """Return whether a process waits for itself by others that wait."""
        reached: set[int] = set()
        waiting_pids = [pid]
        while waiting_pids:
            for blocker in self._cluster.blockers(waiting_pids.pop()):
                if blocker == pid:
                    return True
                if blocker not in reached:
                    reached.add(blocker)
                    waiting_pids.append(blocker)
        return False

    def _cancel(self, session: Session, query: _Query) -> None:
        """Cancel a query, and read what the server says to it."""
        if not query.is_done:
            self._cluster.cancel(session.pid)
            query.run(lambda: False)
        self._blocked.pop(session.pid, None)
        self._settle()

    # What the server does in real time.

    def _is_blocked(self, session: Session) -> bool:
        return self._cluster.states([session.pid])[session.pid] is BackendState.BLOCKED

    def _settle(self) -> None:
        """Wait until all that waited for locks wait again, or have replied.

        Otherwise they would run beside the next statement of the world, in an order that no seed
        decides.
        """
        while self._blocked:
            states = self._cluster.states(list(self._blocked))
            if any(self._is_at_work(pid, state) for pid, state in states.items()):
                self._cluster.pause()
                continue
            released = [pid for pid, state in states.items() if state is not BackendState.BLOCKED]
            if not released:
                return
            for pid in released:
                session = self._blocked.pop(pid)
                if session is not None:
                    session.wake()

    def _is_at_work(self, pid: int, state: BackendState) -> bool:
        """Return whether a process of the server that was blocked runs on."""
        is_ending = self._blocked[pid] is None and state is BackendState.IDLE
        return is_ending or state is BackendState.RUNNING

    def _wait_for_server(self, session: Session) -> None:
        """Wait until the server has done all that was sent, as the replies come later."""
        while True:
            # In this order: a server that has read everything is not idle until it has done it.
            has_read_all = not _unread_bytes(session.pgconn.socket)
            state = self._cluster.states([session.pid])[session.pid]
            if state is BackendState.BLOCKED:
                self._blocked[session.pid] = session
                return
            if state is not BackendState.RUNNING and has_read_all:
                return
            self._cluster.pause()

    def _end(self, session: Session) -> None:
        """End a connection, and wait for the process of the server.

        If that waits for a lock, it does not notice, and goes on as soon as it has the lock.
        """
        if session.is_over:
            return
        session.is_over = True
        del self._sessions[session.pid]
        session.pgconn.finish()
        session.wake()
        self._blocked.pop(session.pid, None)
        while True:
            state = self._cluster.states([session.pid])[session.pid]
            if state is BackendState.BLOCKED:
                self._simulation.reach("server: a statement outlives its connection")
                self._blocked[session.pid] = None
            if state in (BackendState.BLOCKED, BackendState.GONE):
                break
            self._cluster.pause()
        self._settle()

    def _set_clock(self) -> None:
        if self._clock_s != self._simulation.now:
            self._clock_s = self._simulation.now
            self._cluster.set_clock(self._database, self._simulation.unix_time())

    # The network.

    def _cross(self, session: Session) -> Steps[None]:
        """Wait until the link is whole. Raises the error of a connection that ends before."""
        while session.link.is_cut and not session.is_over:
            self._simulation.reach("server: bytes held by a cut link")
            yield _LOOK_S
        session.check()

    def _is_due(self, session: Session, loss: Loss) -> bool:
        """Count what can be lost; return whether this is."""
        due, count = self._losses.get(session.process, (None, 0))
        if due is not loss:
            return False
        if count > 1:
            self._losses[session.process] = loss, count - 1
            return False
        del self._losses[session.process]
        return True

    def _lose(self, session: Session, loss: Loss) -> None:
        self._simulation.reach(f"server: lost {loss}")
        self.lost_at.append(self._simulation.now)
        self._end(session)
        session.check()

    def _draw_delay(self, link: Link) -> float:
        return self._simulation.network.draw_delay(link)


class _Query:
    """A generator of psycopg that runs on a socket in real time."""

    def __init__(self, work: Generator[Any, Any, Any], descriptor: int) -> None:
        self._work = work
        self._poll = select.poll()
        self._descriptor = descriptor
        self._events = 0
        self._result: Any = None
        self._error: Exception | None = None
        self.is_done = False
        self._send(None)

    def result(self) -> Any:
        """Return the result of the generator, or raise its error."""
        if self._error is not None:
            raise self._error
        return self._result

    def run(self, is_blocked: Callable[[], bool]) -> bool:
        """Let it run to its end; return False as soon as it is blocked."""
        timeout_ms = 2
        while not self.is_done:
            ready = self._poll.poll(timeout_ms)
            if ready:
                self._send(_ready(ready[0][1]))
            elif is_blocked():
                return False
            else:
                timeout_ms = min(2 * timeout_ms, 50)
        return True

    def _send(self, ready: int | None) -> None:
        try:
            state = self._work.send(ready)
        except StopIteration as stop:
            self._result, self.is_done = stop.value, True
        except Exception as error:
            self._error, self.is_done = error, True
        else:
            reads, writes = state & waiting.Wait.R, state & waiting.Wait.W
            events = (select.POLLIN if reads else 0) | (select.POLLOUT if writes else 0)
            self._poll.register(self._descriptor, events)


def _ready(events: int) -> int:
    ready = 0
    if events & ~select.POLLOUT:
        ready |= waiting.Ready.R
    if events & select.POLLOUT:
        ready |= waiting.Ready.W
    return ready


def _unread_bytes(descriptor: int) -> int:
    """Return how many bytes the server has not read yet."""
    return int.from_bytes(fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)), "little")


def do_nothing() -> None:
    """Stand for the wake of a session without a thread or task that waits."""
