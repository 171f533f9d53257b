"""Composition root of the process that fills the index.

The process shares only the configuration and the data folder with the daemon, so that signing does not depend on it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Set
from concurrent.futures import Executor
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from warpseal.chains.evm.checks import BlockRules
from warpseal.chains.p_blocks import PGenesis
from warpseal.config.keys import Config
from warpseal.errors import StartupError
from warpseal.forwarding.evm.reads import c_chain_rules
from warpseal.forwarding.evm.served_l1s import ServedL1s
from warpseal.index.database import index_url, rebuild_hint
from warpseal.index.errors import IndexDamaged
from warpseal.index.evm.database import evm_index_url
from warpseal.index.evm.records import IcmOptions
from warpseal.indexer.evm.chain import EvmChainContext
from warpseal.indexer.evm.contracts import ContractResolver, ask_erc721
from warpseal.indexer.evm.fetcher import open_fetcher
from warpseal.indexer.evm.indexer import BackgroundTask, EvmIndexer, EvmIndexerParts
from warpseal.indexer.evm.metadata import MetadataFetcher
from warpseal.indexer.evm.nodes import EvmCaller
from warpseal.indexer.evm.tracer import Tracer
from warpseal.indexer.indexer import Indexer
from warpseal.indexer.network import fetch_network, indexer_node_settings, load_genesis
from warpseal.indexer.subprocess import send_heartbeats
from warpseal.indexer.worker import IndexOpener, Worker, open_worker
from warpseal.node.upstream import Upstream, connect_upstream
from warpseal.ops.logs.loggers import DaemonLoggers
from warpseal.peers.data_dir import InUse, lock_descriptor
from warpseal.resources.aliases import PRIMARY_NAMES
from warpseal.resources.chains import PUBLIC_CHAINS
from warpseal.runtime.locks import WorkerThreads
from warpseal.runtime.process import (
    hangup_signal,
    os_error_text,
    running,
    stop_signals,
    ungrouped,
    write_pid,
)
from warpseal.runtime.retry import Backoff, Retrier
from warpseal.store.url import StoreUrl
from warpseal.upstream.endpoint import EvmChain, TraceMode
from warpseal.upstream.errors import NodeUnavailable
from warpseal.upstream.node import open_session, open_sessions
from warpseal.warp.ids import P_CHAIN, ChainID, id_text

log = logging.getLogger(__name__)

LOCK_NAME: Final = "index.lock"
_RETRY: Final = Backoff(first_s=0.25, cap_s=5.0)
_LOCK_RETRY: Final = Backoff(first_s=1.0, cap_s=60.0)
_DAMAGED_RETRY: Final = Backoff(first_s=1.0, cap_s=60.0)


async def run_index(
    config: Config,
    loggers: DaemonLoggers,
    announce: Callable[[str], None],
    worker_process: Executor | None,
    *,
    only: Set[ChainID] | None = None,
    elsewhere: frozenset[ChainID] = frozenset(),
    ends_with_stdin: bool = False,
) -> None:
    """Index until SIGTERM or SIGINT, or until standard input ends. Raises StartupError.

    loggers: of this process. worker_process: writes the primary chains; None if none is configured. only: blockchain
    ids of the EVM chains to index; None: all that are configured or found. elsewhere: configured ones that another
    process indexes.
    """
    if not config.indexer.chains and not config.node.has_evm_index:
        raise StartupError("there is nothing to index: no chain is in index-chains, and none of evm-chains has index")
    loggers.add_chains(PRIMARY_NAMES[chain][0] for chain in config.indexer.chains)
    process = _IndexProcess(config, loggers, announce, worker_process, only, elsewhere)
    with ungrouped(StartupError), stop_signals(process.stopping.set):
        async with running(send_heartbeats(config.peers.data_dir)), asyncio.TaskGroup() as tasks:
            if ends_with_stdin:
                tasks.create_task(_await_end_of_stdin(process.stopping))
            work, stop = tasks.create_task(process.run()), tasks.create_task(process.stopping.wait())
            await asyncio.wait((work, stop), return_when=asyncio.FIRST_COMPLETED)
            process.stopping.set()
            work.cancel()
    if process.has_worker_exited:
        raise StartupError("the worker process of the index ended by itself: its log says why")
    log.info("indexer stopped")


class _IndexProcess(Struct):
    """Indexes the primary chains in a worker process, and EVM chains in this one. stopping: ends it once it is set."""

    config: Config
    loggers: DaemonLoggers
    announce: Callable[[str], None]
    worker_process: Executor | None
    only: Set[ChainID] | None
    elsewhere: frozenset[ChainID]
    locks: ExitStack = field(default_factory=ExitStack)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    has_worker_exited: bool = False

    async def run(self) -> None:
        """Index until cancelled."""
        config = self.config
        async with AsyncExitStack() as stack:
            upstream = await stack.enter_async_context(open_upstream(config))
            network_id = await _new_retrier().call(upstream.info.network_id)
            folder = config.peers.data_dir / str(network_id)
            stack.enter_context(self.locks)
            # One lock a chain, so that each may have a process of its own.
            if self.worker_process is not None:
                self.locks.enter_context(locked_primary(folder))
            for chain in config.node.indexed_evm_chains:
                self.locks.enter_context(_locked_chain(folder, chain.blockchain_id))
            async with asyncio.TaskGroup() as tasks:
                if config.node.has_evm_index:
                    tasks.create_task(self._index_evm_chains(upstream, network_id, folder))
                if self.worker_process is not None:
                    tasks.create_task(self._index_primary(upstream, network_id, folder, self.worker_process))
                else:
                    stack.enter_context(hangup_signal(self.loggers.reopen))
                    self.announce(f"warpseal is indexing: network={network_id} index={self._evm_places(folder)}")

    def _evm_places(self, folder: Path) -> str:
        """Return where the indexes of EVM chains are, a folder of files once."""
        node, locate = self.config.node, partial(evm_index_url, self.config.index, folder)
        urls = [locate(chain.blockchain_id) for chain in node.indexed_evm_chains]
        urls += [locate(P_CHAIN)] if node.index_l1s_at is not None else []
        return ",".join(dict.fromkeys(url.redacted if url.path is None else str(url.path.parent) for url in urls))

    async def _index_primary(self, upstream: Upstream, network_id: int, folder: Path, worker_process: Executor) -> None:
        config = self.config
        async with AsyncExitStack() as stack:
            genesis = read_genesis(config, network_id)
            network = await _new_retrier().call(lambda: fetch_network(upstream, network_id, genesis))
            url = index_url(config.index, folder)
            raw_genesis = None if genesis is None else genesis.raw
            opener = IndexOpener(url, config.index, config.indexer, network.params, raw_genesis)
            worker = await stack.enter_async_context(open_worker(worker_process, self._on_worker_exit))
            await _open_index(worker, opener, url)
            # Only now: the processes that the worker has started ignore SIGHUP, as this one did until here.
            stack.enter_context(hangup_signal(self.loggers.reopen))
            self.announce(f"warpseal is indexing: network={network_id} index={url.redacted}")
            await Indexer(upstream, worker, config.indexer).run()

    def _on_worker_exit(self) -> None:
        self.has_worker_exited = True
        self.stopping.set()

    async def _index_evm_chains(self, upstream: Upstream, network_id: int, folder: Path) -> None:
        """Index the configured EVM chains, and those that a node serves."""
        config, rpc, node = self.config, self.config.evm_rpc, self.config.node
        async with open_sessions() as sessions, open_fetcher(config.metadata) as fetcher:
            load_rules = partial(read_block_rules, upstream, network_id)

            async def ask_interfaces(
                chain: EvmChainContext, contracts: Collection[bytes], height: int
            ) -> Mapping[bytes, bool]:
                return await ask_erc721(EvmCaller(chain.nodes), contracts, height)

            def build_tasks(chain: EvmChainContext) -> list[BackgroundTask]:
                caller = EvmCaller(chain.nodes)
                tasks: list[BackgroundTask] = [ContractResolver(chain, caller)]
                if chain.settings.traces is not TraceMode.OFF:
                    tasks.append(Tracer(chain))
                tasks.append(MetadataFetcher(chain, caller, fetcher, config.metadata))
                return tasks

            locate = partial(evm_index_url, config.index, folder)
            parts = EvmIndexerParts(
                sessions,
                rpc,
                config.index,
                config.indexer,
                locate,
                load_rules,
                ask_interfaces,
                build_tasks,
                IcmOptions(network_id),
                self.elsewhere,
                node.index_l1s_at is None,
            )
            indexer = EvmIndexer(node.indexed_evm_chains, parts)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(indexer.run())
                if node.index_l1s_at is not None:
                    configured_ids = [chain.blockchain_id for chain in node.evm_chains]
                    subnet_ids = config.validators.tracked_subnet_ids
                    blockchains_of = upstream.platform.blockchains_of
                    served = ServedL1s(node.index_l1s_at, subnet_ids, blockchains_of, configured_ids, sessions, rpc)

                    def add(chain: EvmChain) -> None:
                        if self.only is None or chain.blockchain_id in self.only:
                            tasks.create_task(self._add_when_free(indexer, chain, folder))

                    tasks.create_task(served.run(add))

    async def _add_when_free(self, indexer: EvmIndexer, chain: EvmChain, folder: Path) -> None:
        """Index a chain as soon as no other process does."""

        async def lock() -> None:
            self.locks.enter_context(_locked_chain(folder, chain.blockchain_id))

        await Retrier(_LOCK_RETRY, {StartupError: "lock"}).call(lock)
        indexer.add(chain)


async def read_block_rules(upstream: Upstream, network_id: int, chain_id: ChainID) -> BlockRules:
    """Return the rules of a chain: the C-Chain executes behind acceptance from Helicon on. Raises NodeUnavailable."""
    public = PUBLIC_CHAINS.get(network_id)
    if chain_id != (public.c if public is not None else await upstream.info.blockchain_id("C")):
        return BlockRules()
    return c_chain_rules(await upstream.info.upgrades())


async def _open_index(worker: Worker, opener: IndexOpener, url: StoreUrl) -> None:
    """Open the index in the worker, a damaged one as soon as the operator has replaced it. Raises StartupError."""
    logged = set[str]()

    def on_damage(error: Exception, delay_s: float) -> None:
        assert isinstance(error, IndexDamaged)
        if error.reason not in logged:
            logged.add(error.reason)
            log.error("index is damaged", extra={"reason": error.reason, "hint": rebuild_hint(url)})

    await Retrier(_DAMAGED_RETRY, {IndexDamaged: "index"}, on_damage).call(partial(worker.start, opener))


def read_genesis(config: Config, network_id: int) -> PGenesis | None:
    """Return the genesis of a network; None, and a warning, if it is not known."""
    genesis = load_genesis(network_id, config.indexer.genesis_file)
    if genesis is None:
        log.warning("the genesis is not known: set genesis-file, or the P- and X-Chain are incomplete")
    return genesis


def _new_retrier() -> Retrier:
    def on_failure(error: Exception, delay_s: float) -> None:
        log.warning("no node responds yet", extra={"reason": str(error), "next_try_s": delay_s})

    return Retrier(_RETRY, {NodeUnavailable: "nodes"}, on_failure)


@asynccontextmanager
async def open_upstream(config: Config) -> AsyncIterator[Upstream]:
    """Open the clients of the nodes, with the limits of the indexer."""
    async with open_session() as session:
        with WorkerThreads(1, "decode") as decoding:
            yield connect_upstream(indexer_node_settings(config.node, config.indexer), session, executor=decoding)


def locked_primary(folder: Path) -> AbstractContextManager[None]:
    """Hold the lock of the index of the primary chains. Raises StartupError."""
    return _locked(folder, LOCK_NAME, "the primary chains")


def _locked_chain(folder: Path, chain_id: ChainID) -> AbstractContextManager[None]:
    """Hold the lock of the index of an EVM chain. Raises StartupError."""
    name = id_text(chain_id)
    return _locked(folder, f"index-{name}.lock", f"EVM chain {name}")


@contextmanager
def _locked(folder: Path, file_name: str, chains: str) -> Iterator[None]:
    """Hold a lock of the index process in a folder. chains: whose index it protects. Raises StartupError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        opened = (folder / file_name).open("ab+")
    except OSError as error:
        raise StartupError(f"data-dir {folder} cannot be used: {os_error_text(error)}") from error
    with opened:
        try:
            lock_descriptor(opened.fileno(), folder / file_name, "data-dir")
        except InUse as error:
            holder = f"process {error.pid}" if error.pid else "another process"
            advice = "stop it first, or name the chains of this process with --chain"
            raise StartupError(f"{holder} fills the index of {chains} in {folder} already: {advice}") from None
        write_pid(opened.fileno())
        yield


async def _await_end_of_stdin(stopping: asyncio.Event) -> None:
    """Stop when the process that started this one is gone, however it ended."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    end = asyncio.create_task(reader.read())
    with suppress(OSError):
        await asyncio.wait((end, asyncio.create_task(stopping.wait())), return_when=asyncio.FIRST_COMPLETED)
    end.cancel()
    transport.close()
    stopping.set()
