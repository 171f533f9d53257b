"""Errors of calls to nodes. JSON-RPC errors are distinguished by their text: nearly all have the code -32000.

Source of truth: avalanchego `vms/platformvm/validators/manager.go`, `vms/platformvm/service.go` and the
recordings of a local network.
"""

from __future__ import annotations

import re

from warpseal.upstream.errors import NodeFailure

_METHOD_NOT_FOUND_CODE = -32601
# No known text is longer; searching an endless one would take time that grows with its square.
_MAX_TEXT = 1_000
_HEIGHT_AHEAD = re.compile(
    r"unfinalized height.*current P-chain height \((\d{1,20})\) < requested P-Chain height \((\d{1,20})\)",
    re.IGNORECASE | re.DOTALL,
)
_METHOD_MISSING = re.compile(r"rpc: can't find (?:method|service)|method .{0,200} does not exist", re.DOTALL)
# "is not a blockchain" and "is not a subnet": the id belongs to a transaction of another kind.
_NOTHING_FOUND = re.compile(r"not found\s*$|is not a (?:blockchain|subnet)\s*$", re.IGNORECASE)


class RpcRefusal(Exception):
    """A node understood the call and refused it. text: its message, without anything that may be a key.

    data: bytes that came with the error, such as what a contract returned with a revert; at most 4 KiB, else empty.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} ({code})")
        self.code = code
        self.text = text
        self.data = b""


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


def parse_refusal(code: int, message: str, redacted: str) -> RpcRefusal:
    """Return the typed refusal for a JSON-RPC error object. redacted: the message, fit for a log."""
    text = message[:_MAX_TEXT]
    ahead = _HEIGHT_AHEAD.search(text)
    if ahead:
        return HeightAhead(code, redacted, height=int(ahead[2]), tip=int(ahead[1]))
    if code == _METHOD_NOT_FOUND_CODE or _METHOD_MISSING.search(text):
        return MethodMissing(code, redacted)
    if _NOTHING_FOUND.search(text):
        return NotFoundByNode(code, redacted)
    return RpcRefusal(code, redacted)


class CallFailure(Exception):
    """One node gave no usable answer. detail: for the log; status: the HTTP status, if that is the reason.

    blames_node: false if the call never left the daemon. asks_to_wait: the node says that it gets too many requests;
    retry_after_s: for how long it wants none, None if it does not say.
    """

    def __init__(
        self, failure: NodeFailure, detail: str, status: int | None = None, *, blames_node: bool = True
    ) -> None:
        super().__init__(f"{failure}: {detail}")
        self.failure = failure
        self.detail = detail
        self.status = status
        self.blames_node = blames_node
        self.asks_to_wait = False
        self.retry_after_s: float | None = None
