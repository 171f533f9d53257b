"""Application requests of peers: which are ignored, refused, or passed to the chain.

Source of truth: avalanchego `snow/networking/router/chain_router.go`, `network/p2p/{router,network}.go`,
`network/throttling` (the limits).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cachetools import TTLCache

from warpseal.pb import p2p_pb2 as p2p
from warpseal.simnet.behaviours import Refusal
from warpseal.simnet.responder import ReceivedRequest, Responder, error_frame
from warpseal.simnet.settings import NodeSettings
from warpseal.simnet.signing import HANDLER_ID, UNREGISTERED, parse_signature_request
from warpseal.simnet.state import ChainState
from warpseal.simnet.values import ChainKind, SimChain, SimValidator
from warpseal.simnet.violations import ViolationKind
from warpseal.warp.ids import ID_BYTES, ChainID
from warpseal.warp.protobuf import DecodeError, read_varint

if TYPE_CHECKING:
    from warpseal.simnet.peer import PeerSession

_FIRST_NEGATIVE: Final = 2**63
_NO_HANDLER: Final = Refusal(UNREGISTERED, "unregistered handler")


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What all connections of a network share to handle requests."""

    state: ChainState
    settings: NodeSettings
    responder: Responder


class RequestHandler:
    """Handles the requests of one peer to one validator, and checks their limits."""

    __slots__ = ("_context", "_filled_at", "_outstanding", "_session", "_tokens", "_validator")

    def __init__(self, context: RequestContext, validator: SimValidator, session: PeerSession) -> None:
        self._context = context
        self._validator = validator
        self._session = session
        self._outstanding: TTLCache[tuple[bytes, int], None] = TTLCache(
            math.inf, context.settings.forget_request_s, timer=context.settings.clock
        )
        self._tokens = float(context.settings.bandwidth_burst_bytes)
        self._filled_at = context.settings.clock()

    def count_bytes(self, size_bytes: int) -> None:
        """Count a message of any kind against the peer's bandwidth."""
        settings = self._context.settings
        now = settings.clock()
        filled = self._tokens + (now - self._filled_at) * settings.bandwidth_bytes_s
        self._tokens = min(filled, settings.bandwidth_burst_bytes) - size_bytes
        self._filled_at = now
        if self._tokens < 0:
            self._session.report_violation(ViolationKind.OVER_BANDWIDTH, f"{-self._tokens:.0f} bytes too many")
            self._tokens = 0.0

    def handle(self, request: p2p.AppRequest) -> None:
        """Respond to a request like the chain, or ignore it."""
        chain = self._chain_of(request)
        if chain is None:
            return
        self._register(request)
        handler_id, body = _split_handler(request.app_bytes)
        if handler_id != HANDLER_ID or chain.kind is ChainKind.X:
            if handler_id != HANDLER_ID:
                self._session.report_violation(ViolationKind.UNREGISTERED_HANDLER, f"handler {handler_id}")
            self._refuse(request, _NO_HANDLER)
            return
        signature_request = parse_signature_request(body)
        if isinstance(signature_request, Refusal):
            self._session.report_violation(ViolationKind.BAD_REQUEST, signature_request.text)
            self._refuse(request, signature_request)
            return
        self._respond_later(ReceivedRequest(self._validator, chain, request.request_id, signature_request))

    def _chain_of(self, request: p2p.AppRequest) -> SimChain | None:
        """Return the chain of a request, or None if a node ignores the request."""
        if len(request.chain_id) != ID_BYTES:
            self._session.report_violation(
                ViolationKind.CHAIN_ID_LENGTH, f"a chain id of {len(request.chain_id)} bytes"
            )
            return None
        if not 0 < request.deadline < _FIRST_NEGATIVE:
            self._session.report_violation(ViolationKind.DEADLINE, f"deadline {request.deadline}")
            return None
        chain_id = ChainID(request.chain_id)
        if chain_id not in self._validator.chains:
            return None
        chain = self._context.state.chains[chain_id]
        if chain.kind is ChainKind.EVM and request.request_id % 2 == 0:
            self._session.report_violation(ViolationKind.EVEN_REQUEST_ID, f"request id {request.request_id}")
            return None
        return chain

    def _register(self, request: p2p.AppRequest) -> None:
        self._validator.counts.app_requests += 1
        key = (request.chain_id, request.request_id)
        if key in self._outstanding:
            self._session.report_violation(ViolationKind.REUSED_REQUEST_ID, f"request id {request.request_id}")
        self._outstanding[key] = None
        if len(self._outstanding) > self._context.settings.max_outstanding:
            self._session.report_violation(ViolationKind.TOO_MANY_OUTSTANDING, f"{len(self._outstanding)} outstanding")

    def _respond_later(self, request: ReceivedRequest) -> None:
        delay_s = self._context.responder.delay_s(request.validator)
        if delay_s:
            self._session.later(delay_s, lambda: self._respond(request))
        else:
            self._respond(request)

    def _respond(self, request: ReceivedRequest) -> None:
        for reply in self._context.responder.replies_to(request):
            self._outstanding.pop((request.chain.chain_id, request.request_id), None)
            if reply.frame:
                self._session.write(reply.frame)
            if reply.closes:
                self._session.close()
                return

    def _refuse(self, request: p2p.AppRequest, refusal: Refusal) -> None:
        self._outstanding.pop((request.chain_id, request.request_id), None)
        self._session.write(error_frame(request.chain_id, request.request_id, refusal))


def _split_handler(app_bytes: bytes) -> tuple[int | None, bytes]:
    """Return the handler id (a varint) and the bytes behind it; None if there is no varint."""
    try:
        handler_id, offset = read_varint(app_bytes, 0)
    except DecodeError:
        return None, b""
    return handler_id, app_bytes[offset:]
