"""The gate of signing: requests by HTTP and gRPC pass once everything that signs is open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from warpseal.aggregation.service import SignatureAggregator
from warpseal.api.http.startup_gate import StartupGate
from warpseal.api.signing.endpoints import SigningServices
from warpseal.daemon.core import Core
from warpseal.daemon.l1 import L1
from warpseal.daemon.validators import ValidatorNetwork
from warpseal.delivery.preflight import Preflight
from warpseal.delivery.service import DeliveryService


@asynccontextmanager
async def open_signing_api(
    core: Core,
    tasks: asyncio.TaskGroup,
    signing_gate: StartupGate[SigningServices],
    validators: ValidatorNetwork,
    signing: SignatureAggregator,
    l1: L1,
    delivery: DeliveryService,
    preflight: Preflight,
) -> AsyncIterator[None]:
    """Let requests pass. The health checks of all that signs are registered by then."""
    services = SigningServices(
        network_id=core.network_id,
        aggregate=signing.aggregate,
        l1_message=l1.messages.get,
        explain_l1_message=delivery.explain_l1,
        deliver=delivery.sign,
        deliver_l1_message=delivery.sign_l1,
        verify=preflight.check,
        first_signed=lambda: signing.first_signed,
        find_message=core.store.archive.find_message,
        primary_chains=lambda: core.upstream.view.primary_chains(core.network_id),
        readiness=validators.subnet_tracker.readiness,
        background=core.ready.read,
        missing_connection=validators.network.missing_connection,
        underfunded=validators.underfunded,
        refresh_status=core.registries.refresh,
    )
    signing_gate.open(services)
    yield
