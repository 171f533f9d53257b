"""The services behind the aggregation endpoints, and how a request reaches them while the daemon starts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from starlette.types import Receive

from warpseal.aggregation.service import Aggregation, AggregationRequest
from warpseal.api.request_errors import ClientDisconnected
from warpseal.api.settings import ApiSettings
from warpseal.api.startup_gate import StartupGate
from warpseal.errors import NetworkNotServed
from warpseal.l1.request import L1Request, L1SignedMessage
from warpseal.validators.subnet_tracker import SubnetReadiness

T = TypeVar("T")
R = TypeVar("R", AggregationRequest, L1Request)

NetworkGuard = Callable[[int], None]
"""Called with the id of the served network; raises if a request is for another network."""


@dataclass(frozen=True, slots=True)
class SigningServices:
    """The functions that the aggregation endpoints and the probes call.

    aggregate, l1_message, explain_l1_message raise a WarpsealError. readiness: of the Primary Network and each tracked
    subnet. is_height_fresh: whether the proposed height is recent. background_status: state of what signing does not
    need, JSON-ready.
    """

    network_id: int
    aggregate: Callable[[AggregationRequest], Awaitable[Aggregation]]
    l1_message: Callable[[L1Request], Awaitable[L1SignedMessage]]
    explain_l1_message: Callable[[L1Request], Awaitable[Mapping[str, Any]]]
    readiness: Callable[[], Sequence[SubnetReadiness]]
    is_height_fresh: Callable[[], bool]
    background_status: Callable[[], Mapping[str, Any]]


async def admit(gate: StartupGate[SigningServices], request: R, guard: NetworkGuard) -> tuple[SigningServices, R]:
    """Return the services and the request, its timeout shortened by the time that it waited for them.

    Raises what the gate and the guard raise.
    """
    if gate.services is not None:
        guard(gate.services.network_id)
        return gate.services, request
    loop = asyncio.get_running_loop()
    deadline = loop.time() + (request.timeout_s or gate.timeout_s)
    services = await gate.wait(request.timeout_s)
    guard(services.network_id)
    return services, replace(request, timeout_s=max(deadline - loop.time(), 0.001))


def network_guard(name: str, settings: ApiSettings) -> NetworkGuard:
    """Return the guard of a request whose path names a network. The guard raises NetworkNotServed."""

    def guard(network_id: int) -> None:
        served = settings.networks_served(network_id)
        if name.lower() not in served:
            raise NetworkNotServed(name, served, network_id)

    return guard


def allow_any_network(network_id: int) -> None:
    """Accept every network: the kebab path names none."""


async def cancel_on_disconnect(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """Return the result of `work`; cancel it and raise ClientDisconnected if the client closes its connection."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnected
        return working.result()
    finally:
        leaving.cancel()
        working.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
