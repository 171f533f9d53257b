"""The chains for which messages are signed, as their nodes see them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from warpseal.daemon.core import Core
from warpseal.daemon.validators import ValidatorNetwork
from warpseal.delivery.destination import Destinations


@asynccontextmanager
async def open_destinations(
    core: Core, tasks: asyncio.TaskGroup, validators: ValidatorNetwork
) -> AsyncIterator[Destinations]:
    """Look destinations up on request."""
    configured = frozenset(chain.blockchain_id for chain in core.config.node.evm_chains)
    yield Destinations(
        core.upstream, validators.chains, validators.epochs, core.network_id, configured
    )
