"""ICM messages that are signed before a relayer asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from warpseal.aggregation.service import SignatureAggregator
from warpseal.daemon.core import Core
from warpseal.daemon.validators import ValidatorNetwork
from warpseal.delivery.service import DeliveryService
from warpseal.icm.signer import IcmSigner
from warpseal.store.locks import Leadership


@asynccontextmanager
async def open_eager_icm(
    core: Core,
    tasks: asyncio.TaskGroup,
    validators: ValidatorNetwork,
    signing: SignatureAggregator,
    delivery: DeliveryService,
    icm_leadership: Leadership,
) -> AsyncIterator[IcmSigner]:
    """Sign the messages of the configured subnets ahead."""
    signer = IcmSigner(
        delivery,
        validators.chains,
        signing.admission,
        core.store.database,
        icm_leadership,
        frozenset(core.config.delivery.eager_icm_subnet_ids),
        core.network_id,
    )
    core.keep_running(tasks, "eager signing of ICM messages", signer.run)
    yield signer
