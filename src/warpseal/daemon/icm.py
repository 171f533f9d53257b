"""What hinders ICM messages of EVM chains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from warpseal.aggregation.service import SignatureAggregator
from warpseal.daemon.core import Core
from warpseal.daemon.validators import ValidatorNetwork
from warpseal.delivery.preflight import Preflight
from warpseal.delivery.service import DeliveryService
from warpseal.icm.obstacles import MessageObstacles


@asynccontextmanager
async def open_icm(
    core: Core,
    tasks: asyncio.TaskGroup,
    validators: ValidatorNetwork,
    signing: SignatureAggregator,
    delivery: DeliveryService,
    preflight: Preflight,
) -> AsyncIterator[MessageObstacles]:
    """Look up what hinders ICM messages, on request."""
    yield MessageObstacles(
        signing,
        core.store.archive,
        delivery,
        preflight,
        core.upstream.chain_rpc,
        core.network_id,
        blocks=core.store.signing_blocks,
        sets=validators.sets,
        peers=validators.network,
        chains=validators.chains,
    )
