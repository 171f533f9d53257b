"""Application requests of peers: what is left unanswered, what is an error, what goes to the chain.

Source of truth: avalanchego `snow/networking/router/chain_router.go`, `network/p2p/{router,network}.go`,
`network/throttling` (the limits).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from warpseal.pb import p2p_pb2 as p2p
from warpseal.simnet.behaviours import Refusal
from warpseal.simnet.responder import Asked, Responder, error_frame
from warpseal.simnet.settings import NodeSettings
from warpseal.simnet.signing import HANDLER_ID, UNREGISTERED, parse_signature_request
from warpseal.simnet.state import ChainState
from warpseal.simnet.values import ChainKind, SimChain, SimValidator
from warpseal.simnet.violations import ViolationKind
from warpseal.warp.ids import ID_BYTES, ChainID
from warpseal.warp.protobuf import DecodeError, read_varint

_FIRST_NEGATIVE: Final = 2**63
_NO_HANDLER: Final = Refusal(UNREGISTERED, "unregistered handler")


class Caller(Protocol):
    """The session that requests come from."""

    def write(self, frame: bytes) -> bool:
        """Send a frame."""

    def close(self) -> None:
        """End the connection."""

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run `action` after a delay, unless the connection ends before."""

    def fault(self, fault: ViolationKind, detail: str = "") -> None:
        """Count a fault of the peer."""


@dataclass(frozen=True, slots=True)
class RequestDesk:
    """What all connections of a network answer requests with."""

    state: ChainState
    settings: NodeSettings
    answers: Responder


class PeerRequests:
    """The requests of one peer at one validator, and whether they keep the limits."""

    __slots__ = ("_caller", "_desk", "_filled_at", "_outstanding", "_tokens", "_validator")

    def __init__(self, desk: RequestDesk, validator: SimValidator, caller: Caller) -> None:
        self._desk = desk
        self._validator = validator
        self._caller = caller
        self._outstanding: dict[tuple[bytes, int], float] = {}
        self._tokens = float(desk.settings.bandwidth_burst_bytes)
        self._filled_at = desk.settings.clock()

    def received(self, size_bytes: int) -> None:
        """Count a message of any kind against the peer's bandwidth."""
        settings = self._desk.settings
        now = settings.clock()
        filled = self._tokens + (now - self._filled_at) * settings.bandwidth_bytes_s
        self._tokens = min(filled, settings.bandwidth_burst_bytes) - size_bytes
        self._filled_at = now
        if self._tokens < 0:
            self._caller.fault(ViolationKind.OVER_BANDWIDTH, f"{-self._tokens:.0f} bytes too many")
            self._tokens = 0.0

    def handle(self, request: p2p.AppRequest) -> None:
        """Answer a request as the chain does, or not at all."""
        chain = self._chain_of(request)
        if chain is None:
            return
        self._register(request)
        handler_id, body = _split_handler(request.app_bytes)
        if handler_id != HANDLER_ID or chain.kind is ChainKind.X:
            if handler_id != HANDLER_ID:
                self._caller.fault(ViolationKind.UNREGISTERED_HANDLER, f"handler {handler_id}")
            self._refuse(request, _NO_HANDLER)
            return
        question = parse_signature_request(body)
        if isinstance(question, Refusal):
            self._caller.fault(ViolationKind.BAD_REQUEST, question.text)
            self._refuse(request, question)
            return
        self._put(Asked(self._validator, chain, request.request_id, question))

    def _chain_of(self, request: p2p.AppRequest) -> SimChain | None:
        """Return the chain that deals with a request, or None where a node leaves it unanswered."""
        if len(request.chain_id) != ID_BYTES:
            self._caller.fault(ViolationKind.CHAIN_ID_LENGTH, f"a chain id of {len(request.chain_id)} bytes")
            return None
        if not 0 < request.deadline < _FIRST_NEGATIVE:
            self._caller.fault(ViolationKind.DEADLINE, f"deadline {request.deadline}")
            return None
        chain_id = ChainID(request.chain_id)
        if chain_id not in self._validator.chains:
            return None
        chain = self._desk.state.chains[chain_id]
        if chain.kind is ChainKind.EVM and request.request_id % 2 == 0:
            self._caller.fault(ViolationKind.EVEN_REQUEST_ID, f"request id {request.request_id}")
            return None
        return chain

    def _register(self, request: p2p.AppRequest) -> None:
        self._validator.counts.app_requests += 1
        now = self._desk.settings.clock()
        forgotten = now - self._desk.settings.forget_request_s
        while self._outstanding and next(iter(self._outstanding.values())) < forgotten:
            del self._outstanding[next(iter(self._outstanding))]
        key = (request.chain_id, request.request_id)
        if key in self._outstanding:
            self._caller.fault(ViolationKind.REUSED_REQUEST_ID, f"request id {request.request_id}")
        self._outstanding[key] = now
        if len(self._outstanding) > self._desk.settings.max_outstanding:
            self._caller.fault(ViolationKind.TOO_MANY_OUTSTANDING, f"{len(self._outstanding)} outstanding")

    def _put(self, asked: Asked) -> None:
        delay_s = self._desk.answers.delay_s(asked.validator)
        if delay_s:
            self._caller.later(delay_s, lambda: self._answer(asked))
        else:
            self._answer(asked)

    def _answer(self, asked: Asked) -> None:
        for sent in self._desk.answers.to(asked):
            self._outstanding.pop((asked.chain.chain_id, asked.request_id), None)
            if sent.frame:
                self._caller.write(sent.frame)
            if sent.last:
                self._caller.close()
                return

    def _refuse(self, request: p2p.AppRequest, refusal: Refusal) -> None:
        self._outstanding.pop((request.chain_id, request.request_id), None)
        self._caller.write(error_frame(request.chain_id, request.request_id, refusal))


def _split_handler(app_bytes: bytes) -> tuple[int | None, bytes]:
    """Return the handler id (a varint) and the bytes behind it; None if there is no varint."""
    try:
        handler_id, offset = read_varint(app_bytes, 0)
    except DecodeError:
        return None, b""
    return handler_id, app_bytes[offset:]
