"""The event loop of one process: asyncio's interface on the clock and the network of the world."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from tests.world.threads import SimulatedExecutor

if TYPE_CHECKING:
    from contextvars import Context

    from tests.world.network import Channel
    from tests.world.simulation import Process, Simulation


class SimulatedTask(asyncio.Task[Any]):
    """A task whose place in a set does not depend on its address."""

    _count = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        SimulatedTask._count += 1
        self._place = SimulatedTask._count
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._place

    def __eq__(self, other: object) -> bool:
        return self is other


class SimulatedLoop(asyncio.AbstractEventLoop):
    """The loop of a process."""

    def __init__(self, simulation: Simulation, process: Process) -> None:
        self.simulation = simulation
        self.process = process
        self._ready: deque[asyncio.Handle] = deque()
        self._is_noted = False
        self._is_discarded = False
        self._executor: Executor | None = None
        self.signal_handlers: dict[int, tuple[Any, ...]] = {}
        # Those that are not done, those whose error no code has retrieved, and some others.
        self._futures: list[asyncio.Future[Any]] = []
        self._most_futures = 1000
        # Connections by the sockets of clients, which only carry them.
        self._channels: dict[int, Channel] = {}
        counter = simulation.step_counter
        is_product = process.name.startswith(("daemon", "index"))
        self._run = counter.run if counter is not None and is_product else asyncio.Handle._run

    def run_ready(self) -> int:
        """Run the callbacks that are ready now, in their order; return their number."""
        self._is_noted = False
        ready, count = self._ready, len(self._ready)
        for _ in range(count):
            if not ready:
                break
            handle = ready.popleft()
            if not handle._cancelled:
                self._run(handle)
        if ready:
            self._note_ready()
        return count

    def describe_ready(self) -> str:
        """Return the callbacks that are ready, for an error text."""
        return ", ".join(map(repr, list(self._ready)[:3]))

    @property
    def tasks(self) -> list[SimulatedTask]:
        """Tasks that are not done."""
        return [
            future
            for future in self._futures
            if isinstance(future, SimulatedTask) and not future.done()
        ]

    def discard(self) -> None:
        """Run nothing more: the process has ended."""
        self._report_lost_errors()
        self._is_discarded = True
        self.simulation.remains += [list(self._ready), self._futures]
        self._ready.clear()
        for task in self.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]

    def _report_lost_errors(self) -> None:
        """Note the errors of tasks and futures that no code has retrieved."""
        for future in self._futures:
            if _has_lost_error(future):
                self.call_exception_handler(
                    {"message": f"an error was lost: {future!r}", "exception": future.exception()}
                )

    def _note_ready(self) -> None:
        if not self._is_noted:
            self._is_noted = True
            self.simulation.has_ready(self)

    # Callbacks and time.

    def time(self) -> float:
        return self.simulation.now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if not self._is_discarded:
            self._ready.append(handle)
            self._note_ready()
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.simulation.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        if not self._is_discarded:
            self.simulation.at(when, lambda: self._fire(timer))
        return timer

    def _fire(self, timer: asyncio.TimerHandle) -> None:
        if not timer._cancelled and not self._is_discarded:
            self._ready.append(timer)
            self._note_ready()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def create_future(self) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.Future(loop=self)
        self._keep(future)
        return future

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Context | None = None
    ) -> Any:
        task = SimulatedTask(coro, loop=self, name=name, context=context)
        self._keep(task)
        return task

    def _keep(self, future: asyncio.Future[Any]) -> None:
        self._futures.append(future)
        if len(self._futures) > self._most_futures:
            self._futures = [
                future for future in self._futures if not future.done() or _has_lost_error(future)
            ]
            self._most_futures = 2 * len(self._futures) + 1000

    def is_running(self) -> bool:
        return not self._is_discarded

    def is_closed(self) -> bool:
        return self._is_discarded

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Note an error that no code handled; the world fails at its end."""
        if not self._is_discarded:
            self.simulation.unhandled(self.process, context)

    # Threads.

    def run_in_executor(self, executor: Executor | None, func: Any, *args: Any) -> Any:  # type: ignore[override]
        if executor is None:
            if self._executor is None:
                self._executor = SimulatedExecutor(8, "asyncio")
            executor = self._executor
        return asyncio.wrap_future(executor.submit(func, *args), loop=self)

    def set_default_executor(self, executor: Any) -> None:
        self._executor = executor

    # Signals.

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> None:  # type: ignore[override]
        self.signal_handlers[sig] = (callback, *args)

    def remove_signal_handler(self, sig: int) -> bool:
        return self.signal_handlers.pop(sig, None) is not None

    # The network.

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", int(port)))]

    async def sock_connect(self, sock: Any, address: Any) -> None:
        """Make a connection that `create_connection` hands out for this socket."""
        channel = await self.simulation.network.connect(self.process, (address[0], address[1]))
        self._channels[sock.fileno()] = channel

    async def create_connection(
        self,
        protocol_factory: Callable[[], Any],
        host: Any = None,
        port: Any = None,
        *,
        sock: Any = None,
        **_: Any,
    ) -> Any:
        if sock is not None:
            channel = self._channels.pop(sock.fileno())
            sock.close()
        else:
            channel = await self.simulation.network.connect(self.process, (host, port))
        return channel.open(protocol_factory())

    async def create_server(
        self,
        protocol_factory: Callable[[], Any],
        host: Any = None,
        port: Any = None,
        *,
        sock: Any = None,
        **_: Any,
    ) -> Any:
        if sock is not None:
            host, port = sock.getsockname()[:2]
        return self.simulation.network.listen(
            self.process, protocol_factory, host or "127.0.0.1", port or 0
        )


def _has_lost_error(future: asyncio.Future[Any]) -> bool:
    """Return whether a task or a future has an error that no code has retrieved."""
    has_error: bool = future._log_traceback
    return has_error
