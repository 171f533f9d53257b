"""The error of all upstream nodes, and how each of them failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from warpseal.errors.base import WarpsealError


class NodeFailure(StrEnum):
    """How an upstream node failed, as far as a caller may know."""

    TIMEOUT = "timeout"
    REFUSED = "refused"
    HTTP_STATUS = "http_status"
    WRONG_NETWORK = "wrong_network"
    BAD_ANSWER = "bad_answer"
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class NodeAttempt:
    """One failed try: the node's position in its configured list (from 0) and the class of failure."""

    position: int
    failure: NodeFailure


class NodeUnavailable(WarpsealError):
    """No configured node gave a usable answer."""

    code = "node_unavailable"

    def __init__(self, what: str, attempts: Sequence[NodeAttempt] = ()) -> None:
        tried = "; ".join(f"node {a.position}: {a.failure}" for a in attempts)
        super().__init__(f"no usable answer for {what}" + (f" ({tried})" if tried else ""))
        self.attempts = tuple(attempts)

    def detail(self) -> Mapping[str, Any]:
        return {"nodes": [{"position": a.position, "failure": a.failure.value} for a in self.attempts]}
