"""A preflight over a node that a test serves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from tests.api.openapi.documented_responses import assert_valid
from tests.node.recorded_node import RecordedNode
from tests.validators.fixtures import ValidatorServices
from warpseal.api.http.operations import COMPONENT
from warpseal.delivery.destination import Destinations
from warpseal.delivery.preflight import Preflight, PreflightRequest
from warpseal.delivery.statement import StatementChecker
from warpseal.warp.ids import ChainID
from warpseal.warp.message import SignedMessage

_RESPONSE: Final = {"$ref": COMPONENT.format(name="PreflightAnswer")}


def eth_calls(node: RecordedNode) -> list[tuple[str, Any, Any]]:
    """Return the path, the transaction and the block of each eth_call that a node got."""
    calls: list[tuple[str, Any]] = [
        (path, params) for path, method, params in node.seen if method == "eth_call"
    ]
    return [(path, *params) for path, params in calls]


class PreflightSetup:
    """A preflight, and the services behind it.

    now: Unix seconds.
    """

    def __init__(
        self, services: ValidatorServices, network_id: int, now: Callable[[], float]
    ) -> None:
        self.services = services
        self.destinations = Destinations(
            services.upstream,
            services.chains,
            services.epochs,
            network_id,
            now=services.clock,
            unix_now=now,
        )
        self._network_id = network_id
        self._now = now
        self.preflight = self.build()

    def build(self, denies_calls: Callable[[ChainID], bool] = lambda chain_id: False) -> Preflight:
        """Return a preflight.

        denies_calls: whether callers may not have calls of a chain executed.
        """
        services, upstream = self.services, self.services.upstream
        statements = StatementChecker(
            upstream.platform, services.chains, upstream.chain_rpc.eth_call, now=self._now
        )
        return Preflight(
            self.destinations,
            services.chains,
            services.sets,
            services.heights,
            statements,
            upstream.chain_rpc,
            self._network_id,
            denies_calls=denies_calls,
        )

    async def check(
        self, signed: SignedMessage, destination_id: ChainID, **options: Any
    ) -> dict[str, Any]:
        """Return the reply's body, after a check that the OpenAPI document describes it."""
        reply = await self.preflight.check(PreflightRequest(signed, destination_id, **options))
        body: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(reply))
        assert_valid(_RESPONSE, body)
        return body
