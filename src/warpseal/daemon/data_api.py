"""The Data API: contracts that the operator described, prices, and the gate of its requests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from warpseal.api.data.contract_info import CONTRACTS_FOLDER, ContractInfoFolder
from warpseal.api.data.endpoint_needs import EndpointNeeds, EphemeralKeys
from warpseal.api.data.evm_chains import EvmChainDirectory
from warpseal.api.data.network import AvalancheNetwork
from warpseal.api.http.startup_gate import StartupGate
from warpseal.daemon.core import Core
from warpseal.daemon.events import Events
from warpseal.daemon.node_api import NodeApi
from warpseal.daemon.validators import ValidatorNetwork
from warpseal.indexer.status import IndexStatus
from warpseal.prices.sources import AvaxPrices, PriceSource
from warpseal.runtime.retry import Backoff, Retrier
from warpseal.upstream.errors import NodeUnavailable

if TYPE_CHECKING:
    from warpseal.daemon.evm_index import EvmChains
    from warpseal.daemon.usage import Usage
    from warpseal.icm.obstacles import MessageObstacles
    from warpseal.validators.forecast.service import ForecastService

_BACKOFF: Final = Backoff(first_s=0.25, cap_s=5.0)


@asynccontextmanager
async def open_contracts(
    core: Core, tasks: asyncio.TaskGroup, node_api: NodeApi
) -> AsyncIterator[EvmChainDirectory]:
    """Hold the EVM chains of the Data API, none yet, with the descriptions of their contracts."""
    folder = core.config.peers.data_dir / CONTRACTS_FOLDER
    has_contracts = os.access(folder, os.R_OK)
    descriptions = ContractInfoFolder(folder if has_contracts else None)
    if has_contracts:
        await asyncio.to_thread(descriptions.load)
    core.keep_running(tasks, "descriptions of contracts", descriptions.run)
    yield EvmChainDirectory(node_api.aliases, descriptions)


@asynccontextmanager
async def open_data_api(
    core: Core,
    tasks: asyncio.TaskGroup,
    data_gate: StartupGate[EndpointNeeds],
    node_api: NodeApi,
    prices: Sequence[PriceSource],
    usage: Usage | None,
    index_status: IndexStatus,
    events: Events,
    validators: ValidatorNetwork,
    forecast: ForecastService,
    contracts: EvmChainDirectory,
    evm_index: EvmChains | None,
    icm: MessageObstacles | None,
) -> AsyncIterator[None]:
    """Open the Data API in the background."""

    async def build() -> EndpointNeeds:
        view = core.upstream.view
        chains = await view.primary_chains(core.network_id)
        network = AvalancheNetwork(
            core.network_id,
            chains,
            view,
            node_api.aliases,
            index_status.index,
            frozenset(core.config.indexer.chains),
        )
        if index_status.index is not None:
            index_status.index.text = network.text
        avax_prices = None
        if prices:
            avax_prices = AvaxPrices(await view.staking_asset(core.network_id), prices)
        return EndpointNeeds(
            network=network,
            evm=contracts,
            key_store=core.store.api_keys if core.has_store else EphemeralKeys(),
            signing_blocks=core.store.signing_blocks,
            metrics_database=None if usage is None else usage.database,
            prices=avax_prices,
            uptimes=validators.uptime,
            forecasts=forecast,
            obstacles=icm,
            usage=None if usage is None else usage.source,
            feed=events.feed,
        )

    async def run() -> None:
        """Open the gate once the primary chains have their ids: at once on public networks."""
        on_failure = partial(_note_failure, data_gate)
        retrier = Retrier(_BACKOFF, {NodeUnavailable: "nodes"}, on_failure)
        needs = await retrier.call(build)
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as parts:
            if evm_index is not None:
                await stack.enter_async_context(evm_index.opened(needs.network.chains))
                core.keep_running(parts, "L1s of a node", evm_index.find_l1s)
            data_gate.open(needs)
            # The indexes of EVM chains stay open.
            await asyncio.Event().wait()

    core.keep_running(tasks, "Data API", run)
    yield


def _note_failure(gate: StartupGate[EndpointNeeds], error: Exception, delay_s: float) -> None:
    assert isinstance(error, NodeUnavailable)
    gate.unavailable(error)
