"""The sockets of simulated validators, whose connections run TLS, admission and `PeerSession`."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final, cast

from OpenSSL import SSL

from warpseal.warp.ids import NodeID
from warpseal_simnet.behaviours import ListenMode
from warpseal_simnet.peer import PeerSession, SessionContext
from warpseal_simnet.tls import ServerTls, TlsFailed, make_context
from warpseal_simnet.values import SimValidator
from warpseal_simnet.violations import ViolationKind

LOOPBACK: Final = "127.0.0.1"
_BACKLOG: Final = 64


def reserve_port(port: int) -> socket.socket:
    """Bind a socket that does not listen to a loopback port; 0 lets the system choose one.

    Connections are refused, and no other process gets the port. Sockets with SO_REUSEPORT can share
    it.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind((LOOPBACK, port))
    return reserved


class Listener:
    """A validator's listening socket and its connections.

    admitted: the connections whose TLS handshake is done, by the peer's NodeID.
    """

    def __init__(self, validator: SimValidator, context: SessionContext) -> None:
        self.validator = validator
        self.context = context
        self.tls_context: SSL.Context = make_context(validator.identity)
        self.admitted: dict[NodeID, PeerConnection] = {}
        self._open: dict[PeerConnection, None] = {}
        self._server: asyncio.Server | None = None
        self._reserved: socket.socket | None = None

    async def listen(self, port: int = 0) -> int:
        """Listen on the loopback address; return the port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: PeerConnection(self), LOOPBACK, port, backlog=_BACKLOG, reuse_port=True
        )
        self._release_port()
        return self._port()

    def suspend(self) -> None:
        """Stop listening and end every connection, but keep the port."""
        if self._server is not None:
            self._reserved = reserve_port(self._port())
        self._stop_listening()

    def close(self) -> None:
        """Stop listening and end every connection."""
        self._stop_listening()
        self._release_port()

    def disconnect(self) -> None:
        """End every connection, as a node that stops does."""
        for connection in tuple(self._open):
            connection.close()

    def opened(self, connection: PeerConnection) -> None:
        """Note a connection that was accepted."""
        self._open[connection] = None
        self.validator.counts.connections += 1
        self.validator.counts.open_connections += 1

    def lost(self, connection: PeerConnection, peer: NodeID | None) -> None:
        """Forget a connection that ended."""
        self._open.pop(connection, None)
        self.validator.counts.open_connections -= 1
        if peer is not None and self.admitted.get(peer) is connection:
            del self.admitted[peer]

    def _port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        self.disconnect()

    def _release_port(self) -> None:
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None


class PeerConnection(asyncio.Protocol):
    """One accepted connection."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._settings = listener.context.settings
        self._tls = ServerTls(listener.tls_context)
        self._session: PeerSession | None = None
        self._transport: asyncio.Transport | None = None
        self._timers: set[asyncio.TimerHandle] = set()
        self._read_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._armed_at = 0.0
        self._feeding = False
        self._closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not every loop's transports inherit from asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._listener.opened(self)
        self._loop = asyncio.get_running_loop()
        if self._is_mute:
            self._listener.context.responder.lies["mute"] += 1
            return
        self._read_timer = self._loop.call_later(
            self._settings.upgrade_timeout_s, self._upgrade_timed_out
        )

    def data_received(self, data: bytes) -> None:
        if self._closing or self._is_mute:
            return
        self._feeding = True
        try:
            plaintext = self._tls.receive(data)
            if self._session is None and self._tls.leaf is not None:
                self._admit()
            if self._session is not None and plaintext and self._session.feed(plaintext):
                self._armed_at = self._loop.time()
        except TlsFailed as failed:
            self._refuse_tls(str(failed))
        finally:
            self._feeding = False
        self._flush()
        if self._tls.closed:
            self._count_truncation()
            self._end()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (*self._timers, self._read_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._count_truncation()
        self._closing = True
        self._listener.lost(self, self._tls.leaf.node_id if self._tls.leaf else None)

    def pause_writing(self) -> None:
        self._write_timer = self._loop.call_later(
            self._settings.write_timeout_s, self._write_timed_out
        )

    def resume_writing(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()

    def write(self, frame: bytes, *, reliable: bool = False) -> bool:
        """Send a frame.

        Returns False if it was dropped because the peer reads too slowly (never if it is reliable).
        """
        if self._closing or self._transport is None:
            return False
        waiting = self._transport.get_write_buffer_size()
        if not reliable and waiting > self._settings.write_queue_bytes:
            return False
        self._tls.send(frame)
        if not self._feeding:
            self._flush()
        return True

    def close(self) -> None:
        """Close the connection once everything is written."""
        if not self._closing:
            self._tls.close()
            self._end()

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run `action` after a delay, unless the connection ends before."""

        def run() -> None:
            self._timers.discard(timer)
            action()

        timer = self._loop.call_later(delay_s, run)
        self._timers.add(timer)

    @property
    def _is_mute(self) -> bool:
        return self._listener.validator.behaviour.reach is ListenMode.MUTE

    def _admit(self) -> None:
        """Admit the peer, or close silently if it is this validator itself or already connected."""
        leaf = self._tls.leaf
        assert leaf is not None
        validator = self._listener.validator
        self._session = PeerSession(validator, leaf, self._listener.context, self)
        if leaf.node_id == validator.node_id:
            self._session.report_violation(ViolationKind.SELF, close=True)
        elif leaf.node_id in self._listener.admitted:
            self._session.report_violation(ViolationKind.DUPLICATE_NODE_ID, close=True)
        else:
            self._listener.admitted[leaf.node_id] = self
            self._arm_read_deadline()
            self._session.start()

    def _refuse_tls(self, reason: str) -> None:
        refused = self._tls.refused
        kind = ViolationKind.CERTIFICATE if refused else ViolationKind.TLS_FAILED
        self._count(kind, refused or reason)
        self._end()

    def _upgrade_timed_out(self) -> None:
        self._count(
            ViolationKind.TLS_TIMEOUT, f"no TLS within {self._settings.upgrade_timeout_s} s"
        )
        self._end()

    def _write_timed_out(self) -> None:
        self._count(ViolationKind.WRITE_TIMEOUT, "the peer does not read")
        if self._transport is not None:
            self._transport.abort()

    def _arm_read_deadline(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
        self._armed_at = self._loop.time()
        self._read_timer = self._loop.call_later(
            self._settings.read_timeout_s, self._check_read_deadline
        )

    def _check_read_deadline(self) -> None:
        left_s = self._armed_at + self._settings.read_timeout_s - self._loop.time()
        if left_s > 0:
            self._read_timer = self._loop.call_later(left_s, self._check_read_deadline)
            return
        if self._session is not None:
            self._session.report_violation(
                ViolationKind.READ_TIMEOUT, "no complete message in time", close=True
            )

    def _count_truncation(self) -> None:
        session = self._session
        if session is not None and session.in_frame and not session.closed and not self._closing:
            session.report_violation(
                ViolationKind.TRUNCATED_FRAME, "the connection ended within a frame"
            )

    def _count(self, kind: ViolationKind, detail: str) -> None:
        context = self._listener.context
        peer = self._tls.leaf.node_id if self._tls.leaf else None
        context.violations.add(
            kind, peer, self._listener.validator.node_id, detail, context.settings.clock()
        )

    def _flush(self) -> None:
        records = self._tls.outgoing()
        if records and self._transport is not None and not self._transport.is_closing():
            self._transport.write(records)

    def _end(self) -> None:
        self._flush()
        self._closing = True
        if self._transport is not None:
            self._transport.close()
