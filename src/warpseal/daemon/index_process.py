"""The process that fills the index: its composition root, beside the daemon's; and what it tells of itself.

It shares nothing with the daemon but the configuration and the data folder: signing goes on without it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from random import SystemRandom
from typing import Any, Final, TypeVar

from warpseal.chains.p_blocks import PGenesis
from warpseal.config.keys import Config
from warpseal.errors import CallRefused, NodeUnavailable, StartupError
from warpseal.history.aliases import PRIMARY_ALIASES
from warpseal.history.chains import PrimaryChain, PrimaryChains
from warpseal.history.ports import ChainFreshness
from warpseal.index.checkpoint import ChainStatus
from warpseal.index.database import INDEX_NAME, index_url
from warpseal.index.index import Index
from warpseal.indexer.genesis import load_genesis
from warpseal.indexer.indexer import Indexer, IndexOpener, fetch_network, indexer_node_settings
from warpseal.indexer.verify import IndexFinding, IndexVerifier
from warpseal.indexer.worker import ProcessDesk, process_desk
from warpseal.node.rpc import open_session
from warpseal.node.upstream import Upstream, connect_upstream
from warpseal.ops.ipc.client import serve_commands
from warpseal.ops.logs.ipc import level_handlers
from warpseal.ops.logs.loggers import DaemonLoggers
from warpseal.ops.profiles.ipc import profile_handlers
from warpseal.ops.profiles.profiler import open_profiler
from warpseal.ops.profiles.worker import PairedProfiler
from warpseal.peers.data_dir import InUse, lock_descriptor
from warpseal.runtime.backoff import Backoff
from warpseal.runtime.locks import WorkerThreads
from warpseal.store.url import StoreUrl
from warpseal.warp.ids import P_CHAIN

log = logging.getLogger(__name__)

T = TypeVar("T")
OnOpened = Callable[[ProcessDesk, str], Awaitable[None]]
"""Told of the process that writes, once it has opened the index, and of what may be announced."""

LOCK_NAME: Final = "index.lock"
SUFFIX: Final = "-indexer"
"""Of log files and profiles: the daemon's have the same names."""
WRITER_SUFFIX: Final = "-indexer-writer"
"""Of profiles of the process that applies and writes."""
_RETRY: Final = Backoff(first_s=0.25, cap_s=5.0)
_NICENESS: Final = 19


async def run_index(
    config: Config, loggers: DaemonLoggers, announce: Callable[[str], None], *, ends_with_stdin: bool = False
) -> None:
    """Index until SIGTERM or SIGINT, or until standard input ends. Raises StartupError.

    loggers: what this process logs through; it takes over the levels that the daemon tells where there is one.
    """
    if not config.indexer.chains:
        raise StartupError("index-chains names no chain: there is nothing to index")
    if config.indexer.low_priority:
        _give_way()
    stopping, gone = asyncio.Event(), asyncio.Event()
    loggers.know_chains(PRIMARY_ALIASES[chain] for chain in config.indexer.chains)
    profiles, data_dir = config.profiles, config.peers.data_dir
    try:
        with open_profiler(profiles.folder(data_dir), memory_frames=profiles.memory_frames, suffix=SUFFIX) as profiler:
            profilers = PairedProfiler(profiler, profiles.folder(data_dir), WRITER_SUFFIX)

            async def opened(desk: ProcessDesk, line: str) -> None:
                announce(line)
                with suppress(CallRefused):
                    await profilers.join(desk.call)

            async with _meanwhile(serve_commands(data_dir, {**level_handlers(loggers), **profile_handlers(profilers)})):
                await _run_until(config, opened, stopping, gone, ends_with_stdin=ends_with_stdin)
    except* StartupError as failures:
        raise _first(failures) from None
    if gone.is_set():
        raise StartupError("the process that writes the index ended by itself")
    log.info("indexing ended")


def _give_way() -> None:
    """Let whoever signs come first, at once: the process that writes is started by this one and does the same."""
    os.nice(_NICENESS)
    with suppress(AttributeError, OSError):
        # Where the system has it: whoever wakes up takes the processor at once, and waits for no end of a turn.
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


async def _run_until(
    config: Config,
    opened: OnOpened,
    stopping: asyncio.Event,
    gone: asyncio.Event,
    *,
    ends_with_stdin: bool,
) -> None:
    with _signals(stopping):
        async with asyncio.TaskGroup() as tasks:
            if ends_with_stdin:
                tasks.create_task(_await_end_of_stdin(stopping))
            working = tasks.create_task(_index(config, opened, gone.set))
            waiting = tasks.create_task(stopping.wait())
            dying = tasks.create_task(gone.wait())
            await asyncio.wait((working, waiting, dying), return_when=asyncio.FIRST_COMPLETED)
            stopping.set()
            working.cancel()
            dying.cancel()


@asynccontextmanager
async def _meanwhile(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    working = asyncio.create_task(work)
    try:
        yield
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def verify_index(config: Config, count: int, addresses: tuple[str, ...]) -> tuple[IndexFinding, ...]:
    """Compare the index with itself, and what it says of some addresses with what a node says.

    Raises StartupError, NodeUnavailable: whoever asks for it does not want to wait for a node.
    """
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(_upstream_of(config))
        network_id = await upstream.info.network_id()
        subject = await fetch_network(upstream, network_id, _genesis(config, network_id))
        url = index_url(config.index, network_folder(config, network_id))
        return await IndexVerifier(upstream, subject.params, url, config.index).run(count, addresses)


def network_folder(config: Config, network_id: int) -> Path:
    """Return the folder of a network's data."""
    return config.peers.data_dir / str(network_id)


def index_at(config: Config, network: int | None) -> StoreUrl:
    """Return where the index is, without asking a node. Raises StartupError where there is none, or several."""
    if config.index.url:
        return index_url(config.index, None)
    found = sorted(config.peers.data_dir.glob(f"*/{INDEX_NAME}"))
    found = [path for path in found if network is None or path.parent.name == str(network)]
    if len(found) != 1:
        what = "no index" if not found else "more than one index: choose one with --network"
        raise StartupError(f"there is {what} below {config.peers.data_dir}")
    return StoreUrl.for_file(found[0])


async def how_it_stands(
    url: StoreUrl, config: Config
) -> tuple[tuple[ChainFreshness, ...], Mapping[PrimaryChain, ChainStatus]]:
    """Return how far the chains are, and what who indexes last wrote of each. Raises StoreDown."""
    # Nothing that is asked here needs the ids of the others.
    unknown = PrimaryChains(P_CHAIN, P_CHAIN)
    async with Index(url, unknown, config.index) as index:
        await index.refresh()
        return tuple(index.freshness()), index.chain_statuses()


async def _index(config: Config, opened: OnOpened, gone: Callable[[], None]) -> None:
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(_upstream_of(config))
        network_id = await _patiently(upstream.info.network_id)
        genesis = _genesis(config, network_id)
        subject = await _patiently(lambda: fetch_network(upstream, network_id, genesis))
        folder = network_folder(config, network_id)
        stack.enter_context(_locked(folder))
        url = index_url(config.index, folder)
        opening = IndexOpener(url, config.index, config.indexer, subject.params)
        desk = await stack.enter_async_context(process_desk(opening, gone))
        await opened(desk, f"warpseal is indexing: network={network_id} index={url.redacted}")
        await Indexer(upstream, desk, config.indexer).run()


def _genesis(config: Config, network_id: int) -> PGenesis | None:
    genesis = load_genesis(network_id, config.indexer.genesis_file)
    if genesis is None:
        log.warning("the genesis is not known: set genesis-file, or the P- and X-Chain are incomplete")
    return genesis


@asynccontextmanager
async def _upstream_of(config: Config) -> AsyncIterator[Upstream]:
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(open_session())
        decoding = stack.enter_context(WorkerThreads(1, "decode"))
        yield connect_upstream(indexer_node_settings(config.node, config.indexer), session, executor=decoding)


async def _patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Return what `ask` returns once a node answers."""
    delay_s, random = 0.0, SystemRandom()
    while True:
        try:
            return await ask()
        except NodeUnavailable as error:
            delay_s = _RETRY.next_delay(delay_s, random)
            log.warning("no node answers yet", extra={"reason": str(error), "next_try_s": delay_s})
            await asyncio.sleep(delay_s)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the right to fill the index in a folder. Raises StartupError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        opened = (folder / LOCK_NAME).open("ab")
    except OSError as error:
        raise StartupError(f"data-dir {folder} cannot be used: {error.strerror or error}") from error
    with opened:
        try:
            lock_descriptor(opened.fileno(), folder / LOCK_NAME, "data-dir")
        except InUse:
            raise StartupError(f"another process fills the index in {folder} already") from None
        yield


async def _await_end_of_stdin(stopping: asyncio.Event) -> None:
    """Stop when whoever started this process is gone, however it ended."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    reading = asyncio.create_task(reader.read())
    with suppress(OSError):
        await asyncio.wait((reading, asyncio.create_task(stopping.wait())), return_when=asyncio.FIRST_COMPLETED)
    reading.cancel()
    transport.close()
    stopping.set()


@contextmanager
def _signals(stopping: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _first(failures: BaseExceptionGroup[StartupError]) -> StartupError:
    found = failures.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found
