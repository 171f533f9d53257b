"""Destinations as their nodes see them, signing for them, and the preflight of a message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial

from warpseal.aggregation.service import SignatureAggregator
from warpseal.config.keys import Config
from warpseal.daemon.core import Core
from warpseal.daemon.l1 import L1
from warpseal.daemon.validators import ValidatorNetwork
from warpseal.delivery.destination import Destinations
from warpseal.delivery.preflight import Preflight
from warpseal.delivery.service import DeliveryService
from warpseal.delivery.statement import StatementChecker
from warpseal.forwarding.evm.methods import DenyList
from warpseal.warp.ids import ChainID


@asynccontextmanager
async def open_destinations(
    core: Core, tasks: asyncio.TaskGroup, validators: ValidatorNetwork
) -> AsyncIterator[Destinations]:
    """Look destinations up on request."""
    configured = frozenset(chain.blockchain_id for chain in core.config.node.evm_chains)
    yield Destinations(
        core.upstream, validators.chains, validators.epochs, core.network_id, configured
    )


@asynccontextmanager
async def open_delivery(
    core: Core,
    tasks: asyncio.TaskGroup,
    validators: ValidatorNetwork,
    signing: SignatureAggregator,
    destinations: Destinations,
    l1: L1,
) -> AsyncIterator[DeliveryService]:
    """Sign for destinations on request."""
    yield DeliveryService(
        destinations,
        signing,
        l1.messages,
        validators.chains,
        validators.sets,
        validators.heights,
        core.config.delivery,
        core.config.aggregation,
    )


@asynccontextmanager
async def open_preflight(
    core: Core, tasks: asyncio.TaskGroup, validators: ValidatorNetwork, destinations: Destinations
) -> AsyncIterator[Preflight]:
    """Check signed messages on request, on a thread of its own: signing never waits for a
    preflight.
    """
    chain_rpc = core.upstream.chain_rpc
    with ThreadPoolExecutor(1, "preflight") as executor:
        statements = StatementChecker(
            core.platform, validators.chains, chain_rpc.eth_call, core.store.l1, executor=executor
        )
        yield Preflight(
            destinations,
            validators.chains,
            validators.sets,
            validators.heights,
            statements,
            chain_rpc,
            core.network_id,
            denies_calls=partial(denies_calls, core.config),
            executor=executor,
        )


def denies_calls(config: Config, chain_id: ChainID) -> bool:
    """Return whether the operator denies the method that a preflight calls for a caller."""
    denied_methods = list(config.evm_rpc.deny_methods)
    for chain in config.node.evm_chains:
        if chain.blockchain_id == chain_id:
            denied_methods += chain.deny_methods
    return DenyList(tuple(denied_methods)).denies("eth_call")
