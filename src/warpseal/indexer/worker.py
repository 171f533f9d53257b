"""The process that applies blocks and writes them into the index, one call after another.

Applying and writing keep a Python interpreter busy all the time. In a process of their own they
leave the other interpreter to the calls to nodes. That process is forked from the index process as
soon as this module is imported, which therefore imports no client of nodes.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from multiprocessing import get_context
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from msgspec import Struct

from warpseal.chains.p_blocks import parse_p_genesis
from warpseal.chains.p_txs import CreateChainTx
from warpseal.chains.x_blocks import parse_x_genesis
from warpseal.errors import StartupError
from warpseal.follow.blocks import ChainStopped
from warpseal.index.database import reading_index, writing_index
from warpseal.index.errors import IndexDamaged
from warpseal.index.rebuild import RebuildFailed, RowRebuilder
from warpseal.index.settings import IndexSettings
from warpseal.index.writer import IndexWriter
from warpseal.indexer.network import IndexedNetwork
from warpseal.indexer.processors import (
    CChainProcessor,
    PChainProcessor,
    XChainOrigin,
    XChainProcessor,
)
from warpseal.indexer.settings import IndexerSettings
from warpseal.ledger.params import Parameters
from warpseal.resources.chains import PrimaryChain
from warpseal.runtime.worker_process import initialize_worker
from warpseal.store.errors import StoreDown
from warpseal.store.url import StoreUrl

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

Processors = Mapping[PrimaryChain, Any]
"""The processor of each chain, whose methods the worker runs."""
OpenIndex = Callable[[], tuple[IndexWriter, Processors, RowRebuilder]]
"""Opens the index and builds the processors; picklable for another process.

Raises StartupError, StoreDown.
"""

# The garbage collector runs only between two calls.
GC_THRESHOLDS: Final = (50_000, 20, 100)


class Worker:
    """Runs calls on the thread that has the index open. Used from one event loop.

    executor: executor with a single thread, here or in another process, in which `start` opened the
        index.
    on_exit: function that is called if the process ends by itself; every later call fails.
    """

    def __init__(self, executor: Executor, on_exit: Callable[[], None]) -> None:
        self._executor = executor
        self._on_exit = on_exit

    async def start(self, open_index: OpenIndex) -> None:
        """Open the index. Raises StartupError, IndexDamaged."""
        await self.call(_open, open_index)

    async def run(
        self,
        key: PrimaryChain | type[Any],
        method: Callable[Concatenate[Any, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run a method of an opened object, such as `PChainProcessor.write`.

        key: chain of a processor, or the class IndexWriter or RowRebuilder.
        Raises ChainStopped, StoreDown, RebuildFailed.
        """
        return await self.call(_run, key, method, args, kwargs)

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a function of a module returns there, called between two calls of `run`."""
        call = partial(function, *args, **kwargs)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, call)
        except BrokenProcessPool:
            self._on_exit()
            raise


def fork_worker_process() -> Executor:
    """Return the executor of a process that is forked from this one and ends with it.

    To be called before this process has threads or an event loop: they would not exist in the
    forked one.
    """
    gc.freeze()
    executor = ProcessPoolExecutor(1, get_context("fork"), initializer=_initialize_process)
    # The executor forks at its first call.
    executor.submit(os.getpid)
    return executor


@asynccontextmanager
async def open_worker(process: Executor, on_exit: Callable[[], None]) -> AsyncIterator[Worker]:
    """Return the worker of a process; at the end of the block wait for its call, and end it."""
    try:
        yield Worker(process, on_exit)
    finally:
        shutdown = partial(process.shutdown, cancel_futures=True)
        await asyncio.get_running_loop().run_in_executor(None, shutdown)


class IndexOpener(Struct, frozen=True):
    """Opens the index in the worker, which may be another process.

    genesis: raw bytes, None if they are unknown.
    """

    url: StoreUrl
    index: IndexSettings
    indexer: IndexerSettings
    params: Parameters
    genesis: bytes | None

    def __call__(self) -> tuple[IndexWriter, Processors, RowRebuilder]:
        """Open the index, and build its processors and its rebuilder.

        Raises StartupError, StoreDown.
        """
        genesis = None if self.genesis is None else parse_p_genesis(self.genesis)
        writer = IndexWriter(writing_index(self.url, self.index), self.params, self.index)
        rebuilder = RowRebuilder(writer, reading_index(self.url, self.index), self.params)
        return (
            writer,
            build_processors(writer, IndexedNetwork(self.params, genesis), self.indexer),
            rebuilder,
        )


def build_processors(
    index: IndexWriter, network: IndexedNetwork, settings: IndexerSettings
) -> Processors:
    """Return the processor of each chain, which applies and writes its blocks."""
    params, first_heights = network.params, settings.first_heights
    p_genesis = None if first_heights.get(PrimaryChain.P, 0) else network.genesis
    is_x_complete = network.is_x_complete and not first_heights.get(PrimaryChain.X, 0)
    return {
        PrimaryChain.P: PChainProcessor(index, params, p_genesis, settings),
        PrimaryChain.X: XChainProcessor(
            index, params.x_chain_id, _x_chain_origin(network), is_complete=is_x_complete
        ),
        PrimaryChain.C: CChainProcessor(index, params),
    }


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Collect no garbage within: objects live as long as the call, and hardly form cycles."""
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


def _open(open_index: OpenIndex) -> None:
    """Open the index. Raises StartupError or IndexDamaged, since not every error can be pickled."""
    try:
        index, processors, rebuilder = open_index()
    except (StartupError, IndexDamaged):
        raise
    except StoreDown as error:
        raise StartupError(str(error)) from None
    _state.objects = {**processors, IndexWriter: index, RowRebuilder: rebuilder}


def _x_chain_origin(network: IndexedNetwork) -> XChainOrigin | None:
    genesis, params = network.genesis, network.params
    if genesis is None:
        return None
    creation = next(
        (tx.unsigned for tx in genesis.chains if bytes(tx.id) == bytes(params.x_chain_id)), None
    )
    if not isinstance(creation, CreateChainTx):
        # The genesis is of another network, which the P-Chain's processor will report.
        return None
    linearized_s = 0 if network.is_x_complete else params.upgrades.cortina_s
    # Block 0 has the time of Cortina, also if the network began later.
    time_s = min(genesis.timestamp, params.upgrades.cortina_s)
    return XChainOrigin(parse_x_genesis(creation.genesis), creation.genesis, time_s, linearized_s)


def _run(key: Any, method: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
    """Run a method of an opened object. Every error that it raises is picklable."""
    failure: Exception
    try:
        with gc_disabled():
            return method(_state.objects[key], *args, **kwargs)
    except (ChainStopped, RebuildFailed, IndexDamaged):
        raise
    except StoreDown as error:
        failure = StoreDown(error.reason)
    except Exception:
        # An error of any other kind may not be picklable, but its text is.
        log.debug("a call of the index worker failed", exc_info=True)
        failure = RuntimeError(traceback.format_exc())
    raise failure
