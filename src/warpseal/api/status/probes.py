"""The pages that monitoring polls: GET /health, GET /ready and GET /metrics.

/health and /ready report whether the daemon can sign: /health in the form and with the statuses of
the reference, /ready with what is missing. /metrics is on the metrics port only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from heapq import nlargest
from typing import Final, Literal, Protocol

from msgspec import UNSET
from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response

from warpseal.api.http.error_response import without_addresses
from warpseal.api.http.middleware import is_from_this_machine
from warpseal.api.http.responses import json_response
from warpseal.api.signing.request_fields import decode_id, unknown_field
from warpseal.api.status.probe_bodies import (
    DisconnectedValidator,
    Health,
    HealthDetails,
    Readiness,
    ReadyFields,
    ReadySubnet,
    SigningHealth,
)
from warpseal.errors import InvalidRequest
from warpseal.metrics.registry import CONTENT_TYPE, OPENMETRICS, OPENMETRICS_CONTENT_TYPE, Metrics
from warpseal.ops.health.chains import STALE_HEIGHT
from warpseal.ops.health.registry import HealthRegistry
from warpseal.runtime.tracing import TRACING
from warpseal.validators.balances import UNDERFUNDED_ADVICE
from warpseal.validators.subnet_tracker import SubnetReadiness
from warpseal.warp.ids import NodeID, SubnetID, id_text, node_id_text
from warpseal.warp.quorum_shortfall import DisconnectedNode, MissingSigner
from warpseal.warp.validator_set import Validator

MAX_SHOWN: Final = 50
_SUBNET: Final = "subnetId"
_REFRESH_TIMEOUT_S: Final = 1.0


class ValidatorConnections(Protocol):
    """The connections to the validators that sign (`daemon.validators.ValidatorNetwork`)."""

    def readiness(self) -> Sequence[SubnetReadiness]: ...
    def missing_connection(self, node_id: NodeID) -> DisconnectedNode | None: ...
    def underfunded(self, subnet_id: SubnetID) -> Sequence[MissingSigner]: ...


class ProbeEndpoints:
    """Reports the state of the daemon at the time of each request; a starting daemon is not ready.

    checks: health checks that decide whether the daemon can sign.
    fields: fields of `/ready` about parts that signing does not need.
    counted: subnets that decide; empty: the Primary Network and all tracked subnets.
    """

    def __init__(
        self,
        checks: HealthRegistry,
        fields: ReadyFields,
        counted: Collection[SubnetID] = (),
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._checks = checks
        self._fields = fields
        self._counted = counted
        self._now = now
        self._validators: ValidatorConnections | None = None

    def open(self, validators: ValidatorConnections) -> None:
        """Report the validators from now on: everything that signs is there."""
        self._validators = validators

    def readiness(self) -> Sequence[SubnetReadiness]:
        """Return the connected weight of the Primary Network and of each tracked subnet; empty
        while starting.
        """
        return () if self._validators is None else self._validators.readiness()

    def reasons(self, subnet_ids: Collection[SubnetID] = ()) -> list[str]:
        """Return the reasons why the daemon is not ready.

        subnet_ids: the subnets that decide for this request.
        """
        if self._validators is None:
            return [STALE_HEIGHT]
        return self._checks.blocking_errors(subnet_ids or self._counted)

    async def health(self, request: Request) -> Response:
        """GET /health: 200 while the daemon can sign, 503 while it cannot or does not know yet."""
        reasons = self.reasons()
        status: Literal["up", "down"] = "down" if reasons else "up"
        timestamp = self._now().isoformat().replace("+00:00", "Z")
        check = SigningHealth(status=status, timestamp=timestamp, error="; ".join(reasons) or UNSET)
        return json_response(
            Health(status=status, details=HealthDetails(signing=check)), 503 if reasons else 200
        )

    async def ready(self, request: Request) -> Response:
        """GET /ready: 200 if each subnet that counts has enough weight connected, else 503.

        ?subnetId=ID: that subnet alone counts and is shown. Raises InvalidRequest, also for any
        other parameter: the caller would take the state of all subnets for that of the one.
        """
        for name in request.query_params:
            if name != _SUBNET:
                raise unknown_field(name, (_SUBNET,))
        subnets, subnet_text = self.readiness(), request.query_params.get(_SUBNET)
        subnet_ids: tuple[SubnetID, ...] = ()
        if subnet_text is not None:
            subnet_ids = (SubnetID(decode_id(_SUBNET, subnet_text, InvalidRequest)),)
            if subnets and not any(subnet.subnet_id in subnet_ids for subnet in subnets):
                raise InvalidRequest(
                    _SUBNET, "the daemon does not follow this subnet; add it to tracked-subnet-ids"
                )
            subnets = [subnet for subnet in subnets if subnet.subnet_id in subnet_ids]
        reasons = self.reasons(subnet_ids)
        shows_addresses = is_from_this_machine(request.scope)
        ready_subnets = [
            self._ready_subnet(subnet, shows_addresses=shows_addresses) for subnet in subnets
        ]
        await self._refresh()
        # The parts behind the fields are there as soon as the validators are.
        background = {} if self._validators is None else asdict(self._fields.read())
        readiness = Readiness(
            ready=not reasons,
            subnets=tuple(ready_subnets),
            faults=tuple(reasons) or UNSET,
            degraded=tuple(self._checks.degraded()) or UNSET,
            **background,
        )
        return json_response(readiness, 503 if reasons else 200)

    async def _refresh(self) -> None:
        """Have the background status read again if it is old; what was read before is shown if that
        takes too long.
        """
        if self._validators is not None and self._fields.refresh is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_REFRESH_TIMEOUT_S):
                    await self._fields.refresh()

    def _ready_subnet(self, subnet: SubnetReadiness, *, shows_addresses: bool) -> ReadySubnet:
        underfunded: Sequence[MissingSigner] = ()
        if self._validators is not None:
            underfunded = self._validators.underfunded(subnet.subnet_id)
        heaviest = nlargest(MAX_SHOWN, underfunded, key=lambda signer: int(signer.weight))
        return ReadySubnet(
            subnet_id=id_text(subnet.subnet_id),
            ready=subnet.is_ready,
            connected_weight=str(subnet.connected),
            required_weight=str(subnet.needed),
            total_weight=str(subnet.total),
            missing_validators=len(subnet.missing),
            missing=tuple(
                [
                    self._disconnected(member, shows_addresses)
                    for member in subnet.missing[:MAX_SHOWN]
                ]
            ),
            underfunded_validators=len(underfunded) or UNSET,
            underfunded=tuple(heaviest) or UNSET,
            advice=UNDERFUNDED_ADVICE if underfunded else UNSET,
        )

    def _disconnected(self, validator: Validator, shows_addresses: bool) -> DisconnectedValidator:
        validators, node_ids = self._validators, validator.node_ids[:MAX_SHOWN]
        connections: tuple[DisconnectedNode, ...] = ()
        if validators is not None:
            missing = [validators.missing_connection(node_id) for node_id in node_ids]
            connections = tuple([connection for connection in missing if connection is not None])
        if not shows_addresses:
            connections = without_addresses(connections)
        return DisconnectedValidator(
            node_ids=tuple(map(node_id_text, node_ids)),
            public_key="0x" + validator.public_key.hex(),
            weight=str(validator.weight),
            connections=connections or UNSET,
        )


class MetricsPage:
    """Encodes a snapshot of the metrics in a worker thread.

    Only one page is encoded at a time, so that scrapers cannot starve the event loop.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._encoding = asyncio.Lock()

    async def show(self, request: Request) -> Response:
        """GET /metrics: OpenMetrics if requests are traced, for the exemplars, and the scraper
        takes it.
        """
        is_openmetrics = TRACING.begin is not None and OPENMETRICS in request.headers.get(
            "accept", ""
        )
        async with self._encoding:
            page = await asyncio.to_thread(
                await self._metrics.snapshot(is_openmetrics=is_openmetrics)
            )
        return Response(
            page,
            headers={"content-type": OPENMETRICS_CONTENT_TYPE if is_openmetrics else CONTENT_TYPE},
        )
