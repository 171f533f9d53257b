"""The gate of signing: requests by HTTP and gRPC pass once everything that signs is open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from warpseal.aggregation.service import SignatureAggregator
from warpseal.api.http.startup_gate import StartupGate
from warpseal.api.signing.signing_service import SigningService
from warpseal.api.status.probes import ProbeEndpoints
from warpseal.daemon.core import Core
from warpseal.daemon.l1 import L1
from warpseal.daemon.validators import ValidatorNetwork
from warpseal.delivery.preflight import Preflight
from warpseal.delivery.service import DeliveryService


@asynccontextmanager
async def open_signing_api(
    core: Core,
    tasks: asyncio.TaskGroup,
    signing_gate: StartupGate[SigningService],
    probes: ProbeEndpoints,
    validators: ValidatorNetwork,
    signing: SignatureAggregator,
    l1: L1,
    delivery: DeliveryService,
    preflight: Preflight,
) -> AsyncIterator[None]:
    """Let requests pass. The health checks of all that signs are registered by then."""
    signer = SigningService(
        core.network_id,
        signing,
        l1.messages,
        delivery,
        preflight,
        core.store.archive,
        core.upstream.view,
    )
    signing_gate.open(signer)
    probes.open(validators)
    yield
