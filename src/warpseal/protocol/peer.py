"""The core of one peer connection, between TLS and the rest of the daemon: bytes in, events and bytes out.

Source of truth: avalanchego `network/peer/peer.go`; docs/protocol.md says what we speak and what we leave out. Pure:
`now` is any monotonic clock, `unix_s` the wall clock, both in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from warpseal.protocol import flood
from warpseal.protocol.addresses import ClaimedAddress, MalformedAddress, parse_claim
from warpseal.protocol.bloom import BloomFilter
from warpseal.protocol.certificate import Certificate
from warpseal.protocol.compression import Zstd
from warpseal.protocol.errors import CloseReason, ConnectionFault, Undecodable
from warpseal.protocol.events import AddressesClaimed, Answered, Closed, Connected, Event
from warpseal.protocol.framing import FrameDecoder
from warpseal.protocol.handshake import OwnHandshake, PeerHandshake, check_handshake
from warpseal.protocol.messages import (
    EMPTY_PEER_LIST_FRAME,
    PING_FRAME,
    PONG_FRAME,
    UNREGISTERED_HANDLER_CODE,
    UNREGISTERED_HANDLER_TEXT,
    Member,
    decode_app_error,
    decode_app_request_ids,
    decode_app_response,
    decode_claimed_addresses,
    decode_handshake,
    encode_app_error,
    open_envelope,
)
from warpseal.protocol.requests import PeerRequest, RequestLimits, RequestTable

# All that we read is far smaller; longer frames within the limit of the protocol pass by unread.
_KEPT_FRAME_BYTES: Final = 256 * 1024
_MAX_ADDRESSES: Final = 1_000
# A tick that comes late counts as this part of the silence timeout: our own stalls are not the peer's silence.
_TICKS_PER_SILENCE: Final = 4


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """Durations of a connection, in seconds, and how much a peer is asked."""

    ping_interval_s: float = 20.0
    silence_timeout_s: float = 30.0
    handshake_timeout_s: float = 30.0
    limits: RequestLimits = field(default_factory=RequestLimits)


class PeerCore:
    """One connection from the end of its TLS handshake on.

    The shell writes what `start`, `ask`, `output` and `pong` return, in that order of calls; feeds `receive`; calls
    `tick` at least four times per silence timeout, and at `release_at`; and closes at the Closed event.
    """

    __slots__ = (
        "_certificate",
        "_connected",
        "_decoder",
        "_meter",
        "_out",
        "_own",
        "_ping_at",
        "_quiet_s",
        "_requests",
        "_settings",
        "_started_at",
        "_swallowed_points",
        "_ticked_at",
        "_unix_offset_s",
        "_zstd",
        "clock_offset_s",
        "closed",
        "handshake",
        "pong_owed",
        "undecodable",
        "unwanted",
    )

    def __init__(self, own: OwnHandshake, certificate: Certificate, settings: CoreSettings, zstd: Zstd) -> None:
        """certificate: of the peer, as TLS presented it. zstd: shared by all connections of a thread."""
        self._own = own
        self._certificate = certificate
        self._settings = settings
        self._zstd = zstd
        self._decoder = FrameDecoder(keep=_KEPT_FRAME_BYTES)
        self._requests = RequestTable(settings.limits)
        self._out: list[bytes] = []
        self._connected = False
        self._quiet_s = 0.0
        self._swallowed_points = 0
        self.handshake: PeerHandshake | None = None
        # Their clock less ours as their handshake had it, refused ones included.
        self.clock_offset_s: int | None = None
        self.closed: Closed | None = None
        self.pong_owed = False
        # Frames that were no message, and messages that nobody here reads or expected.
        self.undecodable = 0
        self.unwanted = 0

    @property
    def is_connected(self) -> bool:
        """Whether both sides have accepted each other and the connection stands."""
        return self._connected and self.closed is None

    @property
    def requests(self) -> RequestTable:
        """What this peer was asked and will be."""
        return self._requests

    def start(self, now: float, unix_s: float, known_peers: BloomFilter) -> bytes:
        """Return the first bytes to write: our handshake and, without waiting for theirs, an empty peer list."""
        self._started_at = self._ticked_at = now
        self._unix_offset_s = unix_s - now
        self._ping_at = now + self._settings.ping_interval_s
        self._meter = flood.NoiseMeter(now)
        return self._own.encode(unix_s, known_peers) + EMPTY_PEER_LIST_FRAME

    def ask(self, request: PeerRequest, now: float) -> bytes | None:
        """Take a request: return the bytes to write now, empty while it waits for its turn.

        None: it was not taken, for the queue is full or the peer not connected.
        """
        if not self._connected or self.closed is not None:
            return None
        return self._requests.submit(request, now)

    def output(self) -> bytes:
        """Return what is to be written since the last call; ask after each `receive` and `tick`."""
        if not self._out:
            return b""
        out = b"".join(self._out)
        self._out.clear()
        return out

    def pong(self) -> bytes:
        """Return the one Pong that is owed, or nothing. Call it when all that has arrived was received.

        A node that sent two Pings takes the second of two Pongs for an attack and hangs up, so however many Pings
        were read since the last call, one Pong answers them all.
        """
        if not self.pong_owed or self.closed is not None:
            return b""
        self.pong_owed = False
        return PONG_FRAME

    def release_at(self, now: float) -> float | None:
        """Return when a tick will let a waiting request go; None when none waits."""
        return None if self.closed is not None else self._requests.release_at(now)

    def receive(self, data: bytes | bytearray | memoryview, now: float) -> list[Event]:
        """Return what the peer's next bytes mean. Whatever they are, nothing is raised."""
        events: list[Event] = []
        if self.closed is not None:
            return events
        self._quiet_s = 0.0
        decoder = self._decoder
        try:
            for frame in decoder.feed(data):
                self._take(frame, now, events)
            if decoder.swallowed_bytes or decoder.overflow is not None:
                self._check_stream(now)
        except ConnectionFault as fault:
            self._close(fault, events)
        else:
            if self._requests.waiting:
                self._release(now)
        return events

    def tick(self, now: float) -> list[Event]:
        """Let time pass: pings, timeouts, requests whose turn has come."""
        events: list[Event] = []
        if self.closed is not None:
            return events
        settings = self._settings
        self._quiet_s += min(now - self._ticked_at, settings.silence_timeout_s / _TICKS_PER_SILENCE)
        self._ticked_at = now
        if self._quiet_s >= settings.silence_timeout_s:
            self._close(ConnectionFault(CloseReason.SILENT), events)
            return events
        if not self._connected and now >= self._started_at + settings.handshake_timeout_s:
            self._close(ConnectionFault(CloseReason.HANDSHAKE_TIMEOUT), events)
            return events
        if now >= self._ping_at:
            self._ping_at = now + settings.ping_interval_s
            self._out.append(PING_FRAME)
        self._requests.forget_expired(now)
        self._release(now)
        return events

    def _take(self, frame: bytes, now: float, events: list[Event]) -> None:
        try:
            number, body = open_envelope(frame, self._zstd)
            bulk = len(body) >> flood.BULK_SHIFT
            if bulk:
                self._charge(bulk, now)
            if number == Member.APP_RESPONSE:
                chain_id, request_id, app_bytes = decode_app_response(body)
                self._answer(chain_id, request_id, now, events, (app_bytes, None, ""))
            elif number == Member.APP_ERROR:
                chain_id, request_id, code, text = decode_app_error(body)
                self._answer(chain_id, request_id, now, events, (None, code, text))
            else:
                self._take_other(number, body, now, events)
        except Undecodable:
            self.undecodable += 1
            self._charge(flood.MALFORMED_POINTS, now)

    def _answer(
        self,
        chain_id: bytes,
        request_id: int,
        now: float,
        events: list[Event],
        answer: tuple[bytes | None, int | None, str],
    ) -> None:
        request = self._requests.answered(chain_id, request_id, now)
        if request is None:
            self._ignore(now)
        elif not request.was_left:
            events.append(Answered(request, *answer))

    def _take_other(self, number: int, body: bytes, now: float, events: list[Event]) -> None:
        if number == Member.PING:
            self.pong_owed = True
            self._charge(flood.FRAME_POINTS, now)
        elif number == Member.PONG:
            self._charge(flood.FRAME_POINTS, now)
        elif number == Member.HANDSHAKE:
            self._take_handshake(body, now)
        elif number == Member.PEER_LIST and self.handshake is not None:
            self._take_peer_list(body, now, events)
        elif number == Member.APP_REQUEST and self._connected:
            self._refuse_request(body, now)
        else:
            self._ignore(now)

    def _take_handshake(self, body: bytes, now: float) -> None:
        if self.handshake is not None:
            raise ConnectionFault(CloseReason.SECOND_HANDSHAKE)
        unix_s = now + self._unix_offset_s
        theirs = decode_handshake(body)
        self.clock_offset_s = theirs.my_time - int(unix_s)
        self.handshake = check_handshake(theirs, self._certificate, self._own.network_id, unix_s)

    def _take_peer_list(self, body: bytes, now: float, events: list[Event]) -> None:
        entries = decode_claimed_addresses(body, _MAX_ADDRESSES)
        self._charge(flood.FRAME_POINTS + flood.ENTRY_POINTS * len(entries), now)
        if not self._connected and self.handshake is not None:
            self._connected = True
            events.append(Connected(self.handshake))
        addresses: list[ClaimedAddress] = []
        for entry in entries:
            try:
                addresses.append(parse_claim(entry))
            except MalformedAddress:
                self._charge(flood.MALFORMED_POINTS, now)
        if addresses:
            events.append(AddressesClaimed(tuple(addresses)))

    def _refuse_request(self, body: bytes, now: float) -> None:
        chain_id, request_id = decode_app_request_ids(body)
        self._charge(flood.REQUEST_POINTS, now)
        refusal = encode_app_error(
            chain_id, request_id, UNREGISTERED_HANDLER_CODE, UNREGISTERED_HANDLER_TEXT, self._zstd
        )
        self._out.append(refusal)

    def _ignore(self, now: float) -> None:
        self.unwanted += 1
        self._charge(flood.FRAME_POINTS, now)

    def _charge(self, points: int, now: float) -> None:
        if not self._meter.charge(points, now):
            raise ConnectionFault(CloseReason.FLOOD, f"{self.undecodable} undecodable, {self.unwanted} unwanted")

    def _check_stream(self, now: float) -> None:
        if self._decoder.overflow is not None:
            raise ConnectionFault(CloseReason.FRAME_TOO_LONG, f"{self._decoder.overflow} bytes announced")
        swallowed = self._decoder.swallowed_bytes >> flood.BULK_SHIFT
        if swallowed > self._swallowed_points:
            self._charge(swallowed - self._swallowed_points, now)
            self._swallowed_points = swallowed

    def _release(self, now: float) -> None:
        if self._requests.waiting:
            frames = self._requests.release(now)
            if frames:
                self._out.append(frames)

    def _close(self, fault: ConnectionFault, events: list[Event]) -> None:
        self.closed = Closed(fault.reason, fault.detail)
        self._out.clear()
        events.append(self.closed)
