"""Where blocks are applied and written, one piece of work after another: a thread, or a process of its own.

Applying and writing keep an interpreter busy all the time; in a process of their own they leave the other one to the
nodes, and both go on at once.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from warpseal.errors import StartupError, StoreDown
from warpseal.history.chains import PrimaryChain
from warpseal.index.checkpoint import ChainStatus
from warpseal.index.errors import RebuildFailed
from warpseal.index.rebuild import RebuildProgress, RowRebuilder
from warpseal.index.writer import IndexWriter
from warpseal.indexer.errors import IndexingStopped

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

Processors = Mapping[PrimaryChain, Any]
"""The one object of each chain whose methods are run."""
OpenIndex = Callable[[], tuple[IndexWriter, Processors, RowRebuilder]]
"""Opens the index and makes the works; for another process it has to be picklable. Raises StartupError, StoreDown."""

# Looked for between two pieces of work.
GC_THRESHOLDS: Final = (50_000, 20, 100)
_DERIVE_S: Final = 1.0


class Desk(Protocol):
    """Used from one event loop."""

    async def run(
        self, chain: PrimaryChain, work: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a method of a chain's work, such as `PWork.write`, and return what it returns."""
        ...

    async def note(self, note: ChainStatus) -> None:
        """Write how a chain stands."""
        ...

    async def derive(self) -> RebuildProgress | None:
        """Make rows anew, for a while, of blocks that are kept without any; return how far that is, None at the end.

        Raises StoreDown, RebuildFailed.
        """
        ...


class ThreadDesk:
    """In a thread of this process. executor: has one."""

    def __init__(self, executor: Executor, index: IndexWriter, works: Processors, deriving: RowRebuilder) -> None:
        self._executor = executor
        self._index = index
        self._works = works
        self._deriving = deriving

    async def run(
        self, chain: PrimaryChain, work: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a method of a chain's work, and return what it returns."""
        call = partial(work, self._works[chain], *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    async def note(self, note: ChainStatus) -> None:
        """Write how a chain stands."""
        await asyncio.get_running_loop().run_in_executor(self._executor, self._index.write_status, note)

    async def derive(self) -> RebuildProgress | None:
        """Make rows anew for a while."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._deriving.step, _DERIVE_S)


class ProcessDesk:
    """In a process of its own, which ends with this one. gone: called when it ended by itself; nothing works then."""

    def __init__(self, executor: Executor, gone: Callable[[], None]) -> None:
        self._executor = executor
        self._gone = gone

    async def run(
        self, chain: PrimaryChain, work: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a method of a chain's work, and return what it returns; all of them have to be picklable."""
        result: T = await self._call(_run, chain, work, args, kwargs)
        return result

    async def note(self, note: ChainStatus) -> None:
        """Write how a chain stands."""
        await self._call(_note, note)

    async def derive(self) -> RebuildProgress | None:
        """Make rows anew for a while."""
        derived: RebuildProgress | None = await self._call(_derive)
        return derived

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a function of a module returns there, called between two pieces of work."""
        result: T = await self._call(partial(function, *args, **kwargs))
        return result

    async def _call(self, call: Callable[..., Any], *args: Any) -> Any:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, call, *args)
        except BrokenProcessPool:
            self._gone()
            raise


@asynccontextmanager
async def process_desk(opening: OpenIndex, gone: Callable[[], None]) -> AsyncIterator[ProcessDesk]:
    """Hold a process that has opened the index. Raises StartupError."""
    context = get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=_begin) as executor:
        loop = asyncio.get_running_loop()
        refused = await loop.run_in_executor(executor, _open, opening)
        if refused:
            raise StartupError(refused)
        try:
            yield ProcessDesk(executor, gone)
        finally:
            await loop.run_in_executor(None, partial(executor.shutdown, cancel_futures=True))


class _Room:
    """What the other process has."""

    index: IndexWriter
    works: Processors
    deriving: RowRebuilder


def _begin() -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Whoever ends that process lets this one end its work.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    gc.set_threshold(*GC_THRESHOLDS)


def _end_with_parent() -> None:
    """End at once when the process that gives work is gone, however it ended: what is not committed is undone."""
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _open(opening: OpenIndex) -> str:
    """Open the index; return why not, as text: errors with parts of their own do not travel."""
    try:
        _Room.index, _Room.works, _Room.deriving = opening()
    except (StartupError, StoreDown) as error:
        return str(error)
    return ""


def _run(chain: PrimaryChain, work: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
    return _travelling(partial(work, _Room.works[chain], *args, **kwargs))


def _note(note: ChainStatus) -> None:
    _travelling(partial(_Room.index.write_status, note))


def _derive() -> RebuildProgress | None:
    return _travelling(partial(_Room.deriving.step, _DERIVE_S))


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Look for no garbage in a piece of work: what it makes lives as long as it does, hardly ever in cycles."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _travelling(work: Callable[[], T]) -> T:
    failure: Exception
    try:
        with gc_disabled():
            return work()
    except (IndexingStopped, RebuildFailed):
        raise
    except StoreDown as error:
        failure = StoreDown(error.reason)
    except Exception:
        # Errors of all kinds do not travel, but what is told of them does.
        log.debug("a piece of work failed", exc_info=True)
        failure = RuntimeError(traceback.format_exc())
    raise failure
