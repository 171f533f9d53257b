"""Runs one `PeerProtocol` over one TLS connection: bytes in, events out."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from ssl import SSLContext
from typing import Protocol

from msgspec import Struct

from warpseal.peers.addresses import Endpoint
from warpseal.peers.statistics import ConnectionFailure, PeerStatistics
from warpseal.peers.tls import ReceiveBuffer, TlsConnection
from warpseal.protocol.addresses import ClaimedIpPort
from warpseal.protocol.bloom import BloomFilter
from warpseal.protocol.certificate import MalformedCertificate, node_id_of, parse_certificate
from warpseal.protocol.framing import Zstd
from warpseal.protocol.handshake import OwnHandshake, PeerHandshake
from warpseal.protocol.peer import (
    ConnectionClosed,
    Event,
    PeerProtocol,
    PeersGossiped,
    ProtocolSettings,
)
from warpseal.protocol.requests import PeerRequest, PeerResponse
from warpseal.warp.ids import NodeID

log = logging.getLogger(__name__)


class ConnectionListener(Protocol):
    """Receives the events of a connection, synchronously."""

    def on_connected(self, connection: PeerConnection, handshake: PeerHandshake) -> None:
        """Both sides have accepted each other."""

    def on_response(self, connection: PeerConnection, response: PeerResponse, now: float) -> None:
        """A response to a request arrived."""

    def on_peers_gossiped(self, addresses: tuple[ClaimedIpPort, ...]) -> None:
        """Unverified addresses arrived."""

    def on_timeouts(self, count: int) -> None:
        """This many requests got no response in time; later ones still count."""

    def on_ping(self, connection: PeerConnection) -> None:
        """A ping was read; call `flush_pong` at the end of the burst."""

    def on_closed(self, connection: PeerConnection) -> None:
        """The connection is closed; called once, also if it never became usable."""


class ConnectionContext(Struct, frozen=True):
    """The resources that all connections share."""

    ssl_context: SSLContext
    own_handshake: OwnHandshake
    protocol: ProtocolSettings
    zstd: Zstd
    receive_buffer: ReceiveBuffer
    known_peers: Callable[[], BloomFilter]
    unix_clock: Callable[[], float]
    listener: ConnectionListener
    unread_timeout_s: float


class PeerConnection:
    """One attempt to connect to a node, and the resulting connection.

    expected_node_id: node to reach; nothing is sent to any other node.
    actual_node_id: node that answered.
    failure: stable reason why the connection ended, "" before.
    detail: the same in words of the system or the library.
    handshake_done: True once the handshake has succeeded, False if the connection ended before.
    received_at: time of the last byte that was received, on the loop's clock.
    sent_at: time of the last byte that was sent, on the loop's clock.
    """

    __slots__ = (
        "_context",
        "_loop",
        "_protocol",
        "actual_node_id",
        "bytes_received",
        "detail",
        "endpoint",
        "expected_node_id",
        "failure",
        "handshake_done",
        "is_closed",
        "received_at",
        "sent_at",
        "statistics",
        "tls",
    )

    def __init__(
        self,
        context: ConnectionContext,
        expected_node_id: NodeID,
        endpoint: Endpoint,
        statistics: PeerStatistics,
    ) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._protocol: PeerProtocol | None = None
        self.expected_node_id = expected_node_id
        self.endpoint = endpoint
        self.statistics = statistics
        self.actual_node_id: NodeID | None = None
        self.failure = ""
        self.detail = ""
        self.bytes_received = 0
        self.received_at = self.sent_at = -math.inf
        self.is_closed = False
        self.handshake_done: asyncio.Future[bool] = self._loop.create_future()
        self.tls = TlsConnection(self, context.ssl_context, context.receive_buffer)

    @property
    def is_secure(self) -> bool:
        """Whether TLS is established with the expected node."""
        return self._protocol is not None

    @property
    def is_connected(self) -> bool:
        """Whether requests may be sent."""
        return self._protocol is not None and not self.is_closed and self._protocol.is_connected

    @property
    def handshake(self) -> PeerHandshake | None:
        """The peer's handshake, None before it arrives."""
        return self._protocol.handshake if self._protocol is not None else None

    @property
    def clock_offset_s(self) -> int | None:
        """The peer's clock minus ours in its handshake, accepted or refused, in seconds."""
        return self._protocol.clock_offset_s if self._protocol is not None else None

    @property
    def is_idle(self) -> bool:
        """Whether no request is queued or in flight."""
        if self._protocol is None:
            return True
        requests = self._protocol.requests
        return not requests.in_flight and not requests.queued

    @property
    def outstanding(self) -> int:
        """The number of requests that wait for a response or are queued."""
        if self._protocol is None:
            return 0
        requests = self._protocol.requests
        return requests.outstanding + requests.queued

    @property
    def oldest_request_at(self) -> float | None:
        """When the oldest request that occupies a slot was written; None if there is none."""
        return self._protocol.requests.oldest_sent_at if self._protocol is not None else None

    @property
    def is_congested(self) -> bool:
        """Whether as many requests are queued as may be outstanding; False for a silent node."""
        return self._protocol is not None and self._protocol.requests.is_congested

    def release_at(self, now: float) -> float | None:
        """Return when a `tick` releases a queued request; None if none is queued."""
        return self._protocol.release_at(now) if self._protocol is not None else None

    def send_request(self, request: PeerRequest, now: float) -> bool | None:
        """Send a request.

        Returns True if it was written, False if it is queued, None if it was refused.
        """
        frames = self._protocol.send_request(request, now) if self._protocol is not None else None
        if frames is None:
            return None
        if frames:
            self.sent_at = now
            self.tls.write(frames)
            return True
        return False

    def send(self, frame: bytes) -> None:
        """Send a frame without a response."""
        if self.is_connected:
            self.tls.write(frame)

    def tick(self, now: float) -> None:
        """Let time pass: pings, timeouts, queued requests, and peers that do not read."""
        protocol, paused_at = self._protocol, self.tls.write_paused_at
        if protocol is None:
            return
        unread_s = 0.0 if paused_at is None else now - paused_at
        if paused_at is not None and unread_s >= self._context.unread_timeout_s:
            self.close(ConnectionFailure.NOT_READING, f"nothing was read for {unread_s:.0f} s")
            return
        try:
            self._report(protocol.tick(now), now)
            self._write_output(protocol)
            timeouts = protocol.requests.pop_timeouts()
            if timeouts:
                self._context.listener.on_timeouts(timeouts)
        # One timer ticks all connections; the others go on.
        except Exception:
            log.exception("internal error, closing peer connection")
            self.close(ConnectionFailure.INTERNAL)

    def flush_pong(self) -> bool:
        """Answer all pings read so far by one pong. Returns False if the peer must read first."""
        if self._protocol is None or self.tls.write_paused_at is not None:
            return False
        pong = self._protocol.pong()
        if pong:
            self.tls.write(pong)
        return True

    def skip_pong(self) -> None:
        """Leave the pings read so far unanswered.

        Nodes tolerate a missing pong, but not an extra pong.
        """
        if self._protocol is not None:
            self._protocol.pong_owed = False

    def close(self, failure: str, detail: str = "") -> None:
        """Close the connection from this side."""
        if not self.failure:
            self.failure, self.detail = failure, detail
        self.tls.close(failure)

    # TlsListener.

    def on_tls_established(self, certificate: bytes) -> None:
        self.actual_node_id = node_id_of(certificate)
        if self.actual_node_id != self.expected_node_id:
            self.close(ConnectionFailure.WRONG_IDENTITY)
            return
        context = self._context
        try:
            parsed = parse_certificate(certificate)
        except MalformedCertificate as error:
            self.close(ConnectionFailure.MALFORMED_CERTIFICATE, str(error))
            return
        protocol = self._protocol = PeerProtocol(
            context.own_handshake,
            parsed,
            context.protocol,
            context.zstd,
            context.known_peers(),
            self._loop.time(),
            context.unix_clock(),
        )
        self._write_output(protocol)

    def on_data(self, data: bytes) -> None:
        protocol = self._protocol
        if protocol is None:
            return
        self.bytes_received += len(data)
        now = self.received_at = self._loop.time()
        events = protocol.receive(data, now)
        if events:
            self._report(events, now)
        self._write_output(protocol)
        if protocol.pong_owed:
            self._context.listener.on_ping(self)

    def on_writable(self) -> None:
        if self._protocol is not None and self._protocol.pong_owed:
            self._context.listener.on_ping(self)

    def on_connection_lost(self, failure: str, detail: str) -> None:
        if not self.failure:
            self.failure, self.detail = failure, detail
        self.is_closed = True
        if not self.handshake_done.done():
            self.handshake_done.set_result(False)
        self._context.listener.on_closed(self)
        self._protocol = None

    def _report(self, events: list[Event], now: float) -> None:
        listener = self._context.listener
        for event in events:
            if type(event) is PeerResponse:
                listener.on_response(self, event, now)
            elif type(event) is PeerHandshake:
                listener.on_connected(self, event)
                if not self.handshake_done.done():
                    self.handshake_done.set_result(True)
            elif type(event) is PeersGossiped:
                listener.on_peers_gossiped(event.addresses)
            elif type(event) is ConnectionClosed:
                self.close(event.reason, event.detail)

    def _write_output(self, protocol: PeerProtocol) -> None:
        out = protocol.output()
        if out:
            self.sent_at = self._loop.time()
            self.tls.write(out)
