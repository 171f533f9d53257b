"""Indexes EVM chains: the configured ones, and those that a node of L1s serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final

from warpseal.chains.evm.checks import BlockRules
from warpseal.daemon.index_core import IndexCore
from warpseal.errors import StartupError
from warpseal.forwarding.evm.reads import c_chain_rules
from warpseal.forwarding.evm.served_l1s import ServedL1s
from warpseal.index.evm.database import evm_index_url
from warpseal.index.evm.records import IcmOptions
from warpseal.indexer.evm.chain import EvmChainContext
from warpseal.indexer.evm.contracts import ContractResolver
from warpseal.indexer.evm.fetcher import open_fetcher
from warpseal.indexer.evm.indexer import BackgroundTask, EvmIndexer
from warpseal.indexer.evm.metadata import MetadataFetcher
from warpseal.indexer.evm.nodes import EvmCaller
from warpseal.indexer.evm.tracer import Tracer
from warpseal.node.upstream import Upstream
from warpseal.resources.chains import PUBLIC_CHAINS
from warpseal.runtime.process import hangup_signal
from warpseal.runtime.retry import Backoff, Retrier
from warpseal.upstream.endpoint import EvmChain, TraceMode
from warpseal.upstream.node import Sessions, open_sessions
from warpseal.warp.ids import P_CHAIN, ChainID

_LOCK_RETRY: Final = Backoff(first_s=1.0, cap_s=60.0)


@asynccontextmanager
async def open_evm_indexer(core: IndexCore, tasks: asyncio.TaskGroup) -> AsyncIterator[None]:
    """Index the chains, and fetch the documents that their tokens name."""
    async with AsyncExitStack() as stack:
        sessions = await stack.enter_async_context(open_sessions())
        fetcher = await stack.enter_async_context(open_fetcher(core.config.metadata))

        def build_tasks(chain: EvmChainContext) -> list[BackgroundTask]:
            caller = EvmCaller(chain.nodes)
            work: list[BackgroundTask] = [ContractResolver(chain, caller)]
            if chain.settings.traces is not TraceMode.OFF:
                work.append(Tracer(chain))
            work.append(MetadataFetcher(chain, caller, fetcher, core.config.metadata))
            return work

        indexer = EvmIndexer(
            core.config.node.indexed_evm_chains,
            sessions,
            core.folder,
            rpc=core.config.evm_rpc,
            index=core.config.index,
            settings=core.config.indexer,
            load_rules=partial(read_block_rules, core.upstream, core.network_id),
            build_tasks=build_tasks,
            icm=IcmOptions(core.network_id),
            elsewhere=core.run.elsewhere,
            has_all_chains=core.config.node.index_l1s_at is None,
        )
        tasks.create_task(indexer.run())
        tasks.create_task(_find_l1s(core, indexer, sessions))
        if core.run.worker_process is None:
            stack.enter_context(hangup_signal(core.run.loggers.reopen))
            core.run.announce(
                f"warpseal is indexing: network={core.network_id} index={_places(core)}"
            )
        yield


async def _find_l1s(core: IndexCore, indexer: EvmIndexer, sessions: Sessions) -> None:
    """Index the chains that the node of `index-l1s-at` serves, each as soon as no other process
    does.
    """
    node = core.config.node
    if node.index_l1s_at is None:
        return
    configured_ids = [chain.blockchain_id for chain in node.evm_chains]
    subnet_ids = core.config.validators.tracked_subnet_ids
    blockchains_of = core.upstream.platform.blockchains_of
    served = ServedL1s(
        node.index_l1s_at, subnet_ids, blockchains_of, configured_ids, sessions, core.config.evm_rpc
    )

    async def add_when_free(chain: EvmChain) -> None:
        async def lock() -> None:
            core.lock_chain(chain.blockchain_id)

        await Retrier(_LOCK_RETRY, {StartupError: "lock"}).call(lock)
        indexer.add(chain)

    async with asyncio.TaskGroup() as tasks:

        def add(chain: EvmChain) -> None:
            if core.run.only is None or chain.blockchain_id in core.run.only:
                tasks.create_task(add_when_free(chain))

        await served.run(add)


def _places(core: IndexCore) -> str:
    """Return where the indexes of EVM chains are, a folder of files once."""
    node, locate = core.config.node, partial(evm_index_url, core.config.index, core.folder)
    urls = [locate(chain.blockchain_id) for chain in node.indexed_evm_chains]
    if node.index_l1s_at is not None:
        urls.append(locate(P_CHAIN))
    places = [url.redacted if url.path is None else str(url.path.parent) for url in urls]
    return ",".join(dict.fromkeys(places))


async def read_block_rules(upstream: Upstream, network_id: int, chain_id: ChainID) -> BlockRules:
    """Return the rules of a chain: the C-Chain executes behind acceptance from Helicon on.

    Raises NodeUnavailable.
    """
    public = PUBLIC_CHAINS.get(network_id)
    if chain_id != (public.c if public is not None else await upstream.info.blockchain_id("C")):
        return BlockRules()
    return c_chain_rules(await upstream.info.upgrades())
