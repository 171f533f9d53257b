"""Indexes EVM chains side by side, each with nodes, a thread and a database of its own."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Set,
)
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from msgspec import structs

from warpseal.chains.evm.checks import BlockRules
from warpseal.chains.evm.facts import EvmBlockFacts
from warpseal.errors import StartupError
from warpseal.follow.chain_follower import ChainFollower
from warpseal.forwarding.evm.sockets import EvmSockets
from warpseal.forwarding.settings import EvmRpcSettings
from warpseal.index.checkpoint import ProgressRow
from warpseal.index.database import file_number, rebuild_hint
from warpseal.index.errors import IndexDamaged
from warpseal.index.evm.database import evm_index_url, writing_evm_index
from warpseal.index.evm.records import IcmOptions
from warpseal.index.evm.writer import EvmIndexWriter
from warpseal.index.settings import IndexSettings
from warpseal.indexer.evm.block_reader import BlocksMissing, EvmBlockSource
from warpseal.indexer.evm.chain import EvmChainContext
from warpseal.indexer.evm.consumer import EvmChainConsumer, NewHeads
from warpseal.indexer.evm.contracts import ask_erc721
from warpseal.indexer.evm.earlier_transactions import EarlierTransactions
from warpseal.indexer.evm.icm_joiner import IcmJoiner
from warpseal.indexer.evm.nodes import ChainNodes, EvmCaller
from warpseal.indexer.evm.prover import BlockProver
from warpseal.indexer.settings import IndexerSettings
from warpseal.indexer.verify import SnapshotReader
from warpseal.runtime.background import BackgroundWork
from warpseal.runtime.process import first_error
from warpseal.runtime.retry import Backoff, Retrier, RetryDelays
from warpseal.runtime.settings import MEBIBYTE
from warpseal.store.errors import StoreDown
from warpseal.store.url import StoreUrl
from warpseal.upstream.endpoint import EvmChain
from warpseal.upstream.errors import NodeUnavailable
from warpseal.upstream.identity import ChainIdentity
from warpseal.upstream.limits import CallRates
from warpseal.upstream.node import Sessions
from warpseal.warp.ids import ChainID, id_text

log = logging.getLogger(__name__)

LoadRules = Callable[[ChainID], Awaitable[BlockRules]]
"""Returns the rules of a chain's headers, by the upgrade times of its network.

Raises NodeUnavailable.
"""

_MIN_CACHE_BYTES: Final = 8 * MEBIBYTE
_LOGGED_BLOCKS: Final = 100
_FILE_CHECK_S: Final = 1.0
_OPEN_RETRY: Final = Backoff(first_s=1.0, cap_s=60.0)
_REBUILD_STEP_S: Final = 1.0
# A page waits 2 s for what it requests.
_REQUEST_POLL_S: Final = 1.0
_BUSY_REQUEST_POLL_S: Final = 0.2
_BUSY_S: Final = 10.0


class BackgroundTask(Protocol):
    """Work for one chain behind its indexing; `run` ends when nothing is left to do."""

    async def run(self) -> None: ...


BuildTasks = Callable[[EvmChainContext], Iterable[BackgroundTask]]
"""Returns the background tasks of a chain."""


class EvmIndexer:
    """All indexed EVM chains. Chains may be added while it runs.

    folder: folder of the network, which has the indexes without a URL; None: every index has one.
    icm: contracts whose ICM messages are read; None: no messages are read.
    elsewhere: chains that another process indexes.
    has_all_chains: whether no further chain is added.
    """

    def __init__(
        self,
        chains: Iterable[EvmChain],
        sessions: Sessions,
        folder: Path | None,
        *,
        rpc: EvmRpcSettings,
        index: IndexSettings,
        settings: IndexerSettings,
        load_rules: LoadRules,
        build_tasks: BuildTasks,
        icm: IcmOptions | None = None,
        elsewhere: frozenset[ChainID] = frozenset(),
        has_all_chains: bool = True,
    ) -> None:
        self.chains: dict[ChainID, IndexedChain] = {}
        self.sessions = sessions
        self.rpc = rpc
        self.index = index
        self.settings = settings
        self.load_rules = load_rules
        self.build_tasks = build_tasks
        self.icm = icm
        self.rates = CallRates()
        self.prover = BlockProver()
        self._folder = folder
        self._elsewhere = elsewhere
        self._has_all_chains = has_all_chains
        readers = {
            chain_id: partial(SnapshotReader, self.locate(chain_id), index)
            for chain_id in elsewhere
        }
        self.joiner = IcmJoiner(readers, self._configured)
        self._added: asyncio.Queue[IndexedChain] = asyncio.Queue()
        for chain in chains:
            self.add(chain)

    def locate(self, chain_id: ChainID) -> StoreUrl:
        """Return the URL of the index of a chain. Raises StartupError."""
        return evm_index_url(self.index, self._folder, chain_id)

    def add(self, chain: EvmChain) -> None:
        """Index one more chain; a chain that is indexed already is left as it is."""
        if chain.blockchain_id not in self.chains:
            indexed = self.chains[chain.blockchain_id] = IndexedChain(chain, self)
            self._added.put_nowait(indexed)

    async def run(self) -> None:
        """Index until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._log_progress())
                tasks.create_task(self.joiner.run())
                while True:
                    tasks.create_task((await self._added.get()).run())
        finally:
            await self.prover.close()

    def has_messages_of(self, chain_id: ChainID) -> bool:
        """Return whether this or another process indexes the messages that a chain sends."""
        indexed = self.chains.get(chain_id)
        if indexed is None:
            return chain_id in self._elsewhere
        return indexed.chain.index is not None and indexed.chain.index.has_icm

    def _configured(self) -> Set[ChainID] | None:
        """Return all indexed chains; None if further chains may be added."""
        return self.chains.keys() | self._elsewhere if self._has_all_chains else None

    async def _log_progress(self) -> None:
        while True:
            await asyncio.sleep(self.settings.log_every_s)
            for chain in self.chains.values():
                # A chain that is at the head of its nodes may just have a new block.
                if chain.indexer is not None and chain.indexer.remaining_blocks not in range(
                    _LOGGED_BLOCKS
                ):
                    log.info("indexing", extra=chain.indexer.as_fields())


class IndexedChain:
    """One chain, which shares the rates of nodes and the prover with the other chains of `owner`.

    indexer: the indexer of the chain; None while its index is not open.
    """

    def __init__(self, chain: EvmChain, owner: EvmIndexer) -> None:
        self.chain = chain
        self.indexer: ChainFollower[EvmBlockFacts] | None = None
        self._owner = owner
        self._name = id_text(chain.blockchain_id)

    async def run(self) -> None:
        """Index until cancelled. A failure concerns this chain alone; a retry follows."""
        delays, failure = RetryDelays(_OPEN_RETRY), ""
        while True:
            try:
                await self._run()
            except* (StartupError, StoreDown) as errors:
                reason = str(first_error(errors))
                if reason != failure:
                    fields = {"chain": self._name, "reason": reason}
                    if errors.subgroup(IndexDamaged):
                        fields["hint"] = rebuild_hint(self._url())
                    log.error("index unavailable", extra=fields)
                failure = reason
            except* Exception:
                log.exception("internal error, indexing stopped")
            self.indexer = None
            await asyncio.sleep(delays.next())

    def _url(self) -> StoreUrl:
        return self._owner.locate(self.chain.blockchain_id)

    async def _run(self) -> None:
        """Open the index and fill it. Raises StartupError, StoreDown if it cannot be opened."""
        loop, name = asyncio.get_running_loop(), self._name[:8]
        async with (
            _open_thread(f"evm-{name}") as executor,
            _open_thread(f"decode-{name}") as decoding,
        ):
            writer = await loop.run_in_executor(executor, self._open_writer)
            try:
                owner = self._owner
                nodes = ChainNodes(self.chain, owner.sessions, owner.rpc, owner.rates)
                context = EvmChainContext(self.chain, nodes, writer, executor)
                await self._rebuild(context)
                # The first node that answers may be of another chain.
                if (identity := await context.write(EvmIndexWriter.identity)) is not None:
                    nodes.identity.expected = ChainIdentity(
                        identity.evm_chain_id, "0x" + identity.genesis_hash.hex()
                    )
                await self._index(context, decoding)
            finally:
                await asyncio.shield(loop.run_in_executor(executor, writer.close))

    def _open_writer(self) -> EvmIndexWriter:
        settings, url = self._owner.index, self._url()
        if url.path is not None and not url.path.exists():
            # The log that SQLite kept of a file that is gone belongs to no index.
            for suffix in ("-wal", "-shm"):
                with suppress(OSError):
                    url.path.with_name(url.path.name + suffix).unlink(missing_ok=True)
        cache_bytes = max(_MIN_CACHE_BYTES, settings.cache_bytes // max(1, len(self._owner.chains)))
        settings = structs.replace(settings, cache_bytes=min(settings.cache_bytes, cache_bytes))
        icm, indexing, options = None, self.chain.index, self._owner.icm
        if options is not None and indexing is not None and indexing.has_icm:
            icm = structs.replace(
                options,
                messengers=(*options.messengers, *_addresses(indexing.icm_messengers)),
                registries=(*options.registries, *_addresses(indexing.icm_registries)),
                is_indexed=self._owner.has_messages_of,
            )
        engine = writing_evm_index(url, settings, self.chain.blockchain_id)
        return EvmIndexWriter(engine, settings, icm=icm)

    async def _rebuild(self, context: EvmChainContext) -> None:
        """Derive rows that a schema change has dropped, before any block is read from a node."""
        while (height := await context.write(EvmIndexWriter.rebuild, _REBUILD_STEP_S)) is not None:
            waiting = (
                "owners and balances are being derived from stored transfers, now at height"
                f" {height}"
            )
            now = int(time.time())
            await context.write_status(
                ProgressRow(self._name, 0, True, waiting=waiting, written_at=now)
            )

    async def _index(self, context: EvmChainContext, decoding: Executor) -> None:
        owner, settings = self._owner, self._owner.settings
        waiting: Mapping[type[Exception], str] = {BlocksMissing: "blocks", NodeUnavailable: "nodes"}
        retrier = Retrier(settings.pace.retry, waiting)
        source = EvmBlockSource(context.nodes, retrier, decoding, owner.prover)
        load_rules = partial(owner.load_rules, context.chain_id)
        ask_interfaces = partial(ask_erc721, EvmCaller(context.nodes))
        consumer = EvmChainConsumer(source, context, retrier, load_rules, ask_interfaces)
        connections = owner.sessions.websockets
        sockets = EvmSockets(self._name, self.chain.ws, connections, context.nodes, owner.rpc)
        heads = NewHeads(sockets)
        # A node that is not bootstrapped serves no EVM calls.
        self.indexer = ChainFollower(
            consumer,
            retrier,
            settings.pace,
            context.report,
            first_height=context.settings.first_height,
            wait_for_block=heads.wait,
        )
        # All nodes, so that the index does not begin late because only one of them was asked yet.
        await context.nodes.check()
        async with AsyncExitStack() as stack:
            if owner.icm is not None and context.settings.has_icm:
                stack.enter_context(owner.joiner.joining(context))
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            tasks.create_task(self.indexer.run())
            tasks.create_task(context.nodes.run())
            tasks.create_task(heads.run())
            tasks.create_task(_watch_requests(context))
            if (path := self._url().path) is not None:
                tasks.create_task(_watch_file(path))
            for task in (EarlierTransactions(context), *owner.build_tasks(context)):
                tasks.create_task(_keep_running(task, context))


def _addresses(texts: Iterable[str]) -> Iterator[bytes]:
    return (bytes.fromhex(text[2:]) for text in texts)


@asynccontextmanager
async def _open_thread(name: str) -> AsyncIterator[Executor]:
    """Hold a thread; its last job, which may take seconds, keeps no other chain waiting."""
    executor = ThreadPoolExecutor(1, name)
    try:
        yield executor
    finally:
        shutdown = partial(executor.shutdown, cancel_futures=True)
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, shutdown))


async def _keep_running(task: BackgroundTask, context: EvmChainContext) -> None:
    """Run a task once there is a block, and again after each failure: none ends the indexing."""
    blocks_written = context.subscribe()
    if context.height is None:
        await blocks_written.wait()
    part = f"{type(task).__name__} of {context.name}"
    await BackgroundWork().keep_running(part, task.run, waits_for=(StoreDown, NodeUnavailable))


async def _watch_file(path: Path) -> None:
    """Raise StoreDown when the file of the index is deleted or replaced: rows would be lost."""
    opened = file_number(path)
    while file_number(path) == opened:  # noqa: ASYNC110 - a moment is awaited
        await asyncio.sleep(_FILE_CHECK_S)
    raise StoreDown("its file was deleted or replaced, and is made again")


async def _watch_requests(context: EvmChainContext) -> None:
    """Wake the tasks that serve the requests of pages.

    After a request there are likely to be more, so it looks more often for a while.
    """
    clock = asyncio.get_running_loop().time
    requested_at = float("-inf")
    while True:
        with suppress(StoreDown):
            has_contracts, has_tokens = await context.write(EvmIndexWriter.has_requests)
            if has_contracts or has_tokens:
                requested_at = clock()
            if has_contracts:
                context.contracts_requested.set()
            if has_tokens:
                context.tokens_requested.set()
                context.reindex_requested.set()
        is_busy = clock() - requested_at < _BUSY_S
        await asyncio.sleep(_BUSY_REQUEST_POLL_S if is_busy else _REQUEST_POLL_S)
