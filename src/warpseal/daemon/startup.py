"""What the daemon does once its ports listen: everything behind the doors is built and kept going."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from random import SystemRandom
from typing import Final

from warpseal import __version__
from warpseal.api.data.services import DataOpening, DataServices, EphemeralKeys, KeyStore
from warpseal.api.startup_gate import Opening, Services
from warpseal.config.keys import Config
from warpseal.daemon.evm_api import EvmApi
from warpseal.daemon.node_api import NodeApi
from warpseal.daemon.services import build_services, metric_sources, open_upstreams
from warpseal.daemon.validators_api import ValidatorsApi
from warpseal.errors import NodeUnavailable
from warpseal.history.aliases import ChainAliases
from warpseal.history.ports import UptimeSource
from warpseal.index.database import index_url
from warpseal.index.index import Index
from warpseal.indexer.status import IndexStatus
from warpseal.metrics.registry import Metrics
from warpseal.node.info import InfoClient
from warpseal.node.node_view import NodeViewClient
from warpseal.peers.identity import lock_identity
from warpseal.prices.avax import AvaxPrices, PriceSource, open_price_sources
from warpseal.runtime.backoff import Backoff
from warpseal.store.settings import OFF
from warpseal.warp.ids import node_id_text

log = logging.getLogger(__name__)

_NETWORK_ID_RETRY: Final = Backoff(first_s=0.25, cap_s=5.0)


async def start_services(
    config: Config, opening: Opening, data: DataOpening, faces: tuple[NodeApi, EvmApi], metrics: Metrics
) -> None:
    face, evm = faces
    async with open_price_sources(config.prices) as price_sources, open_upstreams(config, metrics) as ground:
        evm.open(ground.upstream.view, ground.upstream.info)
        network_id = await _network_id(ground.upstream.info, (opening, data))
        async with AsyncExitStack() as stack:
            claim = stack.enter_context(lock_identity(config.peers, network_id))
            core = await stack.enter_async_context(build_services(config, ground, claim, network_id, metrics))
            us = {"version": __version__, "node_id": node_id_text(claim.identity.node_id), "network_id": network_id}
            log.info("the network is known", extra=us)
            status = IndexStatus()
            asked = metric_sources(core, config)
            metrics.watch(replace(asked, health=face.health.results, indexed=status.samples))
            opening.open(
                Services(
                    network_id,
                    core.aggregator,
                    core.l1_messages,
                    core.followed,
                    core.heights,
                    lambda: status.extend(core.beside()),
                )
            )
            face.open(core, claim.identity.node_id, status)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(core.run())
                tasks.create_task(face.learn_chains(ground.upstream, network_id))
                tasks.create_task(face.watch_nodes(core, ground.upstream))
                validators = ValidatorsApi(config, face.interfaces)
                tasks.create_task(validators.run(core, ground.upstream))
                secrets = EphemeralKeys() if config.store.url == OFF else core.store.api_keys
                known = _Known(network_id, ground.upstream.view, secrets, face.aliases, price_sources, core.observed)
                tasks.create_task(_open_data(data, config, claim.folder, known, status))


async def _network_id(info: InfoClient, doors: Sequence[Opening | DataOpening]) -> int:
    """Ask until a node answers: one that is down at start is no reason to give up."""
    delay_s, random = 0.0, SystemRandom()
    while True:
        try:
            return await info.network_id()
        except NodeUnavailable as error:
            for door in doors:
                door.unavailable(error)
            delay_s = _NETWORK_ID_RETRY.next_delay(delay_s, random)
            log.warning("the network id is not known yet", extra={"reason": str(error), "next_try_s": delay_s})
            await asyncio.sleep(delay_s)


@dataclass(frozen=True, slots=True)
class _Known:
    """What the Data API stands on beside the index."""

    network_id: int
    view: NodeViewClient
    secrets: KeyStore
    aliases: ChainAliases
    price_sources: Sequence[PriceSource]
    observed: UptimeSource

    async def services(self) -> DataServices:
        """Return the services without an index. Raises NodeUnavailable."""
        chains = await self.view.primary_chains(self.network_id)
        prices = None
        if self.price_sources:
            prices = AvaxPrices(await self.view.staking_asset(self.network_id), self.price_sources)
        return DataServices(
            self.network_id, chains, None, self.view, self.secrets, prices, self.aliases, observed=self.observed
        )


async def _open_data(
    data: DataOpening, config: Config, folder: Path | None, known: _Known, status: IndexStatus
) -> None:
    """Open the Data API as soon as a node tells which chains are the primary ones; on public networks at once."""
    delay_s, random = 0.0, SystemRandom()
    while True:
        try:
            services = await known.services()
            break
        except NodeUnavailable as error:
            data.unavailable(error)
            delay_s = _NETWORK_ID_RETRY.next_delay(delay_s, random)
            await asyncio.sleep(delay_s)
    if not config.indexer.chains:
        data.open(services)
        return
    async with Index(index_url(config.index, folder), services.chains, config.index) as index:
        status.index = index
        data.open(replace(services, index=index, indexed=frozenset(config.indexer.chains)))
        await index.run()
