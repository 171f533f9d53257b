"""Indexes the chosen chains side by side: what it needs to know first, one thread that writes, and how it stands."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any, Final

from warpseal.backoff import Backoff
from warpseal.chains.ids import AssetID
from warpseal.chains.p_genesis import Genesis
from warpseal.chains.p_subnets import CreateChainTx
from warpseal.chains.x_genesis import parse_x_genesis
from warpseal.errors import NodeUnavailable
from warpseal.history.chains import PrimaryChain
from warpseal.index.places import ChainNote
from warpseal.index.writer import IndexWriter
from warpseal.indexer.c_indexing import CWork
from warpseal.indexer.chain_indexer import ChainIndexer
from warpseal.indexer.drivers import CDriver, Desk, PDriver, XDriver
from warpseal.indexer.indexing_settings import IndexingSettings
from warpseal.indexer.p_indexing import CheckpointRule, PWork
from warpseal.indexer.patience import Patience
from warpseal.indexer.sources import CSource, p_source, x_source
from warpseal.indexer.x_indexing import XBeginning, XWork
from warpseal.ledger.params import (
    STANDARD_REWARDS,
    L1FeeConfig,
    Parameters,
    UpgradeTimes,
    known_parameters,
    told_parameters,
)
from warpseal.node.settings import NodeSettings
from warpseal.node.state import NodeState
from warpseal.node.upstream import Upstream

log = logging.getLogger(__name__)

# Of nodes that are too old to tell: before Etna nobody pays it.
_UNTOLD_FEE: Final = L1FeeConfig(target=10_000, min_price=512, excess_conversion=1_246_488_515)
_ALIASES: Final = {PrimaryChain.P: "P", PrimaryChain.X: "X", PrimaryChain.C: "C"}


@dataclass(frozen=True, slots=True)
class Subject:
    """What is indexed: the network as it was configured, and what it began with; None: not known."""

    params: Parameters
    genesis: Genesis | None

    @property
    def is_x_complete(self) -> bool:
        """Whether the X-Chain was a line of blocks from the start, so that all of its outputs are in its blocks."""
        return self.genesis is not None and self.params.upgrades.cortina_s <= self.genesis.timestamp


class Indexing:
    """All chains; run it, and ask it how it stands. executor: one thread, on which alone `index` is used."""

    def __init__(
        self, upstream: Upstream, index: IndexWriter, subject: Subject, settings: IndexingSettings, executor: Executor
    ) -> None:
        self._upstream = upstream
        self._index = index
        self._subject = subject
        self._settings = settings
        self._desk = Desk(executor)
        makers: dict[PrimaryChain, Callable[[], ChainIndexer[Any]]] = {
            PrimaryChain.P: self._p,
            PrimaryChain.X: self._x,
            PrimaryChain.C: self._c,
        }
        self.chains: dict[PrimaryChain, ChainIndexer[Any]] = {chain: makers[chain]() for chain in settings.chains}

    async def run(self) -> None:
        """Index until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for chain in self.chains.values():
                tasks.create_task(chain.run())
            tasks.create_task(self._report())

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(self._settings.log_every_s)
            for chain in self.chains.values():
                if not chain.is_caught_up:
                    log.info("indexing", extra=chain.as_fields())

    def _p(self) -> ChainIndexer[Any]:
        rule = CheckpointRule(self._settings.checkpoint_blocks, self._settings.checkpoint_s)
        genesis = None if self._first(PrimaryChain.P) else self._subject.genesis
        work = PWork(self._index, self._subject.params, genesis, rule)
        patience = self._patience()
        source = p_source(self._upstream.blocks, self._upstream.containers, patience, self._settings.at_once)
        return self._indexer(PDriver(work, source, self._desk, patience), patience)

    def _x(self) -> ChainIndexer[Any]:
        is_complete = self._subject.is_x_complete and not self._first(PrimaryChain.X)
        work = XWork(self._index, self._subject.params.x_chain_id, self._x_beginning(), is_complete=is_complete)
        patience = self._patience()
        clients = (self._upstream.x_chain, self._upstream.containers)
        source = x_source(*clients, patience, self._settings.at_once)
        return self._indexer(XDriver(work, source, clients, self._desk, patience), patience)

    def _c(self) -> ChainIndexer[Any]:
        params = self._subject.params
        work = CWork(self._index, params.c_chain_id, params.upgrades.apricot_5_s)
        patience = self._patience()
        return self._indexer(CDriver(work, CSource(self._upstream.c_blocks, patience), self._desk, patience), patience)

    def _indexer(self, driver: Any, patience: Patience) -> ChainIndexer[Any]:
        bootstrapped = partial(self._upstream.info.is_bootstrapped, _ALIASES[driver.chain])
        return ChainIndexer(driver, self._note, bootstrapped, patience, self._settings)

    async def _note(self, note: ChainNote) -> None:
        await self._desk.run(self._index.note, note)

    def _patience(self) -> Patience:
        return Patience(Backoff(self._settings.retry_first_s, self._settings.retry_cap_s), Random())

    def _first(self, chain: PrimaryChain) -> int:
        return self._settings.first_heights.get(chain, 0)

    def _x_beginning(self) -> XBeginning | None:
        genesis, params = self._subject.genesis, self._subject.params
        if genesis is None:
            return None
        creation = next(tx.unsigned for tx in genesis.chains if bytes(tx.id) == bytes(params.x_chain_id))
        assert isinstance(creation, CreateChainTx)
        ended_s = 0 if self._subject.is_x_complete else params.upgrades.cortina_s
        # Block 0 has the time of that upgrade, even where the network began later.
        time_s = min(genesis.timestamp, params.upgrades.cortina_s)
        return XBeginning(parse_x_genesis(creation.genesis), creation.genesis, time_s, ended_s)


async def learn_subject(upstream: Upstream, network_id: int, genesis: Genesis | None) -> Subject:
    """Return what the network is: of public ones it is known, of others a node tells. Raises NodeUnavailable."""
    known = known_parameters(network_id)
    if known is not None:
        return Subject(known, genesis)
    node = await _first_that_answers(await upstream.state.nodes())
    told_fee = await node.fee_config()
    fee = _UNTOLD_FEE
    if told_fee is not None:
        fee = L1FeeConfig(told_fee.target, told_fee.min_price, told_fee.excess_conversion, told_fee.capacity)
    asset_id = AssetID(await node.staking_asset())
    times_s = (await upstream.info.upgrades()).times_s
    if genesis is not None:
        return Subject(told_parameters(network_id, asset_id, genesis, times_s, fee), genesis)
    chain_ids = (await upstream.info.blockchain_id("X"), await upstream.info.blockchain_id("C"))
    upgrades = UpgradeTimes.named(times_s)
    return Subject(Parameters(network_id, asset_id, *chain_ids, upgrades, STANDARD_REWARDS, fee), None)


async def _first_that_answers(nodes: Sequence[NodeState]) -> NodeState:
    for node in nodes[:-1]:
        try:
            await node.p_height()
        except NodeUnavailable:
            continue
        return node
    return nodes[-1]


def node_settings(settings: NodeSettings, indexing: IndexingSettings) -> NodeSettings:
    """Return how this process calls nodes: at its own pace, and with room for large answers."""
    return replace(
        settings,
        follow_per_s=indexing.per_s,
        follow_at_once=indexing.at_once,
        max_answer_bytes=settings.max_set_bytes,
        call_timeout_s=max(settings.call_timeout_s, indexing.call_timeout_s),
    )
