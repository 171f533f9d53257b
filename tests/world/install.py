"""Puts the world in place of the clock, the threads, the entropy and the locks of this interpreter.

The product is imported after this, and has no part of it: its functions hold `time.time` as a
default, and its modules name the threads that they use.
"""

from __future__ import annotations

import concurrent.futures
import fcntl
import gc
import importlib
import os
import pkgutil
import random
import signal
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any, Final

from tests.world import connections, leases, threads
from tests.world.network import ServerSocket
from tests.world.simulation import Process

_REAL_TIME: Final = time.time
_REAL_MONOTONIC: Final = time.monotonic
_REAL_PERF_COUNTER: Final = time.perf_counter
_REAL_THREAD_TIME: Final = time.thread_time
_REAL_SLEEP: Final = time.sleep
_REAL_URANDOM: Final = os.urandom
_REAL_FLOCK: Final = fcntl.flock
_REAL_CONNECT: Final = sqlite3.connect
_REAL_CREATE_SERVER: Final = socket.create_server
_REAL_SIGNAL: Final = signal.signal
_REAL_EXIT: Final = os._exit
_MOST_RESULTS: Final = 100_000
_WORKS: Final = count()
_WORK_S: Final = 0.0005
_LOOPBACK: Final = "127.0.0.1"
_REAL_GETPID: Final = os.getpid
_THREADING: Final = SimpleNamespace(
    **{
        **vars(threading),
        "Thread": threads.SimulatedThread,
        "Lock": threads.SimulatedLock,
        "Condition": threads.SimulatedCondition,
        "Event": threads.SimulatedEvent,
        "BoundedSemaphore": threads.SimulatedSemaphore,
        "Semaphore": threads.SimulatedSemaphore,
    }
)


class _SeededRandom(random.Random):
    """`random.Random`, whose seed is drawn by the simulation unless it is given."""

    def __init__(self, x: Any = None) -> None:
        simulation = threads.active_simulation()
        if x is None and simulation is not None:
            x = simulation.entropy.getrandbits(64)
        super().__init__(x)


_STAND_INS: Final[dict[int, Any]] = {
    id(random.Random): _SeededRandom,
    id(threading): _THREADING,
    id(threading.Thread): threads.SimulatedThread,
    id(concurrent.futures.ThreadPoolExecutor): threads.SimulatedExecutor,
}


def install() -> None:
    """Replace what the world decides, and import the product."""
    time.time = _time
    time.monotonic = time.perf_counter = _monotonic
    time.time_ns = lambda: round(_time() * 1e9)
    time.monotonic_ns = time.perf_counter_ns = lambda: round(_monotonic() * 1e9)
    time.thread_time = _thread_time
    time.sleep = _sleep  # type: ignore[assignment]
    os.urandom = _urandom
    random._urandom = _urandom  # type: ignore[attr-defined]
    fcntl.flock = _flock
    sqlite3.connect = _connect  # type: ignore[assignment]
    socket.create_server = _create_server
    signal.signal = _signal  # type: ignore[assignment]
    os._exit = _exit  # type: ignore[assignment]
    # A collection runs destructors at an instant that no seed decides; there is none.
    gc.disable()
    gc.enable = lambda: None
    os.getpid = _getpid
    concurrent.futures._base.threading = _THREADING  # type: ignore[assignment, attr-defined]
    import warpseal

    names = [module.name for module in pkgutil.walk_packages(warpseal.__path__, "warpseal.")]
    for name in names:
        if not name.endswith("__main__"):
            importlib.import_module(name)
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "warpseal":
            _replace_classes(module)
    _order_connections()
    _replace_reservations()
    _remember_signatures()
    connections.install()
    leases.watch()
    from tests.world import containers

    containers.watch()


def set_boot_id(boot_id: bytes) -> None:
    """Let the product see this id of the running boot of the system."""
    from warpseal.store import secrets

    secrets.read_boot_id = lambda: boot_id  # type: ignore[attr-defined]


def _order_connections() -> None:
    """Let the order of connections in a set not depend on their addresses in memory."""
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    from warpseal.peers.connection import PeerConnection
    from warpseal_simnet import listener

    def key(connection: PeerConnection) -> int:
        return hash((connection.expected_node_id, str(connection.endpoint)))

    def place(connection: Any) -> int:
        number: int = vars(connection).setdefault("place", next(places))
        return number

    places = count()
    PeerConnection.__hash__ = key  # type: ignore[assignment, method-assign]
    listener.PeerConnection.__hash__ = place  # type: ignore[assignment, method-assign]
    HttpToolsProtocol.__hash__ = place  # type: ignore[assignment, method-assign]


def _replace_reservations() -> None:
    """Let validators and nodes reserve ports of the world instead of those of the system."""
    from warpseal_simnet import listener, network, node

    for module in (listener, network, node):
        module.reserve_port = _reserve_port  # type: ignore[attr-defined]


def _reserve_port(port: int) -> ServerSocket:
    simulation = threads.active_simulation()
    assert simulation is not None
    return ServerSocket((_LOOPBACK, port or simulation.network.free_port()))


def _remember_signatures() -> None:
    """Compute each signature, and each check of one, once for all worlds of this process.

    They depend on nothing else than their arguments, and take a sixth of the time of a world.
    """
    from warpseal import bls

    for name in ("sign", "sign_possession", "verify", "parse_public_key"):
        setattr(bls, name, _remembering(getattr(bls, name)))


def _remembering(function: Callable[..., Any]) -> Callable[..., Any]:
    results: dict[tuple[bytes, ...], Any] = {}

    def call(*arguments: Any) -> Any:
        key = tuple(map(bytes, arguments))
        if key not in results:
            if len(results) > _MOST_RESULTS:
                results.clear()
            results[key] = function(*arguments)
        return results[key]

    return call


def _replace_classes(module: Any) -> None:
    for name, value in list(vars(module).items()):
        stand_in = _STAND_INS.get(id(value))
        if stand_in is not None:
            setattr(module, name, stand_in)
        elif isinstance(value, concurrent.futures.ThreadPoolExecutor):
            setattr(module, name, threads.SimulatedExecutor(1, name))


def _process() -> Process | None:
    simulation = threads.active_simulation()
    return None if simulation is None else simulation.current


def _time() -> float:
    process = _process()
    return _REAL_TIME() if process is None else process.unix_time()


def _monotonic() -> float:
    simulation = threads.active_simulation()
    return _REAL_MONOTONIC() if simulation is None else simulation.now


def _thread_time() -> float:
    """Return a time in which all work that is measured took equally long."""
    simulation = threads.active_simulation()
    return _REAL_THREAD_TIME() if simulation is None else next(_WORKS) * _WORK_S


def _sleep(seconds: float) -> None:
    if threads.active_simulation() is None:
        _REAL_SLEEP(seconds)
    else:
        threads.sleep(seconds)


def _urandom(count: int) -> bytes:
    simulation = threads.active_simulation()
    return _REAL_URANDOM(count) if simulation is None else simulation.entropy.randbytes(count)


def _signal(number: int, handler: Any) -> Any:
    if threads.active_simulation() is None:
        return _REAL_SIGNAL(number, handler)
    return signal.SIG_DFL


def _exit(code: int) -> None:
    """End the process that calls it, as a second signal does."""
    process = _process()
    if process is None:
        _REAL_EXIT(code)
    else:
        process.simulation.reach("ended by a second signal")
        process.kill()


def _getpid() -> int:
    process = _process()
    return _REAL_GETPID() if process is None else process.pid


def _create_server(address: Any, **keywords: Any) -> Any:
    simulation = threads.active_simulation()
    if simulation is None:
        return _REAL_CREATE_SERVER(address, **keywords)
    return ServerSocket((address[0], address[1] or simulation.network.free_port()))


# What the system takes back from a process that is killed: its locks, and its open databases.


def _flock(descriptor: Any, operation: int) -> None:
    _REAL_FLOCK(descriptor, operation)
    process = _process()
    if process is not None:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        inode = os.fstat(number).st_ino
        process.on_end.append(lambda: _unlock(number, inode))


def _unlock(descriptor: int, inode: int) -> None:
    try:
        if os.fstat(descriptor).st_ino == inode:
            _REAL_FLOCK(descriptor, fcntl.LOCK_UN)
    except OSError:
        pass


def _connect(*arguments: Any, **keywords: Any) -> sqlite3.Connection:
    process = _process()
    if process is None:
        opened: sqlite3.Connection = _REAL_CONNECT(*arguments, **keywords)
        return opened
    keywords["check_same_thread"] = False
    connection: sqlite3.Connection = _REAL_CONNECT(*arguments, **keywords)
    process.on_end.append(connection.close)
    return connection
