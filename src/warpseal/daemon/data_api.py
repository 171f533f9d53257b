"""The Data API: contracts that the operator described, prices, and the gate of its requests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from warpseal.api.data.contract_info import CONTRACTS_FOLDER, ContractInfoFolder
from warpseal.api.data.evm_chains import EvmChainDirectory
from warpseal.api.data.services import DataServices, EphemeralKeys
from warpseal.api.http.startup_gate import StartupGate
from warpseal.daemon.core import Core
from warpseal.daemon.events import Events
from warpseal.daemon.node_api import NodeApi
from warpseal.daemon.validators import ValidatorNetwork
from warpseal.indexer.status import IndexStatus
from warpseal.prices.sources import AvaxPrices, PriceSource
from warpseal.resources.text import NetworkText
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
    data_gate: StartupGate[DataServices],
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

    async def build() -> DataServices:
        view = core.upstream.view
        chains = await view.primary_chains(core.network_id)
        return DataServices(
            network_id=core.network_id,
            chains=chains,
            index=None,
            node=view,
            key_store=core.store.api_keys if core.has_store else EphemeralKeys(),
            prices=(
                AvaxPrices(await view.staking_asset(core.network_id), prices) if prices else None
            ),
            aliases=node_api.aliases,
            evm=contracts,
            uptime_source=validators.uptime,
            metrics_database=None if usage is None else usage.database,
            usage=None if usage is None else usage.source,
            forecasts=forecast,
            events=events.feed,
            signing_blocks=core.store.signing_blocks,
            icm=icm,
        )

    async def run() -> None:
        """Open the gate once the primary chains have their ids: at once on public networks."""
        on_failure = partial(_note_failure, data_gate)
        retrier = Retrier(_BACKOFF, {NodeUnavailable: "nodes"}, on_failure)
        services = await retrier.call(build)
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as parts:
            if evm_index is not None:
                await stack.enter_async_context(evm_index.opened(services.chains))
                core.keep_running(parts, "L1s of a node", evm_index.find_l1s)
            data_gate.open(_with_index(core, services, index_status))
            # The indexes of EVM chains stay open.
            await asyncio.Event().wait()

    core.keep_running(tasks, "Data API", run)
    yield


def _note_failure(gate: StartupGate[DataServices], error: Exception, delay_s: float) -> None:
    assert isinstance(error, NodeUnavailable)
    gate.unavailable(error)


def _with_index(core: Core, services: DataServices, index_status: IndexStatus) -> DataServices:
    """Return the services with the index of the primary chains, if there is one."""
    index = index_status.index
    if index is None:
        return services
    index.text = NetworkText(services.network_id, services.chains)
    return replace(services, index=index, indexed=frozenset(core.config.indexer.chains))
