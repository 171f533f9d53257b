"""Errors of calls to upstream nodes.

JSON-RPC errors are distinguished by their text: nearly all have the code -32000.

Source of truth: avalanchego `vms/platformvm/validators/manager.go`, `vms/platformvm/service.go` and
the recordings of a local network.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from warpseal.errors import RETRY_SOON_S, WarpsealError
from warpseal.upstream.jsonrpc import RpcError, is_method_missing

# No known text is longer; searching an endless one would take time that grows with its square.
_MAX_TEXT = 1_000
_HEIGHT_AHEAD = re.compile(
    r"unfinalized height.*current P-chain height \((\d{1,20})\) < requested P-Chain height"
    r" \((\d{1,20})\)",
    re.IGNORECASE | re.DOTALL,
)
# "is not a blockchain" and "is not a subnet": the id belongs to a transaction of another kind.
_NOTHING_FOUND = re.compile(r"not found\s*$|is not a (?:blockchain|subnet)\s*$", re.IGNORECASE)


class PublicFailure(StrEnum):
    """Why a node gave no usable reply, as callers of the daemon get it."""

    TIMEOUT = "timeout"
    REFUSED = "refused"
    HTTP_STATUS = "http_status"
    WRONG_NETWORK = "wrong_network"
    BAD_ANSWER = "bad_answer"
    BUSY = "busy"


class NodeFailure(StrEnum):
    """Why a call to a node has no usable reply."""

    TIMEOUT = "timeout"
    REFUSED = "refused"
    HTTP_STATUS = "http_status"
    WRONG_NETWORK = "wrong_network"
    BAD_ANSWER = "bad_answer"
    BUSY = "busy"
    UNREACHABLE = "unreachable"
    LOST = "lost"
    TOO_LARGE = "too_large"

    @property
    def public(self) -> PublicFailure:
        """The failure as callers of the daemon get it, without the state of a connection."""
        return PublicFailure(_PUBLIC.get(self, self.value))


_PUBLIC = {
    NodeFailure.UNREACHABLE: PublicFailure.REFUSED,
    NodeFailure.LOST: PublicFailure.REFUSED,
    NodeFailure.TOO_LARGE: PublicFailure.BAD_ANSWER,
}


class NodeAttempt(Struct, frozen=True):
    """One failed try: the node's position in its configured list (from 0) and why it failed."""

    position: int
    failure: PublicFailure


class NodeUnavailable(WarpsealError):
    """No configured node gave a usable reply."""

    code = "node_unavailable"
    http_status = 502
    retry_after_s: float = RETRY_SOON_S

    def __init__(
        self, subject: str, attempts: Sequence[NodeAttempt] = (), replies: Sequence[str] = ()
    ) -> None:
        self.attempts = tuple(attempts)
        # The texts of the nodes' replies, for the operator alone.
        self.replies = tuple(replies)
        text = f"no usable answer for {subject}"
        if attempts:
            failures = (f"node {attempt.position}: {attempt.failure}" for attempt in attempts)
            text = f"{text} ({'; '.join(failures)})"
        super().__init__(text, nodes=self.attempts)


class AnswerClass(Struct, frozen=True):
    """Nodes with the same answer: positions in the configured list (from 0), and its digest."""

    positions: tuple[int, ...]
    digest: str


class NodesDisagree(NodeUnavailable):
    """Nodes gave different replies, and fewer than p-chain-quorum of them agree."""

    code = "nodes_disagree"

    def __init__(
        self,
        subject: str,
        quorum: int,
        classes: Sequence[AnswerClass],
        attempts: Sequence[NodeAttempt] = (),
    ) -> None:
        digests: list[str] = []
        for group in classes:
            positions = ", ".join(map(str, group.positions))
            digests.append(f"{group.digest}: node {positions}")
        differences = "; ".join(digests)
        text = f"the nodes disagree about {subject}, and {quorum} must agree ({differences})"
        self.attempts, self.classes, self.replies = tuple(attempts), tuple(classes), ()
        WarpsealError.__init__(self, text, quorum=quorum, classes=self.classes, nodes=self.attempts)


class RpcRefusal(Exception):
    """A node understood the call and refused it.

    text: message of the node, without anything that may be a key.
    data: bytes that came with the error, such as the output of a contract with a revert; empty if
        they are more than 4 KiB.
    replies: texts of all nodes' replies, if several nodes were called.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} ({code})")
        self.code = code
        self.text = text
        self.data = b""
        self.replies: tuple[str, ...] = ()


class MethodMissing(RpcRefusal):
    """The node is too old, or too restricted, to have the method."""


class NotFoundByNode(RpcRefusal):
    """The node does not have the requested record. It may lag."""


class HeightAhead(RpcRefusal):
    """The height asked for is beyond `tip`, the height of the node's last accepted block."""

    def __init__(self, code: int, text: str, height: int, tip: int) -> None:
        super().__init__(code, text)
        self.height = height
        self.tip = tip


def parse_refusal(code: int, message: str, redacted: str, method: str = "") -> RpcRefusal:
    """Return the typed refusal for a JSON-RPC error object to a call.

    redacted: the message, fit for a log.
    """
    text = message[:_MAX_TEXT]
    ahead = _HEIGHT_AHEAD.search(text)
    if ahead:
        return HeightAhead(code, redacted, height=int(ahead[2]), tip=int(ahead[1]))
    if is_method_missing(RpcError(code, text), method):
        return MethodMissing(code, redacted)
    if _NOTHING_FOUND.search(text):
        return NotFoundByNode(code, redacted)
    return RpcRefusal(code, redacted)


_FAILURES_OF_REPLIES = (NodeFailure.HTTP_STATUS, NodeFailure.BAD_ANSWER, NodeFailure.TOO_LARGE)


class CallFailure(Exception):
    """One node gave no usable reply.

    detail: text for the log.
    status: HTTP status, if that is the reason.
    blames_node: this is false if the call never left the daemon.
    """

    def __init__(
        self,
        failure: NodeFailure,
        detail: str = "",
        status: int | None = None,
        *,
        blames_node: bool = True,
    ) -> None:
        super().__init__(f"{failure}: {detail}" if detail else failure)
        self.failure = failure
        self.detail = detail
        self.status = status
        self.blames_node = blames_node

    @property
    def reply(self) -> str:
        """The text of the reply, else the kind of the failure; without the node's address."""
        if self.detail and self.failure in _FAILURES_OF_REPLIES:
            return self.detail
        return self.failure.value

    @property
    def was_sent(self) -> bool:
        """Whether the node may have received the call, and executed it."""
        return self.failure is not NodeFailure.UNREACHABLE
