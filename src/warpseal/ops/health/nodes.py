"""The check of the nodes that the daemon asks (`nodes`): can one of each list be used, and does it keep up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from warpseal.errors import NodeFailure
from warpseal.node.pool import NodeResult
from warpseal.ops.health.chains import ChainProgress, LagTimer
from warpseal.ops.health.check import APPLICATION, CheckOutcome, HealthCheck, go_duration
from warpseal.ops.health.settings import HealthSettings

P_CHAIN_API: Final = "p-chain-api"
INFO_API: Final = "info-api"
STALE_HEIGHT: Final = "the proposed P-Chain height is not known, or stale"
_AGAIN_S: Final = 5.0
# However often checks are looked at.
_LEAST_S: Final = 1.0

Probe = Callable[[], Awaitable[Sequence[NodeResult[int]]]]
"""Asks every node of a list; never raises."""


class Proposed(Protocol):
    """The height that signing goes by."""

    @property
    def last(self) -> int | None:
        """The height last heard of; None before any."""
        ...

    @property
    def is_fresh(self) -> bool:
        """Whether it can be relied on."""
        ...


class NodeMonitor:
    """What the nodes of each list said last. heights: probes p-chain-api, for heights; info: info-api, for anything.

    now: seconds that never go back.
    """

    def __init__(
        self, heights: Probe, info: Probe, proposed: Proposed, settings: HealthSettings, now: Callable[[], float]
    ) -> None:
        self._probes = {P_CHAIN_API: heights, INFO_API: info}
        self._proposed = proposed
        self._settings = settings
        self._now = now
        self._told: dict[str, Sequence[NodeResult[int]]] = {}
        self._missing: dict[int, LagTimer] = {}
        self._behind_s: dict[int, float] = {}

    async def run(self, changed: Callable[[], None]) -> None:
        """Ask the nodes in each round of checks, more often while something is wrong, until cancelled."""
        while True:
            before = tuple(self._faults())
            await self.ask()
            after = tuple(self._faults())
            if after != before:
                changed()
            frequency_s = max(_LEAST_S, self._settings.check_frequency_s)
            await asyncio.sleep(min(_AGAIN_S, frequency_s) if after else frequency_s)

    async def ask(self) -> None:
        """Ask every node once."""
        told = await asyncio.gather(*(probe() for probe in self._probes.values()))
        self._told = dict(zip(self._probes, told, strict=True))
        heights = {one.position: one.value for one in self._told[P_CHAIN_API] if one.value is not None}
        highest = max(heights.values(), default=None)
        self._behind_s = {
            position: self._missing.setdefault(position, LagTimer()).age_s(ChainProgress(height, highest), self._now())
            for position, height in heights.items()
        }

    def check(self) -> HealthCheck:
        """Return the check; it also fails without a proposed height, for then nothing is signed."""
        return HealthCheck("nodes", self._look, frozenset({APPLICATION}), is_prompt=True)

    def _look(self) -> CheckOutcome:
        faults = [] if self._proposed.is_fresh else [STALE_HEIGHT]
        message = {"nodes": dict(self._shown()), "proposedHeight": self._proposed.last}
        return CheckOutcome(message, "; ".join((*faults, *self._faults())) or None)

    def _shown(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for name, answers in self._told.items():
            for one in answers:
                shown: dict[str, Any] = {} if one.failure is None else {"error": one.failure.value}
                if name == P_CHAIN_API and one.value is not None:
                    shown["height"] = one.value
                    if behind_s := self._behind_s[one.position]:
                        shown["behindFor"] = go_duration(behind_s)
                yield f"{name}[{one.position}]", shown

    def _faults(self) -> Iterator[str]:
        """Yield what is wrong now; that a node is down while another one of its list is not, is nothing."""
        for name, answers in self._told.items():
            for one in answers:
                if one.failure is NodeFailure.WRONG_NETWORK:
                    yield f"{name}[{one.position}] is of another network"
            first = next((one for one in answers if one.value is not None), None)
            if first is None:
                yield f"no node of {name} can be used"
            elif name == P_CHAIN_API and self._behind_s[first.position] > self._settings.max_lag_s:
                allowed = go_duration(self._settings.max_lag_s)
                yield f"{name}[{first.position}] is behind the others for longer than {allowed}"
