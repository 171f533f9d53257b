"""The service as the doors see it while the daemon starts: requests wait, within their time, until it is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from warpseal.aggregation.request import Aggregation, AggregationRequest
from warpseal.errors import NodeUnavailable, StillStarting, WarpsealError
from warpseal.l1.request import L1Request, L1SignedMessage
from warpseal.validators.subnet_tracker import SubnetReadiness

Admit = Callable[[int], None]


def _anyone(network_id: int) -> None:
    """Admit everybody."""


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


class L1Messages(Protocol):
    """The signed messages of L1 transactions."""

    async def get(self, request: L1Request) -> L1SignedMessage:
        """Return the signed message of a transaction. Raises a WarpsealError."""
        ...

    async def explain(self, request: L1Request) -> Mapping[str, Any]:
        """Tell how it would come about, JSON-ready. Raises a WarpsealError."""
        ...


@dataclass(frozen=True, slots=True)
class Services:
    """Everything behind the doors. background: what works beside the signing, and how it stands, JSON-ready."""

    network_id: int
    aggregator: Aggregator
    l1_messages: L1Messages
    followed: Followed
    heights: Heights
    background: Callable[[], Mapping[str, Any]]


class Opening:
    """Closed until `open`; no request is refused for coming early.

    patience_s: how long a request without a time of its own waits.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._services: Services | None = None
        self._is_open = asyncio.Event()
        self._reason: WarpsealError = StillStarting()

    def open(self, services: Services) -> None:
        """Let everybody in who waits."""
        self._services = services
        self._is_open.set()

    def unavailable(self, reason: NodeUnavailable) -> None:
        """Note why it is still closed, for those whose time runs out."""
        self._reason = reason

    async def aggregate(self, request: AggregationRequest, admit: Admit = _anyone) -> Aggregation:
        """Return the signed message; what was spent on waiting counts.

        admit: told the network id as soon as it is known, before anything is asked; raises to refuse the request.
        Raises what `admit` and the service raise; where nobody told the network id in time, NodeUnavailable, or
        StillStarting while no node has had its say.
        """
        services, left_s = await self._entered(request.timeout_s, admit)
        return await services.aggregator.aggregate(request if left_s is None else replace(request, timeout_s=left_s))

    async def l1_message(self, request: L1Request, admit: Admit = _anyone) -> L1SignedMessage:
        """Return the signed message of a transaction; raises as `aggregate` does."""
        services, left_s = await self._entered(request.timeout_s, admit)
        return await services.l1_messages.get(request if left_s is None else replace(request, timeout_s=left_s))

    async def explain_l1_message(self, request: L1Request, admit: Admit = _anyone) -> Mapping[str, Any]:
        """Tell how the signed message of a transaction would come about; raises as `aggregate` does."""
        services, left_s = await self._entered(request.timeout_s, admit)
        return await services.l1_messages.explain(request if left_s is None else replace(request, timeout_s=left_s))

    def readiness(self) -> Sequence[SubnetReadiness]:
        """Tell how much of each always followed subnet is connected; nothing is known while closed."""
        return self._services.followed.readiness() if self._services else ()

    def height_is_fresh(self) -> bool:
        """Tell whether the proposed height can be relied on."""
        return self._services is not None and self._services.heights.is_fresh

    def background(self) -> Mapping[str, Any]:
        """Tell how what works beside the signing stands; nothing is known while closed."""
        return self._services.background() if self._services else {}

    async def _entered(self, timeout_s: float | None, admit: Admit) -> tuple[Services, float | None]:
        """Return the services as soon as they are there, and the seconds left; None: nothing was waited for."""
        if self._services is not None:
            admit(self._services.network_id)
            return self._services, None
        started = asyncio.get_running_loop().time()
        patience_s = timeout_s or self._patience_s
        try:
            async with asyncio.timeout(patience_s):
                await self._is_open.wait()
        except TimeoutError:
            raise self._reason from None
        assert self._services is not None
        admit(self._services.network_id)
        left_s = patience_s - (asyncio.get_running_loop().time() - started)
        return self._services, max(left_s, 0.001)
