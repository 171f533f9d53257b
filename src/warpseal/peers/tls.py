"""TLS 1.3 over memory BIOs in an asyncio protocol: ciphertext on the socket's side, plain bytes on ours.

One receive buffer serves all connections: one takes a tenth of the memory that asyncio's own TLS takes. A
peer whose bytes take long to handle is read less often, so that none can hold the loop.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol, cast

READ_BYTES: Final = 4 * 1024
SLICE_S: Final = 0.002
# After a slice that was used up, the connection rests this many times as long as it worked.
REST_FACTOR: Final = 4
WRITE_HIGH_WATER_BYTES: Final = 64 * 1024
_RECEIVE_BUFFER_BYTES: Final = 64 * 1024

log = logging.getLogger(__name__)


class SecureStream(Protocol):
    """What a TLS connection tells its owner, synchronously and in this order."""

    def secured(self, certificate: bytes) -> None:
        """The TLS handshake is done, writing is possible; `certificate`: the peer's leaf in DER."""

    def received(self, data: bytes) -> None:
        """Plain bytes, at most READ_BYTES of them."""

    def drained(self) -> None:
        """All that the socket had to give for now has been handed over."""

    def writable(self) -> None:
        """The peer reads again after `blocked_since` was set."""

    def lost(self, reason: str) -> None:
        """The connection is gone; called once, also when it never became secure."""


class ReceiveBuffer:
    """The one buffer that all connections receive into; it holds nothing between two callbacks."""

    __slots__ = ("raw", "view")

    def __init__(self, size_bytes: int = _RECEIVE_BUFFER_BYTES) -> None:
        self.raw = bytearray(size_bytes)
        self.view = memoryview(self.raw)


class TlsConnection(asyncio.BufferedProtocol):
    """One outgoing TLS connection; reports to `owner`.

    blocked_since: time.monotonic() at which the peer's receive window filled up, None while it reads.
    """

    __slots__ = ("_incoming", "_loop", "_lost", "_outgoing", "_owner", "_reason", "_resting", "_secure",
                 "_shared", "_tls", "_transport", "blocked_since")  # fmt: skip

    def __init__(self, owner: SecureStream, context: ssl.SSLContext, shared: ReceiveBuffer) -> None:
        self._owner = owner
        self._shared = shared
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="")
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reason = ""
        self._secure = self._resting = self._lost = False
        self.blocked_since: float | None = None

    def write(self, data: bytes) -> None:
        """Encrypt and send plain bytes. After the end of the connection: nothing.

        Nothing is dropped or delayed here: who writes looks at `blocked_since` first.
        """
        if self._lost or not self._secure:
            return
        written = self._tls.write(data)
        while written < len(data):  # OpenSSL stops after each record of 16 KiB.
            written += self._tls.write(memoryview(data)[written:])
        self._flush()

    def close(self, reason: str) -> None:
        """End the connection; `lost` follows with this reason, unless it came before."""
        if self._transport is None or self._reason:
            return
        self._reason = reason
        if self._transport.get_write_buffer_size():
            self._transport.abort()  # Closing would wait for a peer that may never read.
        else:
            self._transport.close()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        self._advance(self._shake)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._shared.view

    def buffer_updated(self, nbytes: int) -> None:
        if self._reason:
            return
        self._incoming.write(self._shared.view[:nbytes])
        if not self._resting:
            self._advance(self._read if self._secure else self._shake)

    def eof_received(self) -> bool:
        self._reason = self._reason or "closed by the peer"
        return False

    def pause_writing(self) -> None:
        self.blocked_since = monotonic()

    def resume_writing(self) -> None:
        self.blocked_since = None
        if not self._lost:
            self._advance(self._owner.writable)

    def connection_lost(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = True
        self._owner.lost(self._reason or (f"connection lost: {error}" if error else "closed by the peer"))

    # TLS.

    def _advance(self, step: Callable[[], None]) -> None:
        """Run one step; whatever goes wrong in it ends this connection and nothing else."""
        try:
            step()
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLError as error:
            self._flush()
            self._fail(f"TLS: {error.reason or error}")
        except Exception:
            log.exception("a fault of ours ended a connection")
            self._fail("internal error")

    def _fail(self, reason: str) -> None:
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()

    def _shake(self) -> None:
        self._tls.do_handshake()
        self._flush()
        self._secure = True
        self._owner.secured(self._tls.getpeercert(binary_form=True) or b"")
        self._read()

    def _read(self) -> None:
        started = monotonic()
        try:
            while self._incoming.pending or self._tls.pending():
                data = self._tls.read(READ_BYTES)
                if not data:
                    self.close("closed by the peer")
                    return
                self._owner.received(data)
                if self._reason:
                    return
                spent_s = monotonic() - started
                if spent_s > SLICE_S:
                    self._rest(spent_s * REST_FACTOR)
                    return
        except ssl.SSLWantReadError:
            pass  # Half a record has arrived.
        self._flush()
        self._owner.drained()

    def _rest(self, delay_s: float) -> None:
        assert self._transport is not None
        self._flush()
        self._resting = True
        self._transport.pause_reading()
        self._loop.call_later(delay_s, self._resume)

    def _resume(self) -> None:
        self._resting = False
        if self._lost or self._reason or self._transport is None:
            return
        self._advance(self._read)
        if not self._resting and not self._reason:
            self._transport.resume_reading()

    def _flush(self) -> None:
        if self._outgoing.pending and self._transport is not None:
            self._transport.write(self._outgoing.read())
