"""The node's side of a peer connection, without sockets.

It takes plaintext, returns frames, and counts violations of the peer. Source of truth: avalanchego
`network/peer/peer.go`, `snow/networking/router/chain_router.go`, `network/p2p/{router,network}.go`,
`network/throttling` (the limits).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from time import monotonic_ns
from typing import Final, Protocol

from cachetools import TTLCache

from warpseal.pb import p2p_pb2 as p2p
from warpseal.warp.ids import ID_BYTES, ChainID, NodeID
from warpseal.warp.protobuf import DecodeError, read_varint
from warpseal_simnet.behaviours import Refusal
from warpseal_simnet.certificates import Leaf
from warpseal_simnet.frames import (
    FrameReader,
    OversizedFrame,
    UndecodableMessage,
    decode,
    encode,
    framed,
)
from warpseal_simnet.gossip import Gossip
from warpseal_simnet.handshake import (
    AcceptedHandshake,
    HandshakePolicy,
    MessageRejected,
    check_get_peer_list,
    check_handshake,
    check_peer_list,
    check_version,
)
from warpseal_simnet.responder import ReceivedRequest, Responder, error_frame
from warpseal_simnet.sent_shares import SentShares
from warpseal_simnet.settings import CLIENT_NAME, UPGRADE_TIME, NodeSettings
from warpseal_simnet.signing import HANDLER_ID, UNREGISTERED, parse_signature_request
from warpseal_simnet.state import SimState
from warpseal_simnet.values import ChainKind, SimChain, SimValidator
from warpseal_simnet.violations import ViolationKind, Violations

_MAX_UPTIME: Final = 100
_FLOOD_TICK_S: Final = 0.05
_PONG: Final = encode(p2p.Message(pong=p2p.Pong()))
_FIRST_NEGATIVE: Final = 2**63
_NO_HANDLER: Final = Refusal(UNREGISTERED, "unregistered handler")
_PING: Final = encode(p2p.Message(ping=p2p.Ping(uptime=_MAX_UPTIME)))


class Transport(Protocol):
    """The connection of a session."""

    def write(self, frame: bytes, *, reliable: bool = False) -> bool:
        """Send a frame.

        Returns False if it was dropped because the peer reads too slowly (never if it is reliable).
        """

    def close(self) -> None:
        """Close the connection once everything is written."""

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run `action` after a delay unless the connection is closed before."""


@dataclass(frozen=True, slots=True)
class SessionContext:
    """The resources that all sessions of a network share."""

    state: SimState
    settings: NodeSettings
    violations: Violations
    gossip: Gossip
    responder: Responder
    sent_shares: SentShares
    rng: Random


class PeerSession:
    """One connection after its TLS handshake."""

    def __init__(
        self, validator: SimValidator, leaf: Leaf, context: SessionContext, transport: Transport
    ) -> None:
        self._validator = validator
        self._leaf = leaf
        self._context = context
        # An upgrade restarts the node, so that its sessions end.
        self._release = validator.release or context.settings.release
        self._transport = transport
        self._frames = FrameReader()
        self._handshake_seen: AcceptedHandshake | None = None
        self._requests = RequestHandler(context, validator, self)
        self._ping_is_out = False
        self._unanswered_pings = 0
        self.is_finished = False
        self.closed = False

    @property
    def in_frame(self) -> bool:
        """Whether a frame is incomplete."""
        return bool(self._frames.unfinished)

    def start(self) -> None:
        """Send the handshake without waiting for the peer's."""
        self._transport.write(self._own_handshake(), reliable=True)
        self._transport.later(self._context.settings.ping_interval_s, self._tick)
        if self._validator.behaviour.flood_per_s:
            self._context.responder.lies["flood"] += 1
            self._transport.later(_FLOOD_TICK_S, self._flood)

    def feed(self, data: bytes) -> bool:
        """Handle plaintext; return whether it completed a length or a body.

        Either resets the read timeout.
        """
        was_in_body = self._frames.in_body
        try:
            bodies = self._frames.feed(data)
        except OversizedFrame as error:
            self.report_violation(ViolationKind.OVERSIZED_FRAME, str(error), close=True)
            return False
        for body in bodies:
            if self.closed:
                break
            self._requests.count_bytes(len(body))
            self._take(body)
        return bool(bodies) or self._frames.in_body != was_in_body

    def report_violation(
        self, kind: ViolationKind, detail: str = "", *, close: bool = False
    ) -> None:
        """Count a violation of the peer.

        close: the connection is closed, as a node does.
        """
        now = self._context.settings.clock()
        self._context.violations.add(kind, self._leaf.node_id, self._validator.node_id, detail, now)
        if close:
            self.close()

    def write(self, frame: bytes) -> bool:
        """Send a frame unless the peer reads too slowly."""
        return self._transport.write(frame)

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run `action` after a delay unless the connection is closed before."""
        self._transport.later(delay_s, action)

    def close(self) -> None:
        """Close the connection; bytes that still arrive are ignored."""
        self.closed = True
        self._transport.close()

    def _take(self, body: bytes) -> None:
        try:
            message = decode(body)
        except UndecodableMessage as error:
            self.report_violation(ViolationKind.UNPARSABLE_MESSAGE, str(error))
            return
        try:
            self._handle(message)
        except MessageRejected as refused:
            self.report_violation(refused.kind, refused.detail, close=True)

    def _handle(self, message: p2p.Message) -> None:
        match message.WhichOneof("message"):
            case "ping":
                self._ping(message.ping)
            case "pong":
                self._pong()
            case "handshake":
                self._handshake(message.handshake)
            case "peer_list":
                self._peer_list(message.peer_list)
            case "get_peer_list":
                self._get_peer_list(message.get_peer_list)
            case None:
                self.report_violation(ViolationKind.UNKNOWN_MESSAGE)
            case kind if not self.is_finished:
                self.report_violation(ViolationKind.EARLY_MESSAGE, kind)
            case "app_request":
                self._requests.handle(message.app_request)
            case "app_response" | "app_error" as kind:
                self.report_violation(ViolationKind.UNSOLICITED_RESPONSE, kind)
            case kind:
                self.report_violation(ViolationKind.UNWANTED_MESSAGE, kind)

    def _ping(self, ping: p2p.Ping) -> None:
        if ping.uptime > _MAX_UPTIME:
            raise MessageRejected(ViolationKind.PING_UPTIME, f"uptime {ping.uptime}")
        lost = self._validator.behaviour.lost_pongs
        if not lost or self._context.rng.random() >= lost:
            self._transport.write(_PONG)
        else:
            self._context.responder.lies["lost-pongs"] += 1

    def _pong(self) -> None:
        if not self._ping_is_out:
            raise MessageRejected(ViolationKind.UNEXPECTED_PONG, "a pong without a ping")
        self._ping_is_out = False
        self._unanswered_pings = 0

    def _handshake(self, message: p2p.Handshake) -> None:
        if self._handshake_seen is not None:
            raise MessageRejected(ViolationKind.SECOND_HANDSHAKE, "a second handshake")
        state = self._context.state
        expected = HandshakePolicy(
            state.network_id,
            self._context.settings,
            state.primary_key(self._leaf.node_id),
            self._release.version[0],
            state.minimum_version(self._release),
        )
        self._handshake_seen = handshake = check_handshake(message, self._leaf, expected)
        claims = self._context.gossip.claims_for(
            self._validator, self._leaf.node_id, handshake, (handshake.known_peers, handshake.salt)
        )
        self._transport.write(_peer_list_frame(claims), reliable=True)

    def _peer_list(self, message: p2p.PeerList) -> None:
        if self._handshake_seen is None:
            self.report_violation(ViolationKind.EARLY_PEER_LIST)
            return
        if not self.is_finished:
            self.is_finished = True
            self._validator.counts.finished_handshakes += 1
        for ignored in check_peer_list(
            message.claimed_ip_ports, self._context.settings, self._wants
        ):
            self.report_violation(ignored.kind, ignored.detail)

    def _get_peer_list(self, message: p2p.GetPeerList) -> None:
        if not self.is_finished or self._handshake_seen is None:
            self.report_violation(ViolationKind.EARLY_MESSAGE, "get_peer_list")
            return
        peer_filter = check_get_peer_list(message)
        handshake = replace(self._handshake_seen, all_subnets=message.all_subnets)
        claims = self._context.gossip.claims_for(
            self._validator, self._leaf.node_id, handshake, peer_filter
        )
        if claims:
            self._transport.write(_peer_list_frame(claims))

    def _wants(self, node_id: NodeID, signed_at: int) -> bool:
        """Return whether an address belongs to a validator and is newer than the known one."""
        validator = self._context.state.by_node(node_id)
        return validator is not None and (
            validator.address is None or signed_at > validator.address.signed_at
        )

    def _tick(self) -> None:
        if self.is_finished and self._handshake_seen is not None:
            try:
                minimum = self._context.state.minimum_version(self._release)
                check_version(self._handshake_seen.version, self._release.version[0], minimum)
            except MessageRejected as refused:
                self.report_violation(refused.kind, refused.detail, close=True)
                return
        if self._unanswered_pings >= self._context.settings.unanswered_pings:
            self.report_violation(
                ViolationKind.UNANSWERED_PINGS, f"{self._unanswered_pings} pings without a pong"
            )
            self._unanswered_pings = 0
        if self._transport.write(_PING):
            self._ping_is_out = True
            self._unanswered_pings += 1
        self._transport.later(self._context.settings.ping_interval_s, self._tick)

    def _flood(self) -> None:
        per_s = self._validator.behaviour.flood_per_s
        for _ in range(int(per_s * _FLOOD_TICK_S)):
            self._transport.write(
                framed(self._context.rng.randbytes(self._context.rng.randint(0, 400)))
            )
        if per_s:
            self._transport.later(_FLOOD_TICK_S, self._flood)

    def _own_handshake(self) -> bytes:
        address = self._validator.address
        assert address is not None, "a validator listens before it is connected to"
        major, minor, patch = self._release.version
        fork_times = self._context.state.fork_times
        handshake = p2p.Handshake(
            network_id=self._context.state.network_id,
            my_time=int(self._context.settings.clock()),
            ip_addr=address.wire_ip,
            ip_port=address.port,
            upgrade_time=int(fork_times.get(self._release.upgrade, UPGRADE_TIME)),
            ip_signing_time=address.signed_at,
            ip_node_id_sig=address.signature,
            tracked_subnets=sorted(self._validator.subnets),
            client=p2p.Client(name=CLIENT_NAME, major=major, minor=minor, patch=patch),
            known_peers=self._context.gossip.known_peers(),
            ip_bls_sig=address.bls_signature,
            all_subnets=self._validator.validates_primary,
        )
        return encode(p2p.Message(handshake=handshake))


def _peer_list_frame(claims: list[p2p.ClaimedIpPort]) -> bytes:
    return encode(p2p.Message(peer_list=p2p.PeerList(claimed_ip_ports=claims)))


class RequestHandler:
    """Handles the requests of one peer to one validator, and checks their limits."""

    __slots__ = ("_context", "_filled_at", "_outstanding", "_session", "_tokens", "_validator")

    def __init__(
        self, context: SessionContext, validator: SimValidator, session: PeerSession
    ) -> None:
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
            self._session.report_violation(
                ViolationKind.OVER_BANDWIDTH, f"{-self._tokens:.0f} bytes too many"
            )
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
                self._session.report_violation(
                    ViolationKind.UNREGISTERED_HANDLER, f"handler {handler_id}"
                )
            self._refuse(request, _NO_HANDLER)
            return
        signature_request = parse_signature_request(body)
        if isinstance(signature_request, Refusal):
            self._session.report_violation(ViolationKind.BAD_REQUEST, signature_request.text)
            self._refuse(request, signature_request)
            return
        self._respond_later(
            ReceivedRequest(
                self._validator, chain, request.request_id, signature_request, monotonic_ns()
            )
        )

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
            self._session.report_violation(
                ViolationKind.EVEN_REQUEST_ID, f"request id {request.request_id}"
            )
            return None
        return chain

    def _register(self, request: p2p.AppRequest) -> None:
        self._validator.counts.app_requests += 1
        key = (request.chain_id, request.request_id)
        if key in self._outstanding:
            self._session.report_violation(
                ViolationKind.REUSED_REQUEST_ID, f"request id {request.request_id}"
            )
        self._outstanding[key] = None
        if len(self._outstanding) > self._context.settings.max_outstanding:
            self._session.report_violation(
                ViolationKind.TOO_MANY_OUTSTANDING, f"{len(self._outstanding)} outstanding"
            )

    def _respond_later(self, request: ReceivedRequest) -> None:
        delay_s = self._context.responder.delay_s(request.validator)
        if delay_s:
            self._session.later(delay_s, lambda: self._respond(request))
        else:
            self._respond(request)

    def _respond(self, request: ReceivedRequest) -> None:
        sent_shares = self._context.sent_shares
        for reply in self._context.responder.replies_to(request):
            self._outstanding.pop((request.chain.chain_id, request.request_id), None)
            if reply.is_share:
                message_id = request.signature_request.message.id
                sent_shares.add(message_id, request.validator.index, request.asked_ns)
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
