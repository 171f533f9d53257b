"""psycopg's connections in a world: its own classes, whose waits take virtual time."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, TypeVar

import psycopg

from tests.world import threads
from tests.world.server import DatabaseServer, Session, Steps, do_nothing
from tests.world.threads import SimulationError

T = TypeVar("T")
_REAL_CONNECT = psycopg.connect


class SimulatedConnection(psycopg.Connection[Any]):
    """A connection of a thread."""

    session: Session

    @classmethod
    def connect(cls, conninfo: str = "", *, autocommit: bool = False, **parameters: Any) -> Any:
        simulation = threads.active_simulation()
        if simulation is None:
            return _REAL_CONNECT(conninfo, autocommit=autocommit, **parameters)
        server = _server()
        assert simulation.current is not None
        steps = server.open(cls, simulation.current, parameters)
        connection, session = _run_in_thread(steps, None)
        connection.session = session
        connection._autocommit = autocommit
        return connection

    def wait(self, gen: Any, *_: Any, **__: Any) -> Any:
        return _run_in_thread(_server().exchange(self.session, gen), self.session)

    def close(self) -> None:
        if threads.active_simulation() is not None:
            _server().end(self.session)
        super().close()


class SimulatedAsyncConnection(psycopg.AsyncConnection[Any]):
    """A connection of tasks."""

    session: Session

    @classmethod
    async def connect(  # type: ignore[override]
        cls, conninfo: str = "", *, autocommit: bool = False, cursor_factory: Any, **parameters: Any
    ) -> Any:
        simulation = threads.active_simulation()
        assert simulation is not None
        assert simulation.current is not None
        steps = _server().open(cls, simulation.current, parameters)
        connection, session = await _run_in_task(steps, None)
        connection.session = session
        connection._autocommit = autocommit
        connection.cursor_factory = cursor_factory
        return connection

    async def wait(self, gen: Any, *_: Any, **__: Any) -> Any:
        server = _server()
        try:
            return await _run_in_task(server.exchange(self.session, gen), self.session)
        except asyncio.CancelledError:
            await _run_in_task(server.interrupt(self.session), self.session)
            raise

    async def close(self) -> None:
        _server().end(self.session)
        await super().close()


def install() -> None:
    """Let the product make such connections."""
    psycopg.connect = SimulatedConnection.connect
    psycopg.AsyncConnection = SimulatedAsyncConnection  # type: ignore[misc]


def _server() -> DatabaseServer:
    simulation = threads.active_simulation()
    assert simulation is not None
    assert simulation.server is not None, "this world has no server"
    return simulation.server


def _run_in_thread(steps: Steps[T], session: Session | None) -> T:
    """Run the steps in the thread that waits for them."""
    simulation = threads.active_simulation()
    assert simulation is not None
    thread = simulation.current_thread
    looks = 0
    while True:
        try:
            seconds = next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
        if thread is None:
            # The event loop waits for the reply itself.
            looks += 1
            if looks > 10:
                raise SimulationError("the event loop waits for the database")
            continue
        if session is not None:
            session.wake = thread.wake
        thread.block(seconds)
        if session is not None:
            session.wake = do_nothing


async def _run_in_task(steps: Steps[T], session: Session | None) -> T:
    """Run the steps in the task that waits for them."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            seconds = next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
        goes_on = asyncio.Event()
        timer = loop.call_later(seconds, goes_on.set)
        if session is not None:
            session.wake = partial(_call_soon, loop, goes_on)
        await goes_on.wait()
        timer.cancel()
        if session is not None:
            session.wake = do_nothing


def _call_soon(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    loop.call_soon(event.set)
