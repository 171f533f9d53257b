"""What hinders ICM messages of EVM chains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from warpseal.aggregation.service import SignatureAggregator
from warpseal.daemon.core import Core
from warpseal.daemon.delivery import denies_calls
from warpseal.daemon.validators import ValidatorNetwork
from warpseal.delivery.preflight import Preflight
from warpseal.delivery.service import DeliveryService
from warpseal.icm.obstacles import MessageObstacles
from warpseal.messages.signing_blocks import subjects


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
        delivery.sign,
        preflight.check,
        core.upstream.chain_rpc,
        partial(denies_calls, core.config),
        core.network_id,
        find_block=lambda message: core.store.signing_blocks.find(subjects(message)),
        known_set=validators.sets.known,
        unreachable_reason=validators.unreachable_reason,
        subnet_of=validators.chains.subnet_of,
    )
