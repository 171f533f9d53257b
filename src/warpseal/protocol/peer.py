"""One peer connection after its TLS handshake: received bytes in, events and bytes to write out.

Source of truth: avalanchego `network/peer/peer.go`, to whose functions the comments refer;
docs/protocol.md says which messages are spoken. Pure: `now` is any monotonic clock and `unix_s` the
wall clock, both in seconds.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

from warpseal.protocol.addresses import ClaimedIpPort, MalformedAddress, parse_claimed_ip_port
from warpseal.protocol.bloom import BloomFilter
from warpseal.protocol.certificate import Certificate
from warpseal.protocol.framing import FrameDecoder, Zstd
from warpseal.protocol.handshake import (
    CloseReason,
    OwnHandshake,
    PeerHandshake,
    ProtocolError,
    check_handshake,
)
from warpseal.protocol.limits import PING_INTERVAL_S, SILENCE_TIMEOUT_S
from warpseal.protocol.messages import (
    EMPTY_PEER_LIST_FRAME,
    PING_FRAME,
    PONG_FRAME,
    UNREGISTERED_HANDLER_CODE,
    UNREGISTERED_HANDLER_TEXT,
    MessageType,
    decode_app_error,
    decode_app_request_ids,
    decode_app_response,
    decode_handshake,
    decode_peer_list,
    encode_app_error,
    open_envelope,
)
from warpseal.protocol.requests import PeerRequest, PeerResponse, RequestLimits, RequestTable
from warpseal.warp.protobuf import DecodeError

# The messages that this daemon reads are far smaller; longer frames within the protocol's limit are
# skipped.
_KEPT_FRAME_BYTES: Final = 256 * 1024
_MAX_ADDRESSES: Final = 1_000
# A late tick adds at most this fraction of the silence timeout: a stall of this process is not
# silence of the peer.
_TICKS_PER_SILENCE: Final = 4

# The flood rule of docs/protocol.md. Points stand for work: the cheapest frames cost one point.
_FRAME_POINTS: Final = 1
_REQUEST_POINTS: Final = 10
_ENTRY_POINTS: Final = 1
_MALFORMED_POINTS: Final = 100
# One point for each whole KiB, useful or not, counted after decompression.
_BULK_SHIFT: Final = 10
_FLOOD_WINDOW_S: Final = 10.0
_FLOOD_LIMIT_POINTS: Final = 4_000


class ProtocolSettings(Struct, frozen=True):
    """Timeouts of a connection, in seconds, and the limits of its requests."""

    ping_interval_s: float = PING_INTERVAL_S
    silence_timeout_s: float = SILENCE_TIMEOUT_S
    handshake_timeout_s: float = 30.0
    limits: RequestLimits = field(default_factory=RequestLimits)


class PeersGossiped(Struct, frozen=True):
    """The peer sent a peer list.

    The entries are well-formed, not verified, and may be of unknown nodes.
    """

    addresses: tuple[ClaimedIpPort, ...]


class ConnectionClosed(Struct, frozen=True):
    """The caller must close the connection.

    The protocol ignores all further input and writes nothing.
    """

    reason: CloseReason
    detail: str


Event = PeerHandshake | PeersGossiped | PeerResponse | ConnectionClosed
"""A PeerHandshake says that both sides have accepted each other: requests may be sent."""


class PeerProtocol:
    """The state of one connection.

    The caller writes the bytes that `output`, `send_request` and `pong` return, in the order of the
    calls, `output` first: it begins with the handshake. The caller feeds `receive`; calls `tick` at
    least four times per silence timeout and at `release_at`; and closes the connection at the
    ConnectionClosed event.

    is_connected: both sides have accepted each other and the connection is open.
    clock_offset_s: the peer's clock minus ours, also of a refused handshake.
    undecodable: number of frames that could not be decoded.
    unexpected: number of messages that this daemon does not read or did not expect.
    """

    __slots__ = (
        "_certificate",
        "_decoder",
        "_flood",
        "_out",
        "_own",
        "_ping_at",
        "_settings",
        "_silent_s",
        "_skipped_points",
        "_started_at",
        "_ticked_at",
        "_unix_offset_s",
        "_zstd",
        "clock_offset_s",
        "closed",
        "handshake",
        "is_connected",
        "pong_owed",
        "requests",
        "undecodable",
        "unexpected",
    )

    def __init__(
        self,
        own: OwnHandshake,
        certificate: Certificate,
        settings: ProtocolSettings,
        zstd: Zstd,
        known_peers: BloomFilter,
        now: float,
        unix_s: float,
    ) -> None:
        """Begin the connection.

        certificate: the certificate of the peer in the TLS handshake.
        zstd: the coder that all connections of a thread share.
        known_peers: the addresses that the peer should not send.
        """
        self._own = own
        self._certificate = certificate
        self._settings = settings
        self._zstd = zstd
        self._decoder = FrameDecoder(keep=_KEPT_FRAME_BYTES)
        self.requests = RequestTable(settings.limits)
        # peer.Start, writeMessages: both sides send their handshake at once. The empty peer list
        # that finishes it follows without a wait for the peer's handshake: peers read in order
        # (handlePeerList).
        self._out = [own.encode(unix_s, known_peers), EMPTY_PEER_LIST_FRAME]
        self._started_at = self._ticked_at = now
        self._unix_offset_s = unix_s - now
        self._ping_at = now + settings.ping_interval_s
        self._flood = _FloodMeter(now)
        self.is_connected = False
        self._silent_s = 0.0
        self._skipped_points = 0
        self.handshake: PeerHandshake | None = None
        self.clock_offset_s: int | None = None
        self.closed: ConnectionClosed | None = None
        self.pong_owed = False
        self.undecodable = 0
        self.unexpected = 0

    def send_request(self, request: PeerRequest, now: float) -> bytes | None:
        """Return the bytes to write now, empty if the request is queued.

        Returns None if the request is refused because the queue is full or the peer is not
        connected.
        """
        if not self.is_connected:
            return None
        return self.requests.submit(request, now)

    def output(self) -> bytes:
        """Return the bytes to write since the last call.

        Call it at once, and after each `receive` and `tick`.
        """
        if not self._out:
            return b""
        out = b"".join(self._out)
        self._out.clear()
        return out

    def pong(self) -> bytes:
        """Return the Pong that is owed, or nothing.

        Call it when everything that has arrived was received.

        One Pong answers all Pings that were read since the last call. handlePong: a node clears the
        time of its last Ping at the first Pong, and disconnects from a peer whose Pong comes while
        no Ping is outstanding.
        """
        if not self.pong_owed or self.closed is not None:
            return b""
        self.pong_owed = False
        return PONG_FRAME

    def release_at(self, now: float) -> float | None:
        """Return when a tick will release a queued request; None if none is queued."""
        return None if self.closed is not None else self.requests.release_at(now)

    def receive(self, data: bytes | bytearray | memoryview, now: float) -> list[Event]:
        """Return the events of received bytes. No bytes make it raise."""
        events: list[Event] = []
        if self.closed is not None:
            return events
        self._silent_s = 0.0
        decoder = self._decoder
        try:
            for frame in decoder.feed(data):
                self._handle_frame(frame, now, events)
            if decoder.skipped_bytes or decoder.overflow is not None:
                self._check_stream(now)
        except ProtocolError as error:
            self._close(error, events)
        else:
            if self.requests.queued:
                self._release(now)
        return events

    def tick(self, now: float) -> list[Event]:
        """Let time pass: send pings, apply timeouts and release queued requests."""
        events: list[Event] = []
        if self.closed is not None:
            return events
        settings = self._settings
        longest_s = settings.silence_timeout_s / _TICKS_PER_SILENCE
        self._silent_s += min(now - self._ticked_at, longest_s)
        self._ticked_at = now
        # readMessages: any bytes within the read deadline of 30 s keep the connection, a Pong is
        # not required.
        if self._silent_s >= settings.silence_timeout_s:
            self._close(ProtocolError(CloseReason.SILENT), events)
            return events
        # Nodes have no deadline of the handshake; a peer that only sends Pings would occupy its
        # node's address.
        if not self.is_connected and now >= self._started_at + settings.handshake_timeout_s:
            self._close(ProtocolError(CloseReason.HANDSHAKE_TIMEOUT), events)
            return events
        # sendNetworkMessages: Pings flow before the handshake has finished as well.
        if now >= self._ping_at:
            self._ping_at = now + settings.ping_interval_s
            self._out.append(PING_FRAME)
        self.requests.forget_expired(now)
        self._release(now)
        return events

    def _handle_frame(self, frame: bytes, now: float, events: list[Event]) -> None:
        try:
            number, body = open_envelope(frame, self._zstd)
            bulk = len(body) >> _BULK_SHIFT
            if bulk:
                self._add_cost(bulk, now)
            if number == MessageType.APP_RESPONSE:
                chain_id, request_id, app_bytes = decode_app_response(body)
                self._on_response(chain_id, request_id, now, events, (app_bytes, None, ""))
            elif number == MessageType.APP_ERROR:
                chain_id, request_id, code, text = decode_app_error(body)
                self._on_response(chain_id, request_id, now, events, (None, code, text))
            else:
                self._handle_message(number, body, now, events)
        except DecodeError:
            # readMessages: bytes that cannot be parsed, and unknown types, are skipped; the
            # connection stays.
            self.undecodable += 1
            self._add_cost(_MALFORMED_POINTS, now)

    def _on_response(
        self,
        chain_id: bytes,
        request_id: int,
        now: float,
        events: list[Event],
        response: tuple[bytes | None, int | None, str],
    ) -> None:
        request = self.requests.match_response(chain_id, request_id, now)
        # router.go: a response without a request of this chain and ID is dropped.
        if request is None:
            self._count_unexpected(now)
        elif request.on_response is not None:
            events.append(PeerResponse(self._certificate.node_id, *response, request))

    def _handle_message(self, number: int, body: bytes, now: float, events: list[Event]) -> None:
        if number == MessageType.PING:
            # handlePing: each Ping is owed a Pong, before the handshake has finished as well.
            self.pong_owed = True
            self._add_cost(_FRAME_POINTS, now)
        elif number == MessageType.PONG:
            self._add_cost(_FRAME_POINTS, now)
        elif number == MessageType.HANDSHAKE:
            self._on_handshake(body, now)
        elif number == MessageType.PEER_LIST and self.handshake is not None:
            # handlePeerList: a list that comes before the peer's handshake is ignored.
            self._on_peer_list(body, now, events)
        elif number == MessageType.APP_REQUEST and self.is_connected:
            # handle: messages of chains are dropped until the handshake has finished.
            self._refuse_request(body, now)
        else:
            self._count_unexpected(now)

    def _on_handshake(self, body: bytes, now: float) -> None:
        # handleHandshake: a second handshake ends the connection.
        if self.handshake is not None:
            raise ProtocolError(CloseReason.SECOND_HANDSHAKE)
        unix_s = now + self._unix_offset_s
        message = decode_handshake(body)
        self.clock_offset_s = message.my_time - int(unix_s)
        self.handshake = check_handshake(message, self._certificate, self._own.network_id, unix_s)

    def _on_peer_list(self, body: bytes, now: float, events: list[Event]) -> None:
        entries = decode_peer_list(body, _MAX_ADDRESSES)
        self._add_cost(_FRAME_POINTS + _ENTRY_POINTS * len(entries), now)
        if not self.is_connected and self.handshake is not None:
            # handlePeerList: the first list behind the peer's handshake finishes it, an empty one
            # as well.
            self.is_connected = True
            events.append(self.handshake)
        addresses: list[ClaimedIpPort] = []
        for entry in entries:
            try:
                addresses.append(parse_claimed_ip_port(entry))
            except MalformedAddress:
                # A node would disconnect (handlePeerList). The other entries and the peer's shares
                # are worth more.
                self._add_cost(_MALFORMED_POINTS, now)
        if addresses:
            events.append(PeersGossiped(tuple(addresses)))

    def _refuse_request(self, body: bytes, now: float) -> None:
        # network/p2p/router.go: a handler ID that is not registered is refused with an AppError of
        # code -2.
        chain_id, request_id = decode_app_request_ids(body)
        self._add_cost(_REQUEST_POINTS, now)
        error = encode_app_error(
            chain_id, request_id, UNREGISTERED_HANDLER_CODE, UNREGISTERED_HANDLER_TEXT, self._zstd
        )
        self._out.append(error)

    def _count_unexpected(self, now: float) -> None:
        self.unexpected += 1
        self._add_cost(_FRAME_POINTS, now)

    def _add_cost(self, points: int, now: float) -> None:
        if not self._flood.add_cost(points, now):
            raise ProtocolError(
                CloseReason.FLOOD, f"{self.undecodable} undecodable, {self.unexpected} unexpected"
            )

    def _check_stream(self, now: float) -> None:
        # msg_length.go: an announced length above 2 MiB ends the connection.
        if self._decoder.overflow is not None:
            raise ProtocolError(
                CloseReason.FRAME_TOO_LONG, f"{self._decoder.overflow} bytes announced"
            )
        skipped = self._decoder.skipped_bytes >> _BULK_SHIFT
        if skipped > self._skipped_points:
            self._add_cost(skipped - self._skipped_points, now)
            self._skipped_points = skipped

    def _release(self, now: float) -> None:
        if self.requests.queued:
            frames = self.requests.release(now)
            if frames:
                self._out.append(frames)

    def _close(self, error: ProtocolError, events: list[Event]) -> None:
        self.closed = ConnectionClosed(error.reason, error.detail)
        self.is_connected = False
        self._out.clear()
        events.append(self.closed)


class _FloodMeter:
    """Counts the points of useless input in windows of ten seconds."""

    __slots__ = ("_points", "_window_start")

    def __init__(self, now: float) -> None:
        self._window_start = now
        self._points = 0

    def add_cost(self, points: int, now: float) -> bool:
        """Count `points`. Returns False if the peer has exceeded the limit of this window."""
        self._points += points
        if self._points <= _FLOOD_LIMIT_POINTS:
            return True
        if now < self._window_start + _FLOOD_WINDOW_S:
            return False
        self._window_start, self._points = now, points
        return points <= _FLOOD_LIMIT_POINTS
