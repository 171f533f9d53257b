"""The check of the upstream nodes (`nodes`): each list has enough usable nodes, and the node in use keeps up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from warpseal.ops.health.chains import ChainProgress, LagTimer
from warpseal.ops.health.check import APPLICATION, CheckOutcome, HealthCheck, go_duration
from warpseal.ops.settings import HealthSettings
from warpseal.upstream.answers import find_quorum_height
from warpseal.upstream.errors import NodeFailure
from warpseal.upstream.pool import NodeResult

P_CHAIN_API: Final = "p-chain-api"
INFO_API: Final = "info-api"
STALE_HEIGHT: Final = "the proposed P-Chain height is not known, or stale"
_RETRY_S: Final = 5.0
_MIN_INTERVAL_S: Final = 1.0

NodeProbe = Callable[[], Awaitable[Sequence[NodeResult[int]]]]
"""Asks every node of a list; never raises."""


class NodeMonitor:
    """The latest answers of the nodes of each list.

    heights: asks the nodes of p-chain-api for their heights; info: asks those of info-api for any answer. proposed: the
    proposed P-Chain height, which the signing uses; is_fresh: whether it is recent enough for that. now: seconds of a
    monotonic clock. quorum: how many nodes of p-chain-api must agree; as many have reached the height with which
    the others are compared, so that fewer nodes that forge heights do not make the others late.
    """

    def __init__(
        self,
        heights: NodeProbe,
        info: NodeProbe,
        proposed: Callable[[], int | None],
        is_fresh: Callable[[], bool],
        settings: HealthSettings,
        now: Callable[[], float],
        quorum: int = 1,
    ) -> None:
        self._quorum = quorum
        self._probes = {P_CHAIN_API: heights, INFO_API: info}
        self._proposed = proposed
        self._is_fresh = is_fresh
        self._settings = settings
        self._now = now
        self._answers: dict[str, Sequence[NodeResult[int]]] = {}
        self._lags: dict[int, LagTimer] = {}
        self._behind_s: dict[int, float] = {}

    async def run(self, on_change: Callable[[], None]) -> None:
        """Ask the nodes in each round of checks, more often while an error is known, until cancelled."""
        while True:
            before = tuple(self._errors())
            await self.poll()
            after = tuple(self._errors())
            if after != before:
                on_change()
            frequency_s = max(_MIN_INTERVAL_S, self._settings.check_frequency_s)
            await asyncio.sleep(min(_RETRY_S, frequency_s) if after else frequency_s)

    async def poll(self) -> None:
        """Ask every node once."""
        answers = await asyncio.gather(*(probe() for probe in self._probes.values()))
        self._answers = dict(zip(self._probes, answers, strict=True))
        heights = {answer.position: answer.value for answer in self._answers[P_CHAIN_API] if answer.value is not None}
        reached = find_quorum_height(heights.values(), self._quorum)
        highest = max(heights.values(), default=None) if reached is None else reached
        self._behind_s = {
            position: self._lags.setdefault(position, LagTimer()).age_s(ChainProgress(height, highest), self._now())
            for position, height in heights.items()
        }

    @property
    def answers(self) -> Mapping[str, Sequence[NodeResult[int]]]:
        """The last answers of the nodes by list; those of p-chain-api are heights."""
        return self._answers

    def behind_s(self, position: int) -> float:
        """Return for how long a node of p-chain-api has been behind the others; 0 if it is not, or did not answer."""
        return self._behind_s.get(position, 0.0)

    def check(self) -> HealthCheck:
        """Return the check; it also fails without a proposed height, since no message can be signed then."""
        tags = frozenset({APPLICATION})
        return HealthCheck("nodes", self._check, tags, is_prompt=True, blocking_error=self._height_error)

    def _height_error(self) -> str | None:
        return None if self._is_fresh() else STALE_HEIGHT

    def _check(self) -> CheckOutcome:
        message = {"nodes": dict(self._node_messages()), "proposedHeight": self._proposed()}
        return CheckOutcome(message, "; ".join(filter(None, (self._height_error(), *self._errors()))) or None)

    def _node_messages(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for name, answers in self._answers.items():
            for answer in answers:
                message: dict[str, Any] = {} if answer.failure is None else {"error": answer.failure.value}
                if answer.disagrees:
                    message["disagrees"] = True
                if name == P_CHAIN_API and answer.value is not None:
                    message["height"] = answer.value
                    if behind_s := self._behind_s[answer.position]:
                        message["behindFor"] = go_duration(behind_s)
                yield f"{name}[{answer.position}]", message

    def _errors(self) -> Iterator[str]:
        """Yield the current errors. A node may be down as long as another one of its list is up."""
        for name, answers in self._answers.items():
            for answer in answers:
                if answer.failure is NodeFailure.WRONG_NETWORK:
                    yield f"{name}[{answer.position}] is of another network"
            usable = [answer for answer in answers if answer.value is not None]
            first = next(iter(usable), None)
            if first is None:
                yield f"no node of {name} can be used"
            elif name == P_CHAIN_API and len(usable) < self._quorum:
                yield f"{len(usable)} of {len(answers)} nodes of {name} can be used, and {self._quorum} must agree"
            elif (
                name == P_CHAIN_API and self._quorum == 1 and self._behind_s[first.position] > self._settings.max_lag_s
            ):
                allowed = go_duration(self._settings.max_lag_s)
                yield f"{name}[{first.position}] is behind the others for longer than {allowed}"
