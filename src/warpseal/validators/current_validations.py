"""The validations of subnets as the P-Chain had them a moment ago: kept, and asked for once whoever wants them.

Source of truth: platform.getCurrentValidators.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from warpseal.errors import NodeUnavailable
from warpseal.node.limits import CallOrigin
from warpseal.node.p_chain import CurrentValidation
from warpseal.node.platform import PlatformClient
from warpseal.runtime.single_flight import SingleFlight
from warpseal.warp.ids import SubnetID

Validations = tuple[CurrentValidation, ...]

STALE_S: Final = 60.0
"""For how long an answer still does while no node answers."""


@dataclass(frozen=True, slots=True)
class _Known:
    validations: Validations
    at: float


class CurrentValidations:
    """Used from one event loop, for a set of subnets that the configuration bounds.

    learnt: told each answer of the nodes. kept_s: for how long it is taken without asking again. now: seconds of
    a clock that never goes back, the event loop's unless given.
    """

    def __init__(
        self,
        platform: PlatformClient,
        learnt: Callable[[Validations], None] = lambda validations: None,
        *,
        kept_s: float = 10.0,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._platform = platform
        self._learnt = learnt
        self._kept_s = kept_s
        self._now = now or (lambda: asyncio.get_running_loop().time())
        self._known: dict[SubnetID, _Known] = {}
        self._flights: SingleFlight[SubnetID, Validations] = SingleFlight()

    async def of(self, subnet_id: SubnetID) -> Validations:
        """Return a subnet's validations, at most `kept_s` old, or `STALE_S` while nobody answers.

        Raises NodeUnavailable.
        """
        if (known := self._younger(subnet_id, self._kept_s)) is not None:
            return known
        try:
            return await self._flights.run(subnet_id, lambda: self._ask(subnet_id, CallOrigin.CALLER))
        except NodeUnavailable:
            if (known := self._younger(subnet_id, STALE_S)) is not None:
                return known
            raise

    async def refresh(self, subnet_id: SubnetID) -> None:
        """Ask anew, before anybody waits for it. Raises NodeUnavailable."""
        await self._flights.run(subnet_id, lambda: self._ask(subnet_id, CallOrigin.DAEMON))

    async def _ask(self, subnet_id: SubnetID, origin: CallOrigin) -> Validations:
        validations = await self._platform.current_validations(subnet_id, origin=origin)
        self._known[subnet_id] = _Known(validations, self._now())
        self._learnt(validations)
        return validations

    def _younger(self, subnet_id: SubnetID, than_s: float) -> Validations | None:
        known = self._known.get(subnet_id)
        return known.validations if known is not None and self._now() - known.at < than_s else None
