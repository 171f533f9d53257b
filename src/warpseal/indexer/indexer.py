"""Indexes the chosen chains side by side: what it needs to know first, what writes, and how it stands."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from warpseal.chains.ids import AssetID
from warpseal.chains.p_blocks import PGenesis
from warpseal.chains.p_txs import CreateChainTx
from warpseal.chains.x_blocks import parse_x_genesis
from warpseal.errors import NodeUnavailable, StoreDown
from warpseal.history.chains import PrimaryChain
from warpseal.index.checkpoint import ChainStatus
from warpseal.index.database import reading_index, writing_index
from warpseal.index.errors import RebuildFailed
from warpseal.index.rebuild import RowRebuilder
from warpseal.index.settings import IndexSettings
from warpseal.index.writer import IndexWriter
from warpseal.indexer.block_sources import CChainSource, LinearSource, p_container_source, x_block_source
from warpseal.indexer.c_processor import CChainProcessor
from warpseal.indexer.chain_indexer import ChainIndexer
from warpseal.indexer.chain_sync import CChainSync, ChainSync, PChainSync, XChainSync
from warpseal.indexer.errors import StopReason
from warpseal.indexer.genesis import load_genesis
from warpseal.indexer.p_processor import CheckpointRule, PChainProcessor
from warpseal.indexer.settings import IndexerSettings
from warpseal.indexer.worker import Desk, Processors
from warpseal.indexer.x_processor import XChainOrigin, XChainProcessor
from warpseal.ledger.params import (
    STANDARD_REWARDS,
    L1FeeConfig,
    Parameters,
    UpgradeTimes,
    builtin_parameters,
    parameters_from_node,
)
from warpseal.node.settings import NodeSettings
from warpseal.node.state import NodeState
from warpseal.node.upstream import Upstream
from warpseal.runtime.backoff import Backoff
from warpseal.runtime.retry import Retrier
from warpseal.store.url import StoreUrl

log = logging.getLogger(__name__)

# Of nodes that are too old to tell: before Etna nobody pays it.
_UNTOLD_FEE: Final = L1FeeConfig(target=10_000, min_price=512, excess_conversion=1_246_488_515)
_ALIASES: Final = {PrimaryChain.P: "P", PrimaryChain.X: "X", PrimaryChain.C: "C"}


@dataclass(frozen=True, slots=True)
class IndexedNetwork:
    """What is indexed: the network as it was configured, and what it began with; None: not known."""

    params: Parameters
    genesis: PGenesis | None

    @property
    def is_x_complete(self) -> bool:
        """Whether the X-Chain was a line of blocks from the start, so that all of its outputs are in its blocks."""
        return self.genesis is not None and self.params.upgrades.cortina_s <= self.genesis.timestamp


@dataclass(frozen=True, slots=True)
class IndexOpener:
    """How the index is opened, here or in another process; has_genesis: False where it is to do without."""

    url: StoreUrl
    index: IndexSettings
    indexing: IndexerSettings
    params: Parameters
    has_genesis: bool = True

    def __call__(self) -> tuple[IndexWriter, Processors, RowRebuilder]:
        """Open the index, and make what applies and writes. Raises StartupError, StoreDown."""
        genesis = load_genesis(self.params.network_id, self.indexing.genesis_file) if self.has_genesis else None
        engine = writing_index(self.url, self.index)
        index = IndexWriter(engine, self.params, self.index)
        deriving = RowRebuilder(index, reading_index(self.url, self.index), self.params)
        return index, build_processors(index, IndexedNetwork(self.params, genesis), self.indexing), deriving


def build_processors(index: IndexWriter, subject: IndexedNetwork, settings: IndexerSettings) -> Processors:
    """Return what applies and writes the blocks of each chain."""
    params, first = subject.params, settings.first_heights
    rule = CheckpointRule(settings.checkpoint_blocks, settings.checkpoint_s)
    p_genesis = None if first.get(PrimaryChain.P, 0) else subject.genesis
    is_x_complete = subject.is_x_complete and not first.get(PrimaryChain.X, 0)
    return {
        PrimaryChain.P: PChainProcessor(index, params, p_genesis, rule),
        PrimaryChain.X: XChainProcessor(index, params.x_chain_id, _x_beginning(subject), is_complete=is_x_complete),
        PrimaryChain.C: CChainProcessor(index, params),
    }


class Indexer:
    """All chains; run it, and ask it how it stands. desk: where their works are."""

    def __init__(self, upstream: Upstream, desk: Desk, settings: IndexerSettings) -> None:
        self._upstream = upstream
        self._desk = desk
        self._settings = settings
        makers: dict[PrimaryChain, Callable[[Retrier], ChainSync[Any]]] = {
            PrimaryChain.P: self._p,
            PrimaryChain.X: self._x,
            PrimaryChain.C: self._c,
        }
        self.chains = {chain: self._indexer(makers[chain]) for chain in settings.chains}

    async def run(self) -> None:
        """Index until cancelled; where a change of the schema has dropped rows, make them anew first."""
        await self._derive()
        async with asyncio.TaskGroup() as tasks:
            for chain in self.chains.values():
                tasks.create_task(chain.run())
            tasks.create_task(self._report())

    async def _derive(self) -> None:
        """Make rows anew of the blocks that are kept, before any node is asked for more."""
        clock = asyncio.get_running_loop().time
        told_at, settings = clock(), self._settings
        while True:
            try:
                derived = await self._desk.derive()
            except StoreDown as error:
                log.warning("the index cannot be written", extra={"why": str(error)})
                await asyncio.sleep(settings.retry_cap_s)
                continue
            except RebuildFailed as fault:
                await self._cannot_derive(fault)
                await asyncio.sleep(settings.retry_stopped_s)
                continue
            if derived is None:
                return
            if clock() - told_at >= settings.log_every_s:
                told_at = clock()
                log.info("rows are made anew", extra={"chain": derived[0].value, "height": derived[1]})

    async def _cannot_derive(self, fault: RebuildFailed) -> None:
        stop = ChainStatus(fault.chain, 0, False, StopReason.CONTRADICTION.value, fault.height, str(fault))
        log.error("rows cannot be made anew", extra={"chain": fault.chain.value, "reason": str(fault)})
        with suppress(StoreDown):
            await self._desk.note(stop)

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(self._settings.log_every_s)
            for chain in self.chains.values():
                if not chain.is_caught_up:
                    log.info("indexing", extra=chain.as_fields())

    def _p(self, retrier: Retrier) -> ChainSync[Any]:
        blocks, containers = self._upstream.blocks, p_container_source(self._upstream.containers, retrier)
        source = LinearSource(blocks, blocks.tips, containers, retrier, self._settings.max_concurrency)
        return PChainSync(source, self._desk, retrier)

    def _x(self, retrier: Retrier) -> ChainSync[Any]:
        clients = (self._upstream.x_chain, self._upstream.containers)
        return XChainSync(
            x_block_source(*clients, retrier, self._settings.max_concurrency), clients, self._desk, retrier
        )

    def _c(self, retrier: Retrier) -> ChainSync[Any]:
        return CChainSync(CChainSource(self._upstream.c_blocks, retrier), self._desk, retrier)

    def _indexer(self, make: Callable[[Retrier], ChainSync[Any]]) -> ChainIndexer[Any]:
        backoff = Backoff(self._settings.retry_first_s, self._settings.retry_cap_s)
        retrier = Retrier(backoff, {NodeUnavailable: "nodes"})
        driver = make(retrier)
        bootstrapped = partial(self._upstream.info.is_bootstrapped, _ALIASES[driver.chain])
        return ChainIndexer(driver, self._desk.note, bootstrapped, retrier, self._settings)


async def fetch_network(upstream: Upstream, network_id: int, genesis: PGenesis | None) -> IndexedNetwork:
    """Return what the network is: of public ones it is known, of others a node tells. Raises NodeUnavailable."""
    known = builtin_parameters(network_id)
    if known is not None:
        return IndexedNetwork(known, genesis)
    node = await _first_that_answers(await upstream.state.nodes())
    told_fee = await node.fee_config()
    fee = _UNTOLD_FEE
    if told_fee is not None:
        fee = L1FeeConfig(told_fee.target, told_fee.min_price, told_fee.excess_conversion, told_fee.capacity)
    asset_id = AssetID(await node.staking_asset())
    times_s = (await upstream.info.upgrades()).times_s
    if genesis is not None:
        return IndexedNetwork(parameters_from_node(network_id, asset_id, genesis, times_s, fee), genesis)
    chain_ids = (await upstream.info.blockchain_id("X"), await upstream.info.blockchain_id("C"))
    upgrades = UpgradeTimes.named(times_s)
    return IndexedNetwork(Parameters(network_id, asset_id, *chain_ids, upgrades, STANDARD_REWARDS, fee), None)


def _x_beginning(subject: IndexedNetwork) -> XChainOrigin | None:
    genesis, params = subject.genesis, subject.params
    if genesis is None:
        return None
    creation = next((tx.unsigned for tx in genesis.chains if bytes(tx.id) == bytes(params.x_chain_id)), None)
    if not isinstance(creation, CreateChainTx):
        # It is another network's, which the P-Chain will say.
        return None
    ended_s = 0 if subject.is_x_complete else params.upgrades.cortina_s
    # Block 0 has the time of that upgrade, even where the network began later.
    time_s = min(genesis.timestamp, params.upgrades.cortina_s)
    return XChainOrigin(parse_x_genesis(creation.genesis), creation.genesis, time_s, ended_s)


async def _first_that_answers(nodes: Sequence[NodeState]) -> NodeState:
    for node in nodes[:-1]:
        try:
            await node.p_height()
        except NodeUnavailable:
            continue
        return node
    return nodes[-1]


def indexer_node_settings(settings: NodeSettings, indexing: IndexerSettings) -> NodeSettings:
    """Return how this process calls nodes: at its own pace, and with room for large answers."""
    return replace(
        settings,
        follow_calls_per_s=indexing.calls_per_s,
        follow_max_concurrency=indexing.max_concurrency,
        max_answer_bytes=settings.max_set_bytes,
        call_timeout_s=max(settings.call_timeout_s, indexing.call_timeout_s),
    )
