"""Composition root of the process that fills the index, and the queries of `warpseal index status|verify`.

The process shares only the configuration and the data folder with the daemon, so that signing does not depend on it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from warpseal.chains.evm.checks import BlockRules
from warpseal.chains.p_blocks import PGenesis
from warpseal.config.keys import Config
from warpseal.errors import StartupError
from warpseal.forwarding.evm.reads import c_chain_rules
from warpseal.forwarding.evm.served_l1s import ServedL1s, served_chain
from warpseal.index.checkpoint import ChainStatus
from warpseal.index.database import INDEX_NAME, index_url, reading_index, rebuild_hint, translate_errors
from warpseal.index.errors import IndexDamaged
from warpseal.index.evm.database import FOLDER as EVM_FOLDER
from warpseal.index.evm.database import evm_index_url, find_chains
from warpseal.index.evm.reader import EvmIndex
from warpseal.index.evm.rows import read_chain_row
from warpseal.index.index import Index
from warpseal.indexer.evm.caller import EvmCaller
from warpseal.indexer.evm.chain import EvmChainContext
from warpseal.indexer.evm.contracts import ContractResolver, ask_erc721
from warpseal.indexer.evm.fetcher import open_fetcher
from warpseal.indexer.evm.indexer import BackgroundTask, EvmIndexer, EvmIndexerParts
from warpseal.indexer.evm.metadata import MetadataFetcher
from warpseal.indexer.evm.nodes import ChainNodes
from warpseal.indexer.evm.tracer import Tracer
from warpseal.indexer.evm.verify import EvmIndexVerifier
from warpseal.indexer.heartbeat import send_heartbeats
from warpseal.indexer.indexer import Indexer, IndexOpener
from warpseal.indexer.network import fetch_network, indexer_node_settings, load_genesis
from warpseal.indexer.settings import primary_chain
from warpseal.indexer.status import EvmChainReport, EvmIndexStatus
from warpseal.indexer.verify import IndexFinding, IndexVerifier
from warpseal.indexer.worker import Worker, open_worker_process
from warpseal.node.upstream import Upstream, connect_upstream
from warpseal.ops.logs.loggers import DaemonLoggers
from warpseal.peers.data_dir import InUse, find_files, lock_descriptor
from warpseal.resources.aliases import PRIMARY_NAMES, read_aliases
from warpseal.resources.chains import PUBLIC_CHAINS, ChainFreshness, PrimaryChain, PrimaryChains
from warpseal.resources.text import NetworkText
from warpseal.runtime.locks import WorkerThreads
from warpseal.runtime.process import (
    Progress,
    hangup_signal,
    ignore_progress,
    os_error_text,
    running,
    stop_signals,
    ungrouped,
    write_pid,
)
from warpseal.runtime.retry import Backoff, Retrier
from warpseal.runtime.settings import InvalidSetting
from warpseal.store.errors import StoreDown
from warpseal.store.url import StoreUrl, redacted_url
from warpseal.upstream.endpoint import EvmChain, TraceMode
from warpseal.upstream.errors import NodeUnavailable
from warpseal.upstream.node import open_session, open_sessions
from warpseal.warp.ids import P_CHAIN, ChainID, MalformedID, id_text, parse_id

log = logging.getLogger(__name__)

LOCK_NAME: Final = "index.lock"
SUFFIX: Final = "-indexer"
"""Suffix of log files, whose names are otherwise those of the daemon."""
_RETRY: Final = Backoff(first_s=0.25, cap_s=5.0)
_DAMAGED_RETRY: Final = Backoff(first_s=1.0, cap_s=60.0)
_NICENESS: Final = 19


async def run_index(
    config: Config,
    loggers: DaemonLoggers,
    announce: Callable[[str], None],
    *,
    chains: Sequence[str] = (),
    ends_with_stdin: bool = False,
) -> None:
    """Index until SIGTERM or SIGINT, or until standard input ends. Raises StartupError.

    loggers: of this process. chains: names of the only chains to index; empty: all that are configured.
    """
    config, only = select_chains(config, chains)
    if not config.indexer.chains and not config.node.has_evm_index:
        raise StartupError("there is nothing to index: no chain is in index-chains, and none of evm-chains has index")
    if config.indexer.low_priority:
        _lower_priority()
    stopping, has_worker_exited = asyncio.Event(), False
    loggers.add_chains(PRIMARY_NAMES[chain][0] for chain in config.indexer.chains)

    def on_worker_exit() -> None:
        nonlocal has_worker_exited
        has_worker_exited = True
        stopping.set()

    with ungrouped(StartupError), stop_signals(stopping.set):
        async with running(send_heartbeats(config.peers.data_dir)):
            indexing = _index(config, only, loggers, announce, on_worker_exit)
            await _run_until(stopping, indexing, ends_with_stdin=ends_with_stdin)
    if has_worker_exited:
        raise StartupError("the worker process of the index ended by itself: its log says why")
    log.info("indexer stopped")


def _lower_priority() -> None:
    """Give every other process of the machine precedence; the worker process inherits this."""
    os.nice(_NICENESS)
    with suppress(AttributeError, OSError):
        # Only Linux has it. Another process that wakes up gets the processor at once, not at the end of a time slice.
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


async def _run_until(stopping: asyncio.Event, indexing: Coroutine[Any, Any, None], *, ends_with_stdin: bool) -> None:
    async with asyncio.TaskGroup() as tasks:
        if ends_with_stdin:
            tasks.create_task(_await_end_of_stdin(stopping))
        work, stop = tasks.create_task(indexing), tasks.create_task(stopping.wait())
        await asyncio.wait((work, stop), return_when=asyncio.FIRST_COMPLETED)
        stopping.set()
        work.cancel()


async def verify_index(
    config: Config,
    count: int,
    addresses: tuple[str, ...],
    chains: Sequence[str] = (),
    progress: Progress = ignore_progress,
) -> tuple[IndexFinding, ...]:
    """Check the rows of the indexes against each other, and samples against nodes. Waits for no node.

    chains: names of the only chains to check; p, x and c stand for all primary chains. Raises StartupError,
    NodeUnavailable.
    """
    async with _open_upstream(config) as upstream:
        network_id = await upstream.info.network_id()
        config, only = select_chains(config, chains, network_id)
        locations = [
            location for location in find_evm_indexes(config, network_id) if only is None or location.chain_id in only
        ]
        findings: tuple[IndexFinding, ...] = ()
        if config.indexer.chains or not locations:
            url = find_index(config, network_id)
            network = await fetch_network(upstream, network_id, _load_genesis(config, network_id))
            try:
                verifier = IndexVerifier(upstream, network.params, url, config.index)
                findings = await verifier.run(count, addresses, progress=progress)
            except IndexDamaged as error:
                raise StartupError(describe_damage(error, url)) from None
            except StoreDown as error:
                raise StartupError(f"{url.redacted}: {error}") from None
        return findings + await _verify_evm_indexes(config, upstream, network_id, locations, count, progress)


async def _verify_evm_indexes(
    config: Config,
    upstream: Upstream,
    network_id: int,
    locations: Iterable[EvmIndexLocation],
    count: int,
    progress: Progress,
) -> tuple[IndexFinding, ...]:
    entries = {chain.blockchain_id: chain for chain in config.node.indexed_evm_chains}
    node, findings = config.node.index_l1s_at, list[IndexFinding]()
    async with open_sessions() as sessions:
        for location in locations:
            chain, name = entries.get(location.chain_id), id_text(location.chain_id)
            if chain is None and node is not None:
                chain = served_chain(node, location.chain_id)
            if chain is None:
                reason = "evm-chains does not index this chain"
                findings.append(IndexFinding(name, is_compared=False, reason=reason, chain=name))
                continue
            if location.url.path is not None and not location.url.path.exists():
                findings.append(IndexFinding(name, is_compared=False, reason="nothing is indexed yet", chain=name))
                continue
            rules = await _block_rules(upstream, network_id, location.chain_id)
            nodes = ChainNodes(chain, sessions, config.evm_rpc)
            try:
                verifier = EvmIndexVerifier(name, nodes, rules, location.url, config.index)
                findings += await verifier.run(count, progress=progress)
            except IndexDamaged as error:
                raise StartupError(describe_damage(error, location.url)) from None
            except StoreDown as error:
                raise StartupError(f"{location.url.redacted}: {error}") from None
    return tuple(findings)


def describe_damage(error: IndexDamaged, url: StoreUrl) -> str:
    """Return the state of a damaged index as one sentence for its operator, and how to make it again."""
    return f"{error.code}: {url.redacted}: {error}; {rebuild_hint(url)}"


def find_index(config: Config, network: int | None) -> StoreUrl:
    """Return the URL of the index without a call to a node. Raises StartupError if there is no index, or several."""
    if config.index.url:
        return index_url(config.index, None)
    files = find_files(config.peers.data_dir, INDEX_NAME)
    files = [path for path in files if network is None or path.parent.name == str(network)]
    if len(files) != 1:
        reason = "several indexes in {}: choose one with --network" if files else "no index in {}"
        raise StartupError(reason.format(config.peers.data_dir))
    return StoreUrl.for_file(files[0])


async def read_index_status(
    url: StoreUrl, config: Config
) -> tuple[tuple[ChainFreshness, ...], Mapping[PrimaryChain, ChainStatus]]:
    """Return how far each chain is indexed, and the status that the indexer wrote last. Raises StoreDown."""
    # Neither shows an address, or an id of the X- or the C-Chain.
    text = NetworkText(0, PrimaryChains(P_CHAIN, P_CHAIN))
    async with Index(url, text, config.index) as index:
        await index.refresh()
        return tuple(index.freshness()), index.chain_statuses()


@dataclass(frozen=True, slots=True)
class EvmIndexLocation:
    """Where the index of an EVM chain is."""

    chain_id: ChainID
    url: StoreUrl


def find_evm_indexes(config: Config, network: int | None) -> tuple[EvmIndexLocation, ...]:
    """Return the indexes of the configured EVM chains, and of those that are stored, without a call to a node.

    Raises StartupError if there are files of several networks.
    """
    folder = None
    if not config.index.url:
        folders = find_files(config.peers.data_dir, EVM_FOLDER)
        folders = [path for path in folders if network is None or path.parent.name == str(network)]
        if len(folders) > 1:
            raise StartupError(f"several networks in {config.peers.data_dir}: choose one with --network")
        if not folders:
            return ()
        folder = folders[0].parent
    chain_ids = {chain.blockchain_id for chain in config.node.indexed_evm_chains}
    # If the server is down, the index of each configured chain says so.
    with suppress(StoreDown):
        chain_ids |= find_chains(evm_index_url(config.index, folder, P_CHAIN))
    return tuple(
        EvmIndexLocation(chain_id, evm_index_url(config.index, folder, chain_id)) for chain_id in sorted(chain_ids)
    )


async def read_evm_status(location: EvmIndexLocation, config: Config) -> EvmChainReport:
    """Return what the index of an EVM chain says."""
    status = EvmIndexStatus()
    async with EvmIndex(location.url, config.index) as index:
        status.indexes = lambda: {"": index}
        await status.refresh()
    return status.reports[""]


def resolve_chain(config: Config, name: str, network: int | None = None) -> PrimaryChain | ChainID:
    """Return the chain of a name: p, x or c, a blockchain id, an alias, a chain-name, or the EVM chain id of an index.

    A blockchain id need not be configured. Raises StartupError, which lists the names of the known chains.
    """
    with suppress(InvalidSetting):
        return primary_chain(name, "--chain")
    with suppress(MalformedID):
        return ChainID(parse_id(name))
    names = dict(_configured_names(config))
    if name.lower() not in names:
        locations: Iterable[EvmIndexLocation] = ()
        # Of several networks, none is chosen.
        with suppress(StartupError):
            locations = find_evm_indexes(config, network)
        for location in locations:
            names.setdefault(id_text(location.chain_id), location.chain_id)
            if (evm_chain_id := _stored_evm_chain_id(location, config)) is not None:
                names[str(evm_chain_id)] = location.chain_id
    if name.lower() not in names:
        raise StartupError(f"--chain {name}: no such chain; the names are {', '.join(('p', 'x', 'c', *names))}")
    return names[name.lower()]


def _configured_names(config: Config) -> Iterator[tuple[str, ChainID]]:
    """Yield the names of EVM chains in the configuration, in lower case."""
    aliases = read_aliases(config.node_api.chain_aliases_file)
    for chain in config.node.indexed_evm_chains:
        yield id_text(chain.blockchain_id), chain.blockchain_id
        if chain.info.chain_name:
            yield chain.info.chain_name.lower(), chain.blockchain_id
    for chain_id, names in aliases.items():
        for name in names:
            yield name.lower(), chain_id


def _stored_evm_chain_id(location: EvmIndexLocation, config: Config) -> int | None:
    if location.url.path is not None and not location.url.path.exists():
        return None
    engine = reading_index(location.url, config.index)
    try:
        with translate_errors(engine), engine.connect() as connection:
            row = read_chain_row(connection)
            return None if row is None else row.identity.evm_chain_id
    except StoreDown:
        return None
    finally:
        engine.dispose()


def select_chains(
    config: Config, names: Iterable[str], network: int | None = None
) -> tuple[Config, frozenset[ChainID] | None]:
    """Return a configuration that indexes only chains with these names, and the named blockchain ids; None for all.

    names: see `resolve_chain`; no name: all chains. Raises StartupError for an unknown name.
    """
    chosen = [resolve_chain(config, name, network) for name in names]
    if not chosen:
        return config, None
    chain_ids = frozenset(chain for chain in chosen if not isinstance(chain, PrimaryChain))
    chains = tuple(chain for chain in config.indexer.chains if chain in chosen)
    evm_chains = tuple(
        chain if chain.blockchain_id in chain_ids else replace(chain, index=None) for chain in config.node.evm_chains
    )
    found_at = config.node.index_l1s_at if chain_ids else None
    node = replace(config.node, evm_chains=evm_chains, index_l1s_at=found_at)
    return replace(config, indexer=replace(config.indexer, chains=chains), node=node), chain_ids


async def _index(
    config: Config,
    only: frozenset[ChainID] | None,
    loggers: DaemonLoggers,
    announce: Callable[[str], None],
    on_worker_exit: Callable[[], None],
) -> None:
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(_open_upstream(config))
        network_id = await _new_retrier().call(upstream.info.network_id)
        folder = _network_folder(config, network_id)
        stack.enter_context(_locked(folder))
        async with asyncio.TaskGroup() as tasks:
            if config.node.has_evm_index:
                tasks.create_task(_index_evm_chains(config, only, upstream, network_id, folder))
            if config.indexer.chains:
                tasks.create_task(_index_primary(config, loggers, upstream, network_id, announce, on_worker_exit))
            else:
                stack.enter_context(hangup_signal(loggers.reopen))
                place = redacted_url(config.index.url) or folder / EVM_FOLDER
                announce(f"warpseal is indexing: network={network_id} index={place}")


async def _index_primary(
    config: Config,
    loggers: DaemonLoggers,
    upstream: Upstream,
    network_id: int,
    announce: Callable[[str], None],
    on_worker_exit: Callable[[], None],
) -> None:
    async with AsyncExitStack() as stack:
        genesis = _load_genesis(config, network_id)
        network = await _new_retrier().call(lambda: fetch_network(upstream, network_id, genesis))
        url = index_url(config.index, _network_folder(config, network_id))
        raw_genesis = None if genesis is None else genesis.raw
        opener = IndexOpener(url, config.index, config.indexer, network.params, raw_genesis)
        worker = await stack.enter_async_context(open_worker_process(on_worker_exit))
        await _open_index(worker, opener, url)
        # Only now: the processes that the worker has started ignore SIGHUP, as this one did until here.
        stack.enter_context(hangup_signal(loggers.reopen))
        announce(f"warpseal is indexing: network={network_id} index={url.redacted}")
        await Indexer(upstream, worker, config.indexer).run()


async def _index_evm_chains(
    config: Config, only: frozenset[ChainID] | None, upstream: Upstream, network_id: int, folder: Path
) -> None:
    """Index the configured EVM chains, and those that a node serves. only: None for all of these."""
    rpc, node = config.evm_rpc, config.node
    async with open_sessions() as sessions, open_fetcher(config.metadata) as fetcher:

        async def load_rules(chain_id: ChainID) -> BlockRules:
            return await _block_rules(upstream, network_id, chain_id)

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
            sessions, rpc, config.index, config.indexer, locate, load_rules, ask_interfaces, build_tasks
        )
        indexer = EvmIndexer(node.indexed_evm_chains, parts)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(indexer.run())
            if node.index_l1s_at is not None:
                known = [chain.blockchain_id for chain in node.evm_chains]
                subnet_ids, blockchains_of = config.validators.tracked_subnet_ids, upstream.platform.blockchains_of
                served = ServedL1s(node.index_l1s_at, subnet_ids, blockchains_of, known, sessions, rpc)

                def add(chain: EvmChain) -> None:
                    if only is None or chain.blockchain_id in only:
                        indexer.add(chain)

                tasks.create_task(served.run(add))


async def _block_rules(upstream: Upstream, network_id: int, chain_id: ChainID) -> BlockRules:
    """Return the rules of a chain: the C-Chain executes behind acceptance from Helicon on. Raises NodeUnavailable."""
    public = PUBLIC_CHAINS.get(network_id)
    if chain_id != (public.c if public is not None else await upstream.info.blockchain_id("C")):
        return BlockRules()
    return c_chain_rules(network_id, await upstream.info.upgrades())


async def _open_index(worker: Worker, opener: IndexOpener, url: StoreUrl) -> None:
    """Open the index in the worker, a damaged one as soon as the operator has replaced it. Raises StartupError."""
    logged = set[str]()

    def on_damage(error: Exception, delay_s: float) -> None:
        assert isinstance(error, IndexDamaged)
        if error.reason not in logged:
            logged.add(error.reason)
            log.error("index is damaged", extra={"reason": error.reason, "hint": rebuild_hint(url)})

    await Retrier(_DAMAGED_RETRY, {IndexDamaged: "index"}, on_damage).call(partial(worker.start, opener))


def _network_folder(config: Config, network_id: int) -> Path:
    return config.peers.data_dir / str(network_id)


def _load_genesis(config: Config, network_id: int) -> PGenesis | None:
    genesis = load_genesis(network_id, config.indexer.genesis_file)
    if genesis is None:
        log.warning("the genesis is not known: set genesis-file, or the P- and X-Chain are incomplete")
    return genesis


def _new_retrier() -> Retrier:
    return Retrier(_RETRY, {NodeUnavailable: "nodes"}, _log_unavailable)


def _log_unavailable(error: Exception, delay_s: float) -> None:
    log.warning("no node responds yet", extra={"reason": str(error), "next_try_s": delay_s})


@asynccontextmanager
async def _open_upstream(config: Config) -> AsyncIterator[Upstream]:
    async with open_session() as session:
        with WorkerThreads(1, "decode") as decoding:
            yield connect_upstream(indexer_node_settings(config.node, config.indexer), session, executor=decoding)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of the index in a folder. Raises StartupError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        opened = (folder / LOCK_NAME).open("ab+")
    except OSError as error:
        raise StartupError(f"data-dir {folder} cannot be used: {os_error_text(error)}") from error
    with opened:
        try:
            lock_descriptor(opened.fileno(), folder / LOCK_NAME, "data-dir")
        except InUse as error:
            holder = f"process {error.pid}" if error.pid else "another process"
            raise StartupError(f"{holder} fills the index in {folder} already: stop it first") from None
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
