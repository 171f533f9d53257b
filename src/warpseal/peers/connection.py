"""Drives one peer core over one TLS connection: bytes in, events out, pongs when the read burst is over."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from ssl import SSLContext
from typing import Protocol

from warpseal.peers.addresses import Endpoint
from warpseal.peers.failures import Failure
from warpseal.peers.statistics import PeerStatistics
from warpseal.peers.tls import ReceiveBuffer, TlsConnection
from warpseal.protocol.addresses import ClaimedAddress
from warpseal.protocol.bloom import BloomFilter
from warpseal.protocol.certificate import Certificate, MalformedCertificate, node_id_of, parse_certificate
from warpseal.protocol.compression import Zstd
from warpseal.protocol.events import AddressesClaimed, Answered, Closed, Connected, Event
from warpseal.protocol.handshake import OwnHandshake, PeerHandshake
from warpseal.protocol.peer import CoreSettings, PeerCore
from warpseal.protocol.requests import PeerRequest
from warpseal.warp.ids import NodeID

log = logging.getLogger(__name__)


class PeerListener(Protocol):
    """Where a connection reports to, synchronously."""

    def on_connected(self, connection: PeerConnection, handshake: PeerHandshake) -> None:
        """Both sides accepted each other."""

    def on_answer(self, connection: PeerConnection, answered: Answered, now: float) -> None:
        """An answer to a request came."""

    def on_addresses(self, addresses: tuple[ClaimedAddress, ...]) -> None:
        """Addresses came, unverified."""

    def on_timeouts(self, count: int) -> None:
        """So many requests got no answer in time; late ones still count."""

    def on_ping(self, connection: PeerConnection) -> None:
        """A ping was read; `flush_pong` is to be called when the burst is over."""

    def on_end(self, connection: PeerConnection) -> None:
        """The connection is gone; called once, also when it never became usable."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """What all connections share."""

    context: SSLContext
    own: Callable[[], OwnHandshake]
    core: CoreSettings
    zstd: Zstd
    shared: ReceiveBuffer
    known_peers: Callable[[], BloomFilter]
    unix_clock: Callable[[], float]
    listener: PeerListener
    unread_timeout_s: float


class PeerConnection:
    """One attempt to reach a node, and the connection that came of it.

    meant: whom we want to reach; no other is ever talked to. settled: done when the handshake has succeeded (True)
    or the connection has ended before (False, with `failure` and `detail`). received_at, sent_at: when bytes last came
    and went, on the loop's clock.
    """

    __slots__ = ("_core", "_loop", "_wiring", "answered_as", "bytes_seen", "detail", "endpoint", "failure",
                 "has_ended", "meant", "received_at", "sent_at", "settled", "statistics", "tls")  # fmt: skip

    def __init__(self, wiring: Wiring, meant: NodeID, endpoint: Endpoint, statistics: PeerStatistics) -> None:
        self._wiring = wiring
        self._loop = asyncio.get_running_loop()
        self._core: PeerCore | None = None
        self.meant = meant
        self.endpoint = endpoint
        self.statistics = statistics
        self.answered_as: NodeID | None = None
        self.failure = ""
        self.detail = ""
        self.bytes_seen = 0
        self.received_at = self.sent_at = -math.inf
        self.has_ended = False
        self.settled: asyncio.Future[bool] = self._loop.create_future()
        self.tls = TlsConnection(self, wiring.context, wiring.shared)

    @property
    def is_secure(self) -> bool:
        """Whether TLS stands, with the node that was meant."""
        return self._core is not None

    @property
    def is_connected(self) -> bool:
        """Whether requests may be sent."""
        return self._core is not None and not self.has_ended and self._core.is_connected

    @property
    def handshake(self) -> PeerHandshake | None:
        """What the peer said of itself, once it has."""
        return self._core.handshake if self._core is not None else None

    @property
    def clock_offset_s(self) -> int | None:
        """Their clock less ours as their handshake had it, in seconds; known of refused handshakes too."""
        return self._core.clock_offset_s if self._core is not None else None

    @property
    def is_idle(self) -> bool:
        """Whether nothing that the peer was asked may still be answered."""
        return self._core is None or not (self._core.requests.known or self._core.requests.waiting)

    @property
    def outstanding(self) -> int:
        """How many requests wait for an answer, or for their turn."""
        return self._core.requests.outstanding + self._core.requests.waiting if self._core is not None else 0

    @property
    def oldest_request_at(self) -> float | None:
        """When the oldest request that takes up a slot was written; None where none does."""
        return self._core.requests.oldest_at if self._core is not None else None

    def release_at(self, now: float) -> float | None:
        """Return when a `tick` lets a waiting request go; None when none waits."""
        return self._core.release_at(now) if self._core is not None else None

    def ask(self, request: PeerRequest, now: float) -> bool | None:
        """Send a request. Returns True when it was written, False when it waits, None when it was not taken."""
        frames = self._core.ask(request, now) if self._core is not None else None
        if frames is None:
            return None
        if frames:
            self.sent_at = now
            self.tls.write(frames)
            return True
        return False

    def send(self, frame: bytes) -> None:
        """Send a frame that no answer belongs to."""
        if self.is_connected:
            self.tls.write(frame)

    def tick(self, now: float) -> None:
        """Let time pass: pings, timeouts, requests that waited. A peer that does not read is given up in time."""
        core, blocked_since = self._core, self.tls.blocked_since
        if core is None:
            return
        if blocked_since is not None and now - blocked_since >= self._wiring.unread_timeout_s:
            self.give_up(Failure.NOT_READING, f"nothing was read for {now - blocked_since:.0f} s")
            return
        try:
            self._report(core.tick(now), now)
            self._write_output(core)
            timed_out = core.requests.take_timed_out()
            if timed_out:
                self._wiring.listener.on_timeouts(timed_out)
        except Exception:
            log.exception("a fault of ours ended a connection")
            self.give_up(Failure.INTERNAL)

    def flush_pong(self) -> bool:
        """Answer the pings read so far by one pong. Returns False when that has to wait for the peer to read."""
        if self._core is None or self.tls.blocked_since is not None:
            return False
        pong = self._core.pong()
        if pong:
            self.tls.write(pong)
        return True

    def skip_pong(self) -> None:
        """Leave the pings read so far without an answer: no node misses a pong, and one too many is fatal."""
        if self._core is not None:
            self._core.pong_owed = False

    def give_up(self, failure: str, detail: str = "") -> None:
        """End the connection for a reason of ours."""
        if not self.failure:
            self.failure, self.detail = failure, detail
        self.tls.close(failure)

    # What TLS reports.

    def secured(self, certificate: bytes) -> None:
        self.answered_as = node_id_of(certificate)
        if self.answered_as != self.meant:
            self.give_up(Failure.WRONG_IDENTITY)
            return
        try:
            self._start(parse_certificate(certificate))
        except MalformedCertificate as error:
            self.give_up(Failure.MALFORMED_CERTIFICATE, str(error))

    def received(self, data: bytes) -> None:
        core = self._core
        if core is None:
            return
        self.bytes_seen += len(data)
        now = self.received_at = self._loop.time()
        events = core.receive(data, now)
        if events:
            self._report(events, now)
        self._write_output(core)
        if core.pong_owed:
            self._wiring.listener.on_ping(self)

    def writable(self) -> None:
        if self._core is not None and self._core.pong_owed:
            self._wiring.listener.on_ping(self)

    def lost(self, failure: str, detail: str) -> None:
        if not self.failure:
            self.failure, self.detail = failure, detail
        self.has_ended = True
        if not self.settled.done():
            self.settled.set_result(False)
        self._wiring.listener.on_end(self)
        self._core = None

    def _start(self, certificate: Certificate) -> None:
        wiring = self._wiring
        core = self._core = PeerCore(wiring.own(), certificate, wiring.core, wiring.zstd)
        self.sent_at = self._loop.time()
        self.tls.write(core.start(self.sent_at, wiring.unix_clock(), wiring.known_peers()))

    def _report(self, events: list[Event], now: float) -> None:
        listener = self._wiring.listener
        for event in events:
            if type(event) is Answered:
                listener.on_answer(self, event, now)
            elif type(event) is Connected:
                listener.on_connected(self, event.handshake)
                if not self.settled.done():
                    self.settled.set_result(True)
            elif type(event) is AddressesClaimed:
                listener.on_addresses(event.addresses)
            elif type(event) is Closed:
                self.give_up(event.reason, event.detail)

    def _write_output(self, core: PeerCore) -> None:
        out = core.output()
        if out:
            self.sent_at = self._loop.time()
            self.tls.write(out)
