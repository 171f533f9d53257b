"""A world in one interpreter: processes with an event loop and threads each, one virtual clock, and
one random source that decides every order and every delay.

The world runs one callback, or one step of one thread, at a time. Nothing sleeps: when no callback
is ready, the clock jumps to the next event. Equal seeds give equal runs.
"""

from __future__ import annotations

import _thread
import asyncio
import heapq
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import nullcontext
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.world.leases import Leases
from tests.world.loop import SimulatedLoop
from tests.world.network import Network
from tests.world.steps import StepCounter, has_count
from tests.world.threads import SimulatedThread, SimulationError
from warpseal.errors import StartupError

if TYPE_CHECKING:
    from tests.world.server import DatabaseServer

UNIX_START_S: Final = 1_800_000_000.0
START_S: Final = 1_000.0
_MAX_S: Final = 7_200.0
_SLOW_THREADS_S: Final = 0.05
_FIRST_PID: Final = 101
# Callbacks that run while the clock stands still; more of them are a loop that never rests.
_MAX_CALLBACKS_AT_ONCE: Final = 200_000


class Process:
    """One process of the world.

    clock_offset_s: difference between its wall clock and that of the world.
    machine: name of what it shares its links with, which stays when it starts again.
    thread_delay_s: mean time that a job of a thread waits before it runs, and its result after it.
    backlog_bytes: most bytes of one connection that it had sent and the other side had not read.
    """

    def __init__(self, simulation: Simulation, name: str, machine: str) -> None:
        self.simulation = simulation
        self.name = name
        self.machine = machine
        self.is_alive = True
        self.pid = _FIRST_PID + len(simulation.processes)
        self.clock_offset_s = 0.0
        self._read_offset_s = 0.0
        self.thread_delay_s = 0.0005
        self.backlog_bytes = 0
        # It has what asyncio, aiohttp and the product call of a loop.
        self.loop = SimulatedLoop(simulation, self)  # type: ignore[abstract]
        # In the order of their starts, in which they end when the process is killed.
        self.threads: dict[SimulatedThread, None] = {}
        # Objects of the product in which work of callers waits.
        self.containers: list[object] = []
        # Called when the process ends, by itself or by a kill.
        self.on_end: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<process {self.name}>"

    def unix_time(self) -> float:
        """Return what the process reads from its wall clock."""
        if self.clock_offset_s != self._read_offset_s:
            self._read_offset_s = self.clock_offset_s
            self.simulation.reach("a clock jumped")
        return self.simulation.unix_time() + self.clock_offset_s

    def draw_thread_delay(self) -> float:
        """Return the time that a job of a thread waits."""
        if self.thread_delay_s >= _SLOW_THREADS_S:
            self.simulation.reach("a thread was slow")
        return self.simulation.rng.expovariate(1 / self.thread_delay_s)

    def start(self, main: Coroutine[Any, Any, Any]) -> None:
        """Run the main coroutine, and end the process with it."""
        task = self.loop.create_task(main, name=f"main of {self.name}")
        task.add_done_callback(self._on_main_done)

    def _on_main_done(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        self.simulation.note(f"{self.name} ended: {error!r}")
        # A start that is refused for a named reason ends with a sentence.
        if error is not None and not isinstance(error, StartupError):
            self.simulation.unhandled(self, {"message": "ended", "exception": error})
        self._end()

    def signal(self, number: int) -> None:
        """Deliver a signal to the handler of the process."""
        handler = self.loop.signal_handlers.get(number)
        if handler is not None and self.is_alive:
            self.loop.call_soon(*handler)

    def kill(self) -> None:
        """End the process at this instant: no callback, no thread and no write of it goes on."""
        if self.is_alive:
            self.simulation.note(f"{self.name} killed")
            self._end()

    def _end(self) -> None:
        self.is_alive = False
        self.loop.discard()
        for thread in tuple(self.threads):
            thread.kill()
        self.simulation.network.cut_off(self)
        for on_end in self.on_end:
            on_end()


class Simulation:
    """The clock, the queue of events, and the processes.

    now: time of all event loops, in seconds.
    rng: source of every choice of the world itself.
    entropy: source of what processes draw from the system.
    history: what happened, for the report of a seed that fails.
    reached: counts of the failures that took effect.
    """

    def __init__(self, seed: int) -> None:
        self.rng = Random(f"world {seed}")
        self.entropy = Random(f"entropy {seed}")
        self.now = START_S
        self.history: list[str] = []
        self.reached: Counter[str] = Counter()
        self.processes: list[Process] = []
        self.current: Process | None = None
        self.current_thread: SimulatedThread | None = None
        self.steps = 0
        self._events: list[tuple[float, float, int, Callable[[], None]]] = []
        self._event_count = 0
        self._ready: list[SimulatedLoop] = []
        self._hub_baton = _thread.allocate_lock()
        self._hub_baton.acquire()
        # What a killed process leaves is kept until the end, since destructors run code.
        self.remains: list[object] = []
        self._driver: Process | None = None
        # Counts what holds the loops of the product; None in most worlds, which it would slow down.
        self.step_counter = StepCounter() if has_count(seed) else None
        self.network = Network(self)
        # What does not hold.
        self.errors: list[str] = []
        # When the last fault began or ended.
        self.last_failure_at = self.now
        self.leases = Leases(self)
        # The server of the store, if it is on one.
        self.server: DatabaseServer | None = None

    def unix_time(self) -> float:
        """Return the time of clocks that are right."""
        return UNIX_START_S + self.now - START_S

    def unhandled(self, process: Process, context: Mapping[str, Any]) -> None:
        """Note an error that no code of a process handled."""
        error = context.get("exception")
        text = f"{process.name}: {context.get('message')}: {error!r}"
        if isinstance(error, BaseException):
            text += "\n" + "".join(traceback.format_exception(error))
        self.fail(f"an error that no code handled: {text}")

    def fail(self, text: str) -> None:
        """End the world, since something does not hold."""
        self.note(text)
        self.errors.append(text)

    def note(self, text: str) -> None:
        """Add a line to the history."""
        self.history.append(f"{self.now - START_S:10.4f}  {text}")

    def reach(self, point: str, count: int = 1) -> None:
        """Count a fault that took effect."""
        self.reached[point] += count

    def note_failure(self) -> None:
        """Note that a fault begins or ends now."""
        self.last_failure_at = self.now

    def on_driver(self, callback: Callable[[], object]) -> None:
        """Run a callback in the loop of the process that drives the world."""
        assert self._driver is not None
        self._driver.loop.call_soon(callback)

    def process(self, name: str, machine: str = "") -> Process:
        """Return a new process.

        machine: empty for one of its own.
        """
        process = Process(self, name, machine or name)
        self.processes.append(process)
        return process

    def at(self, when: float, callback: Callable[[], None]) -> None:
        """Run a callback of the world at a time; events of one time run in random order."""
        self._event_count += 1
        event = (max(when, self.now), self.rng.random(), self._event_count, callback)
        heapq.heappush(self._events, event)

    def after(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Run a callback of the world after a delay."""
        self.at(self.now + delay_s, callback)

    def has_ready(self, loop: SimulatedLoop) -> None:
        """Note that a loop has callbacks that may run now."""
        self._ready.append(loop)

    def run(self, drive: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Run the coroutine that drives the world, and return its result."""
        self._driver = driver = self.process("driver")
        task = driver.loop.create_task(drive(), name="driver")
        try:
            with self.step_counter.tracing() if self.step_counter is not None else nullcontext():
                while not task.done() and not self.errors:
                    self._step()
        finally:
            self.stop()
        # A process that ends reports the errors of its tasks.
        if self.errors:
            raise SimulationError(self.errors[0])
        return task.result()

    def stop(self) -> None:
        """Kill every process."""
        for process in self.processes:
            if process.is_alive:
                process._end()

    def _step(self) -> None:
        events = self._events
        while events and events[0][0] <= self.now:
            heapq.heappop(events)[3]()
        if self._ready:
            position = self.rng.randrange(len(self._ready)) if len(self._ready) > 1 else 0
            loop = self._ready.pop(position)
            self._run_loop(loop)
            return
        if not events:
            raise SimulationError("every task of the world waits for ever")
        if self.now < events[0][0]:
            self.now, self.steps = events[0][0], 0
        if self.now > START_S + _MAX_S:
            raise SimulationError("the world does not end")

    def _run_loop(self, loop: SimulatedLoop) -> None:
        self.current = loop.process
        asyncio._set_running_loop(loop)
        try:
            self.steps += loop.run_ready()
        finally:
            asyncio._set_running_loop(None)
            self.current = None
        if self.steps > _MAX_CALLBACKS_AT_ONCE:
            raise SimulationError(f"{loop.process.name} does not rest: {loop.describe_ready()}")

    # The baton: either the hub or one thread runs.

    def resume(self, thread: SimulatedThread) -> None:
        """Let a thread run until it blocks or ends."""
        before = self.current, self.current_thread
        self.current, self.current_thread = thread.process, thread
        thread.baton.release()
        self._hub_baton.acquire()
        self.current, self.current_thread = before

    def give_back(self) -> None:
        """Let the hub go on; called by the thread that runs."""
        self._hub_baton.release()
