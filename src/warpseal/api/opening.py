"""The service as the doors see it while the daemon starts: requests wait, within their time, until it is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from warpseal.aggregation.request import Aggregation, AggregationRequest
from warpseal.errors import NodeUnavailable
from warpseal.validators.following import SubnetReadiness


class Aggregator(Protocol):
    """The service behind the doors."""

    async def aggregate(self, request: AggregationRequest) -> Aggregation:
        """Return the signed message. Raises a WarpsealError."""
        ...


class Followed(Protocol):
    """The subnets whose validators are connected to."""

    def readiness(self) -> Sequence[SubnetReadiness]:
        """Tell how much of the Primary Network and of each tracked subnet is connected."""
        ...


class Heights(Protocol):
    """The proposed height."""

    @property
    def is_fresh(self) -> bool:
        """Whether it can be relied on."""
        ...


@dataclass(frozen=True, slots=True)
class _Open:
    network_id: int
    aggregator: Aggregator
    followed: Followed
    heights: Heights


class Opening:
    """Closed until `open`; no request is refused for coming early.

    patience_s: how long a request without a time of its own waits.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._opened: _Open | None = None
        self._is_open = asyncio.Event()
        self._reason = NodeUnavailable("the network id")

    def open(self, network_id: int, aggregator: Aggregator, followed: Followed, heights: Heights) -> None:
        """Let everybody in who waits."""
        self._opened = _Open(network_id, aggregator, followed, heights)
        self._is_open.set()

    def unavailable(self, reason: NodeUnavailable) -> None:
        """Note why it is still closed, for those whose time runs out."""
        self._reason = reason

    async def aggregate(
        self, request: AggregationRequest, admit: Callable[[int], None] = lambda network_id: None
    ) -> Aggregation:
        """Return the signed message; what was spent on waiting counts.

        admit: told the network id as soon as it is known, before anything is asked; raises to refuse the request.
        Raises what `admit` and the service raise, and NodeUnavailable when nobody told the network id in time.
        """
        if self._opened is not None:
            admit(self._opened.network_id)
            return await self._opened.aggregator.aggregate(request)
        started = asyncio.get_running_loop().time()
        patience_s = request.timeout_s or self._patience_s
        opened = await self._entered(patience_s)
        admit(opened.network_id)
        left_s = patience_s - (asyncio.get_running_loop().time() - started)
        return await opened.aggregator.aggregate(replace(request, timeout_s=max(left_s, 0.001)))

    def readiness(self) -> Sequence[SubnetReadiness]:
        """Tell how much of each always followed subnet is connected; nothing is known while closed."""
        return self._opened.followed.readiness() if self._opened else ()

    def height_is_fresh(self) -> bool:
        """Tell whether the proposed height can be relied on."""
        return self._opened is not None and self._opened.heights.is_fresh

    async def _entered(self, patience_s: float) -> _Open:
        try:
            async with asyncio.timeout(patience_s):
                await self._is_open.wait()
        except TimeoutError:
            raise self._reason from None
        assert self._opened is not None
        return self._opened
