"""The lists of validators of chains, under `/ext/bc/{chain}/validators`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from warpseal.api.node.admin import CHAINS
from warpseal.api.node.endpoints import ValidatorsEndpoint
from warpseal.daemon.core import Core
from warpseal.daemon.node_api import NodeApi
from warpseal.daemon.validators import ValidatorNetwork
from warpseal.errors import CallRefused
from warpseal.node.chain_apis import ChainValidatorsClient
from warpseal.validators.chain_validator_list import (
    ChainValidatorList,
    LocalView,
    ValidatorRefresher,
)
from warpseal.warp.ids import ChainID, id_text

log = logging.getLogger(__name__)


@asynccontextmanager
async def open_validator_lists(
    core: Core, tasks: asyncio.TaskGroup, validators: ValidatorNetwork, node_api: NodeApi
) -> AsyncIterator[None]:
    """Serve the lists in the background."""
    core.keep_running(tasks, "lists of validators", lambda: serve_lists(core, validators, node_api))
    yield


async def serve_lists(core: Core, validators: ValidatorNetwork, node_api: NodeApi) -> None:
    """Serve the validators of the configured chains, and of the chains of tracked subnets as soon
    as they are known.
    """
    local_view = LocalView(
        validators.chains,
        validators.current,
        validators.network.is_connected,
        validators.uptime.uptime,
    )
    chains: dict[ChainID, ChainValidatorList] = {}

    def mount(chain_id: ChainID, nodes: ChainValidatorsClient) -> None:
        chain = chains[chain_id] = ChainValidatorList(chain_id, nodes, local_view)
        routes = ValidatorsEndpoint(chain, core.config.api).routes()
        try:
            node_api.interfaces.add(CHAINS + id_text(chain_id), routes, CHAINS + "{chain}")
        except CallRefused as error:
            # An operator gave the path to another endpoint.
            log.warning("validators of a chain cannot be served", extra={"reason": str(error)})

    def on_chain(chain_id: ChainID) -> None:
        if chain_id not in chains:
            mount(chain_id, ChainValidatorsClient(()))

    for chain_id, nodes in core.upstream.validators.items():
        mount(chain_id, nodes)
    refresher = ValidatorRefresher(
        validators.chains,
        validators.current,
        validators.subnet_tracker,
        core.config.validators,
        on_chain,
    )
    await refresher.run(tuple(chains.values()))
