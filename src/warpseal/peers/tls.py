"""TLS 1.3 over memory BIOs in an asyncio protocol.

All connections share one receive buffer, so a connection takes a tenth of the memory of asyncio's
own TLS. A peer whose bytes take long to handle is read less often, so that no peer can hold the
event loop.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol, cast

from warpseal.peers.statistics import ConnectionFailure

READ_BYTES: Final = 4 * 1024
SLICE_S: Final = 0.002
# A connection that used up its slice pauses for this many times its processing time.
PAUSE_FACTOR: Final = 4
MAX_PAUSE_S: Final = 0.05
WRITE_HIGH_WATER_BYTES: Final = 64 * 1024
# More than this is unsent only if the peer sends without reading.
MAX_UNSENT_BYTES: Final = 4 * 1024 * 1024
_RECEIVE_BUFFER_BYTES: Final = 64 * 1024

log = logging.getLogger(__name__)


class TlsListener(Protocol):
    """Receives the events of a TLS connection, synchronously and in this order."""

    def on_tls_established(self, certificate: bytes) -> None:
        """The TLS handshake is complete and writing is possible.

        certificate: the peer's leaf in DER.
        """

    def on_data(self, data: bytes) -> None:
        """At most READ_BYTES of plaintext arrived."""

    def on_writable(self) -> None:
        """The peer reads again after it had stopped."""

    def on_connection_lost(self, failure: str, detail: str) -> None:
        """The connection is closed; called once, also if TLS was never established."""


class ReceiveBuffer:
    """The receive buffer of all connections; it is empty between two callbacks."""

    __slots__ = ("raw", "view")

    def __init__(self, size_bytes: int = _RECEIVE_BUFFER_BYTES) -> None:
        self.raw = bytearray(size_bytes)
        self.view = memoryview(self.raw)


class TlsConnection(asyncio.BufferedProtocol):
    """One outgoing TLS connection.

    write_paused_at: the loop's time at which the peer stopped reading, None while it reads.
    is_throttled: received bytes wait until the connection may use the loop again.
    """

    __slots__ = (
        "_detail",
        "_failure",
        "_incoming",
        "_listener",
        "_loop",
        "_lost",
        "_outgoing",
        "_secure",
        "_shared",
        "_tls",
        "_transport",
        "is_throttled",
        "write_paused_at",
    )

    def __init__(
        self, listener: TlsListener, context: ssl.SSLContext, shared: ReceiveBuffer
    ) -> None:
        self._listener = listener
        self._shared = shared
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._failure = self._detail = ""
        self._secure = self.is_throttled = self._lost = False
        self.write_paused_at: float | None = None

    def write(self, data: bytes) -> None:
        """Encrypt and send plain bytes; a closed connection ignores them.

        This method neither drops nor delays bytes: the caller checks `write_paused_at` first.
        """
        if self._lost or not self._secure:
            return
        try:
            offset = self._tls.write(data)
            while offset < len(data):  # OpenSSL stops after each record of 16 KiB.
                offset += self._tls.write(memoryview(data)[offset:])
        except ssl.SSLError as error:
            self._fail(ConnectionFailure.TLS_FAILED, error.reason or str(error))
            return
        self._flush()
        if self.write_paused_at is not None and self._unsent_bytes() > MAX_UNSENT_BYTES:
            self._fail(ConnectionFailure.NOT_READING, f"{self._unsent_bytes()} unread bytes")

    def close(self, failure: str, detail: str = "") -> None:
        """Close the connection; `on_connection_lost` follows unless it was called before."""
        if self._transport is None or self._failure:
            return
        self._failure, self._detail = failure, detail
        if self._unsent_bytes():
            # `close` would wait for a peer that may never read.
            self._transport.abort()
        else:
            self._transport.close()

    # asyncio.BufferedProtocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        self._guard(self._handshake)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._shared.view

    def buffer_updated(self, nbytes: int) -> None:
        if self._failure:
            return
        self._incoming.write(self._shared.view[:nbytes])
        if not self.is_throttled:
            self._guard(self._read if self._secure else self._handshake)

    def eof_received(self) -> bool:
        if not self._failure:
            self._failure = ConnectionFailure.HUNG_UP
        return False

    def pause_writing(self) -> None:
        self.write_paused_at = self._loop.time()

    def resume_writing(self) -> None:
        self.write_paused_at = None
        if not self._lost:
            self._guard(self._listener.on_writable)

    def connection_lost(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost, self._transport = True, None
        self._listener.on_connection_lost(
            self._failure or ConnectionFailure.HUNG_UP, self._detail or str(error or "")
        )

    # TLS.

    def _guard(self, step: Callable[[], None]) -> None:
        """Run one step; an error in it closes this connection only."""
        try:
            step()
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLError as error:
            self._flush()
            self._fail(ConnectionFailure.TLS_FAILED, error.reason or str(error))
        # The event loop calls this for one of many connections; the others go on.
        except Exception:
            log.exception("internal error, closing peer connection")
            self._fail(ConnectionFailure.INTERNAL, "")

    def _fail(self, failure: str, detail: str) -> None:
        if not self._failure:
            self._failure, self._detail = failure, detail
        if self._transport is not None:
            self._transport.abort()

    def _handshake(self) -> None:
        self._tls.do_handshake()
        self._flush()
        self._secure = True
        self._listener.on_tls_established(self._tls.getpeercert(binary_form=True) or b"")
        self._read()

    def _read(self) -> None:
        started = monotonic()
        has_more = True
        try:
            while has_more or self._incoming.pending:
                data = self._tls.read(READ_BYTES)
                if not data:
                    self.close(ConnectionFailure.HUNG_UP)
                    return
                self._listener.on_data(data)
                if self._failure:
                    return
                # Fewer bytes than requested are the end of a record.
                has_more = len(data) == READ_BYTES and self._tls.pending() > 0
                spent_s = monotonic() - started
                if spent_s > SLICE_S and (has_more or self._incoming.pending):
                    self._throttle(min(spent_s * PAUSE_FACTOR, MAX_PAUSE_S))
                    return
        except ssl.SSLWantReadError:
            pass  # Only part of a record has arrived.
        if self._outgoing.pending:
            self._flush()

    def _throttle(self, delay_s: float) -> None:
        assert self._transport is not None
        self._flush()
        self.is_throttled = True
        self._transport.pause_reading()
        self._loop.call_later(delay_s, self._resume)

    def _resume(self) -> None:
        self.is_throttled = False
        if self._lost or self._failure or self._transport is None:
            return
        self._guard(self._read)
        if not self.is_throttled and not self._failure:
            self._transport.resume_reading()

    def _unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def _flush(self) -> None:
        if self._outgoing.pending and self._transport is not None:
            self._transport.write(self._outgoing.read())
