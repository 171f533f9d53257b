"""The current validations of subnets, cached for seconds; concurrent callers share one call to a node.

Source of truth: platform.getCurrentValidators.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from warpseal.errors import NodeUnavailable
from warpseal.node.limits import CallOrigin
from warpseal.node.p_chain import CurrentValidation
from warpseal.node.platform import PlatformClient
from warpseal.runtime.single_flight import SingleFlight
from warpseal.warp.ids import SubnetID

Validations = tuple[CurrentValidation, ...]

STALE_S: Final = 60.0
"""For how long an answer is used while no node answers."""


class CurrentValidations:
    """Used from one event loop, for a set of subnets that the configuration bounds.

    on_update: called with each answer of the nodes. ttl_s: for how long an answer is used without a new call.
    now: seconds of a clock that never goes back, the event loop's unless given.
    """

    def __init__(
        self,
        platform: PlatformClient,
        on_update: Callable[[Validations], None] = lambda validations: None,
        *,
        ttl_s: float = 10.0,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._platform = platform
        self._on_update = on_update
        self._ttl_s = ttl_s
        self._now = now or (lambda: asyncio.get_running_loop().time())
        self._latest: dict[SubnetID, tuple[Validations, float]] = {}
        self._flights: SingleFlight[SubnetID, Validations] = SingleFlight()

    async def of(self, subnet_id: SubnetID) -> Validations:
        """Return a subnet's validations, at most `ttl_s` old, or `STALE_S` while no node answers.

        Raises NodeUnavailable.
        """
        if (validations := self._younger(subnet_id, self._ttl_s)) is not None:
            return validations
        try:
            return await self._flights.run(subnet_id, lambda: self._fetch(subnet_id, CallOrigin.CALLER))
        except NodeUnavailable:
            if (validations := self._younger(subnet_id, STALE_S)) is not None:
                return validations
            raise

    async def refresh(self, subnet_id: SubnetID) -> None:
        """Call a node now, before a caller waits for it. Raises NodeUnavailable."""
        await self._flights.run(subnet_id, lambda: self._fetch(subnet_id, CallOrigin.DAEMON))

    async def _fetch(self, subnet_id: SubnetID, origin: CallOrigin) -> Validations:
        validations = await self._platform.current_validations(subnet_id, origin=origin)
        self._latest[subnet_id] = validations, self._now()
        self._on_update(validations)
        return validations

    def _younger(self, subnet_id: SubnetID, than_s: float) -> Validations | None:
        validations, at = self._latest.get(subnet_id, (None, 0.0))
        return validations if self._now() - at < than_s else None
