"""The process that applies blocks and writes them into the index, one call after another.

Applying and writing keep a Python interpreter busy all the time. In a process of their own they leave the other
interpreter to the calls to nodes.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from multiprocessing import get_context
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from warpseal.errors import StartupError
from warpseal.index.checkpoint import ChainStatus
from warpseal.index.errors import IndexDamaged
from warpseal.index.rebuild import RebuildFailed, RebuildProgress, RowRebuilder
from warpseal.index.writer import IndexWriter
from warpseal.indexer.blocks import IndexingStopped
from warpseal.resources.chains import PrimaryChain
from warpseal.runtime.worker_process import initialize_worker
from warpseal.store.errors import StoreDown

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

Processors = Mapping[PrimaryChain, Any]
"""The processor of each chain, whose methods the worker runs."""
OpenIndex = Callable[[], tuple[IndexWriter, Processors, RowRebuilder]]
"""Opens the index and builds the processors; picklable for another process. Raises StartupError, StoreDown."""

# The garbage collector runs only between two calls.
GC_THRESHOLDS: Final = (50_000, 20, 100)
_REBUILD_STEP_S: Final = 1.0


class Worker:
    """Runs calls on the thread that has the index open. Used from one event loop.

    executor: has a single thread, in another process or in this one, in which `start` opened the index. on_exit: called
    if the process ended by itself; every later call fails.
    """

    def __init__(self, executor: Executor, on_exit: Callable[[], None]) -> None:
        self._executor = executor
        self._on_exit = on_exit

    async def start(self, open_index: OpenIndex) -> None:
        """Open the index. Raises StartupError, IndexDamaged."""
        refusal = await self.call(_open, open_index)
        if refusal:
            raise StartupError(refusal)

    async def run(
        self, chain: PrimaryChain, method: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a method of a chain's processor, such as `PChainProcessor.write`; arguments and result are picklable."""
        return await self.call(_run, chain, method, args, kwargs)

    async def write_status(self, status: ChainStatus) -> None:
        """Write the status of a chain."""
        await self.call(_run, IndexWriter, IndexWriter.write_status, (status,), {})

    async def rebuild(self) -> RebuildProgress | None:
        """Rebuild rows from stored blocks that have none, for a second; return the progress, None at the end.

        Raises StoreDown, RebuildFailed.
        """
        return await self.call(_run, RowRebuilder, RowRebuilder.step, (_REBUILD_STEP_S,), {})

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a function of a module returns there, called between two calls of `run`."""
        call = partial(function, *args, **kwargs)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, call)
        except BrokenProcessPool:
            self._on_exit()
            raise


@asynccontextmanager
async def open_worker_process(on_exit: Callable[[], None]) -> AsyncIterator[Worker]:
    """Run a worker in a process of its own, which ends with this one; it is to be started."""
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=_initialize_process) as executor:
        try:
            yield Worker(executor, on_exit)
        finally:
            shutdown = partial(executor.shutdown, cancel_futures=True)
            await asyncio.get_running_loop().run_in_executor(None, shutdown)


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Collect no garbage within: the objects of a call live as long as the call, and hardly ever form cycles."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# What the executor's thread has opened, in `objects`: processors by chain, the others by class.
_state = threading.local()


def _initialize_process() -> None:
    initialize_worker()
    gc.set_threshold(*GC_THRESHOLDS)


def _open(open_index: OpenIndex) -> str:
    """Open the index; return the error as text, since not every error can be pickled. "": no error.

    Raises IndexDamaged, which can.
    """
    try:
        index, processors, rebuilder = open_index()
    except IndexDamaged:
        raise
    except (StartupError, StoreDown) as error:
        return str(error)
    _state.objects = {**processors, IndexWriter: index, RowRebuilder: rebuilder}
    return ""


def _run(key: Any, method: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
    """Run a method of an opened object. Every error that it raises is picklable."""
    failure: Exception
    try:
        with gc_disabled():
            return method(_state.objects[key], *args, **kwargs)
    except (IndexingStopped, RebuildFailed, IndexDamaged):
        raise
    except StoreDown as error:
        failure = StoreDown(error.reason)
    except Exception:
        # An error of any other kind may not be picklable, but its text is.
        log.debug("a call of the index worker failed", exc_info=True)
        failure = RuntimeError(traceback.format_exc())
    raise failure
