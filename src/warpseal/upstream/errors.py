"""Errors of calls to upstream nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from warpseal.errors import RETRY_SOON_S, WarpsealError


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
    http_status = 502
    retry_after_s: float = RETRY_SOON_S

    def __init__(self, subject: str, attempts: Sequence[NodeAttempt] = ()) -> None:
        tried = "; ".join(f"node {a.position}: {a.failure}" for a in attempts)
        nodes = [{"position": a.position, "failure": a.failure.value} for a in attempts]
        super().__init__(f"no usable answer for {subject}" + (f" ({tried})" if tried else ""), nodes=nodes)
        self.attempts = tuple(attempts)


@dataclass(frozen=True, slots=True)
class AnswerClass:
    """Nodes that gave the same answer: their positions in the configured list (from 0), and a digest of the answer."""

    positions: tuple[int, ...]
    digest: str


class NodesDisagree(NodeUnavailable):
    """Nodes gave different answers, and fewer than p-chain-quorum of them agree."""

    code = "nodes_disagree"

    def __init__(
        self, subject: str, quorum: int, classes: Sequence[AnswerClass], attempts: Sequence[NodeAttempt] = ()
    ) -> None:
        said = "; ".join(f"{found.digest}: node {', '.join(map(str, found.positions))}" for found in classes)
        text = f"the nodes disagree about {subject}, and {quorum} must agree ({said})"
        shown = [{"positions": list(found.positions), "digest": found.digest} for found in classes]
        nodes = [{"position": a.position, "failure": a.failure.value} for a in attempts]
        WarpsealError.__init__(self, text, quorum=quorum, classes=shown, nodes=nodes)
        self.attempts = tuple(attempts)
        self.classes = tuple(classes)
