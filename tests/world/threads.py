"""Threads of the world, in place of those of `threading` and `concurrent.futures`.

Each is a real thread, but only one runs at a time: it goes on until it waits, and the world decides
when it runs again. Locks and conditions therefore need no atomic operation, and a job of an
executor takes a drawn time.
"""

from __future__ import annotations

import _thread
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.world.simulation import Process, Simulation

_active: list[Simulation] = []


class SimulationError(AssertionError):
    """The world came to a state that no real one reaches, or an invariant does not hold."""


class ProcessKilled(BaseException):
    """Unwinds the threads of a process that is killed."""


def active_simulation() -> Simulation | None:
    """Return the world that runs in this interpreter."""
    return _active[-1] if _active else None


def enter(simulation: Simulation) -> None:
    """Let the threads that are made from now on belong to a world."""
    _active.append(simulation)


def leave() -> None:
    """End what `enter` began."""
    _active.pop()


def _simulation() -> Simulation:
    assert _active, "no world runs"
    return _active[-1]


class SimulatedThread:
    """A thread of a process, with the interface of `threading.Thread`."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., Any] | None = None,
        name: str | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self.name = name or "thread"
        self.daemon = daemon
        self.ident: int | None = None
        self._target = target
        self._arguments = args, kwargs or {}
        self.baton = _thread.allocate_lock()
        self.baton.acquire()
        self.is_over = False
        self.is_killed = False
        self.is_waiting = False
        self._turn = 0
        self._joining: list[SimulatedThread] = []
        self.process: Process
        self.simulation: Simulation

    def start(self) -> None:
        """Let the thread begin in a moment."""
        process = _simulation().current
        assert process is not None, "a process of the world starts threads"
        self.begin_in(process)
        self.wake()

    def begin_in(self, process: Process) -> None:
        """Begin in a process when the thread is resumed for the first time."""
        self.process, self.simulation = process, process.simulation
        process.threads[self] = None
        _thread.start_new_thread(self._bootstrap, ())
        self.is_waiting = True

    def is_alive(self) -> bool:
        return not self.is_over

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of the thread."""
        if self.is_over:
            return
        thread = self.simulation.current_thread
        if thread is None:
            raise SimulationError(f"the event loop waits for the thread {self.name}")
        self._joining.append(thread)
        thread.block(timeout)

    def block(self, timeout_s: float | None = None) -> None:
        """Let others run until `wake`, or until the time is over; called by the thread itself."""
        if self.is_killed:
            raise ProcessKilled
        self._turn += 1
        self.is_waiting = True
        if timeout_s is not None:
            turn = self._turn
            self.simulation.after(max(0.0, timeout_s), lambda: self._resume(turn))
        self.simulation.give_back()
        self.baton.acquire()
        if self.is_killed:
            raise ProcessKilled

    def wake(self) -> None:
        """End a wait of the thread after a drawn time."""
        turn = self._turn
        delay_s = self.process.draw_thread_delay()
        self.simulation.after(delay_s, lambda: self._resume(turn))

    def kill(self) -> None:
        """Unwind the thread at once."""
        if not self.is_over and self.is_waiting:
            self.is_killed = True
            self._resume(self._turn)

    def _resume(self, turn: int) -> None:
        if self.is_waiting and turn == self._turn and not self.is_over:
            self.is_waiting = False
            self.simulation.resume(self)

    def _bootstrap(self) -> None:
        self.baton.acquire()
        arguments, keywords = self._arguments
        try:
            if not self.is_killed and self._target is not None:
                self._target(*arguments, **keywords)
        except ProcessKilled:
            pass
        except BaseException as error:
            if not self.is_killed:
                self.simulation.unhandled(self.process, {"message": self.name, "exception": error})
        self.is_over = True
        self.process.threads.pop(self, None)
        for thread in self._joining:
            thread.wake()
        self.simulation.give_back()


def _wait(waiting: deque[SimulatedThread], timeout_s: float | None, what: str) -> bool:
    """Block the current thread until it is taken from the queue; return False after the time."""
    simulation = _simulation()
    thread = simulation.current_thread
    if thread is None:
        raise SimulationError(f"the event loop waits for {what}")
    waiting.append(thread)
    try:
        thread.block(timeout_s)
    finally:
        is_late = thread in waiting
        if is_late:
            waiting.remove(thread)
    return not is_late


class SimulatedLock:
    """`threading.Lock`; the event loop never holds it for longer than a callback."""

    def __init__(self) -> None:
        self._is_held = False
        self._waiting: deque[SimulatedThread] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        while self._is_held:
            if not blocking or not _wait(
                self._waiting, None if timeout < 0 else timeout, "a lock of a thread"
            ):
                return False
        self._is_held = True
        return True

    def release(self) -> None:
        self._is_held = False
        if self._waiting:
            self._waiting.popleft().wake()

    def locked(self) -> bool:
        return self._is_held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class SimulatedCondition:
    """`threading.Condition`, whose lock is never contended: threads change only where they wait."""

    def __init__(self, lock: Any = None) -> None:
        self._waiting: deque[SimulatedThread] = deque()

    def acquire(self, *_: object) -> bool:
        return True

    def release(self) -> None:
        pass

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        pass

    def wait(self, timeout: float | None = None) -> bool:
        return _wait(self._waiting, timeout, "a condition")

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        until = None if timeout is None else _simulation().now + timeout
        while not (result := predicate()):
            left_s = None if until is None else until - _simulation().now
            if left_s is not None and left_s <= 0:
                break
            self.wait(left_s)
        return result

    def notify(self, n: int = 1) -> None:
        while n > 0 and self._waiting:
            self._waiting.popleft().wake()
            n -= 1

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class SimulatedEvent:
    """`threading.Event`."""

    def __init__(self) -> None:
        self._is_set = False
        self._condition = SimulatedCondition()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._condition.notify_all()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            self._condition.wait(timeout)
        return self._is_set


class SimulatedSemaphore:
    """`threading.BoundedSemaphore`."""

    def __init__(self, value: int = 1) -> None:
        self._value = value
        self._waiting: deque[SimulatedThread] = deque()

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        while self._value == 0:
            if not blocking or not _wait(self._waiting, timeout, "a semaphore"):
                return False
        self._value -= 1
        return True

    def release(self, n: int = 1) -> None:
        self._value += n
        while n and self._waiting:
            self._waiting.popleft().wake()
            n -= 1

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class SimulatedExecutor(Executor):
    """`ThreadPoolExecutor`, whose jobs and results take a drawn time."""

    def __init__(
        self, max_workers: int | None = None, thread_name_prefix: str = "", *_: Any, **__: Any
    ) -> None:
        self._max_workers = max_workers or 4
        self._name = thread_name_prefix
        # An executor of a module serves the processes of all worlds.
        self._pools: dict[Process, _Pool] = {}
        self._is_shut_down = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._is_shut_down:
            raise RuntimeError("cannot schedule new futures after shutdown")
        process = _simulation().current
        assert process is not None
        pool = self._pools.get(process)
        if pool is None:
            pool = self._pools[process] = _Pool(process, self._max_workers, self._name)
            process.on_end.append(partial(self._forget, process))
        future: Future[Any] = Future()
        pool.add(_Job(future, lambda: fn(*args, **kwargs)))
        return future

    def _forget(self, process: Process) -> None:
        self._pools.pop(process, None)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._is_shut_down = True


class _Job:
    """A call that runs in a thread."""

    def __init__(self, future: Future[Any], call: Callable[[], Any]) -> None:
        self.future = future
        self.call = call


class _Pool:
    """The threads of an executor in one process.

    A job waits for a drawn time before it runs, and its result for another one: what the job did
    stands before its caller learns of it.
    """

    def __init__(self, process: Process, max_workers: int, name: str) -> None:
        self._process = process
        self._simulation = process.simulation
        self._max_workers = max_workers
        self._name = name
        self._queue: deque[_Job] = deque()
        self._idle: list[_Worker] = []
        self._busy = 0

    def add(self, job: _Job) -> None:
        """Run a job as soon as a thread is free."""
        self._queue.append(job)
        if self._busy < self._max_workers:
            self._busy += 1
            self._begin()

    def _begin(self) -> None:
        if self._queue:
            job = self._queue.popleft()
            self._simulation.after(self._draw_delay(), lambda: self._run(job))
        else:
            self._busy -= 1

    def _run(self, job: _Job) -> None:
        if self._process.is_alive and job.future.set_running_or_notify_cancel():
            worker = self._idle.pop() if self._idle else _Worker(self, self._process, self._name)
            worker.run(job)
        else:
            self._begin()

    def finish(self, worker: _Worker, deliver: Callable[[], None]) -> None:
        """Give the result of a job to its caller, and the thread the next job."""
        self._idle.append(worker)
        self._simulation.after(self._draw_delay(), lambda: self._deliver(deliver))
        self._begin()

    def _deliver(self, deliver: Callable[[], None]) -> None:
        if not self._process.is_alive:
            self._simulation.reach("killed between the work of a thread and its result")
            return
        self._simulation.current, before = self._process, self._simulation.current
        deliver()
        self._simulation.current = before

    def _draw_delay(self) -> float:
        return self._process.draw_thread_delay()


class _Worker(SimulatedThread):
    """A thread of an executor; it waits between its jobs."""

    def __init__(self, pool: _Pool, process: Process, name: str) -> None:
        super().__init__(target=self._work, name=name)
        self._pool = pool
        self._job: _Job | None = None
        self.begin_in(process)

    def run(self, job: _Job) -> None:
        """Run a job now."""
        self._job = job
        self._resume(self._turn)

    def _work(self) -> None:
        while True:
            job, self._job = self._job, None
            assert job is not None
            try:
                result = job.call()
            except ProcessKilled:
                raise
            except BaseException as error:
                self._pool.finish(self, partial(job.future.set_exception, error))
            else:
                self._pool.finish(self, partial(job.future.set_result, result))
            self.block()


def sleep(seconds: float) -> None:
    """Stand in for `time.sleep`."""
    simulation = _simulation()
    if simulation.current_thread is not None:
        simulation.current_thread.block(seconds)
    elif seconds:
        raise SimulationError("the event loop sleeps")
