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

from warpseal.peers.failures import Failure

READ_BYTES: Final = 4 * 1024
SLICE_S: Final = 0.002
# After a slice that did not suffice, the connection rests this many times as long as it worked.
REST_FACTOR: Final = 4
MAX_REST_S: Final = 0.05
WRITE_HIGH_WATER_BYTES: Final = 64 * 1024
# More than this is unsent only where the peer does not read while it goes on answering.
MAX_UNSENT_BYTES: Final = 4 * 1024 * 1024
_RECEIVE_BUFFER_BYTES: Final = 64 * 1024

log = logging.getLogger(__name__)


class SecureStream(Protocol):
    """What a TLS connection tells its owner, synchronously and in this order."""

    def secured(self, certificate: bytes) -> None:
        """The TLS handshake is done, writing is possible; `certificate`: the peer's leaf in DER."""

    def received(self, data: bytes) -> None:
        """Plain bytes, at most READ_BYTES of them."""

    def writable(self) -> None:
        """The peer reads again after `blocked_since` was set."""

    def lost(self, failure: str, detail: str) -> None:
        """The connection is gone; called once, also when it never became secure."""


class ReceiveBuffer:
    """The one buffer that all connections receive into; it holds nothing between two callbacks."""

    __slots__ = ("raw", "view")

    def __init__(self, size_bytes: int = _RECEIVE_BUFFER_BYTES) -> None:
        self.raw = bytearray(size_bytes)
        self.view = memoryview(self.raw)


class TlsConnection(asyncio.BufferedProtocol):
    """One outgoing TLS connection; reports to `owner`.

    blocked_since: the loop's time at which the peer's receive window filled up, None while it reads.
    """

    __slots__ = (
        "_detail",
        "_failure",
        "_incoming",
        "_loop",
        "_lost",
        "_outgoing",
        "_owner",
        "_resting",
        "_secure",
        "_shared",
        "_tls",
        "_transport",
        "blocked_since",
    )

    def __init__(self, owner: SecureStream, context: ssl.SSLContext, shared: ReceiveBuffer) -> None:
        self._owner = owner
        self._shared = shared
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._failure = self._detail = ""
        self._secure = self._resting = self._lost = False
        self.blocked_since: float | None = None

    def write(self, data: bytes) -> None:
        """Encrypt and send plain bytes. After the end of the connection: nothing.

        Nothing is dropped or delayed here: who writes looks at `blocked_since` first.
        """
        if self._lost or not self._secure:
            return
        try:
            written = self._tls.write(data)
            while written < len(data):  # OpenSSL stops after each record of 16 KiB.
                written += self._tls.write(memoryview(data)[written:])
        except ssl.SSLError as error:
            self._fail(Failure.TLS_FAILED, error.reason or str(error))
            return
        self._flush()
        if self.blocked_since is not None and self._unsent_bytes() > MAX_UNSENT_BYTES:
            self._fail(Failure.NOT_READING, f"{self._unsent_bytes()} unread bytes")

    @property
    def is_resting(self) -> bool:
        """Whether bytes that have arrived wait until the connection may use the loop again."""
        return self._resting

    def close(self, failure: str, detail: str = "") -> None:
        """End the connection; `lost` follows, unless it came before."""
        if self._transport is None or self._failure:
            return
        self._failure, self._detail = failure, detail
        if self._unsent_bytes():
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
        if self._failure:
            return
        self._incoming.write(self._shared.view[:nbytes])
        if not self._resting:
            self._advance(self._read if self._secure else self._shake)

    def eof_received(self) -> bool:
        if not self._failure:
            self._failure = Failure.HUNG_UP
        return False

    def pause_writing(self) -> None:
        self.blocked_since = self._loop.time()

    def resume_writing(self) -> None:
        self.blocked_since = None
        if not self._lost:
            self._advance(self._owner.writable)

    def connection_lost(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost, self._transport = True, None
        self._owner.lost(self._failure or Failure.HUNG_UP, self._detail or str(error or ""))

    # TLS.

    def _advance(self, step: Callable[[], None]) -> None:
        """Run one step; whatever goes wrong in it ends this connection and nothing else."""
        try:
            step()
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLError as error:
            self._flush()
            self._fail(Failure.TLS_FAILED, error.reason or str(error))
        except Exception:
            log.exception("a fault of ours ended a connection")
            self._fail(Failure.INTERNAL, "")

    def _fail(self, failure: str, detail: str) -> None:
        if not self._failure:
            self._failure, self._detail = failure, detail
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
        has_more = True
        try:
            while has_more or self._incoming.pending:
                data = self._tls.read(READ_BYTES)
                if not data:
                    self.close(Failure.HUNG_UP)
                    return
                self._owner.received(data)
                if self._failure:
                    return
                # Less than was asked for: that was the rest of a record.
                has_more = len(data) == READ_BYTES and self._tls.pending() > 0
                spent_s = monotonic() - started
                if spent_s > SLICE_S and (has_more or self._incoming.pending):
                    self._rest(min(spent_s * REST_FACTOR, MAX_REST_S))
                    return
        except ssl.SSLWantReadError:
            pass  # Half a record has arrived.
        if self._outgoing.pending:
            self._flush()

    def _rest(self, delay_s: float) -> None:
        assert self._transport is not None
        self._flush()
        self._resting = True
        self._transport.pause_reading()
        self._loop.call_later(delay_s, self._resume)

    def _resume(self) -> None:
        self._resting = False
        if self._lost or self._failure or self._transport is None:
            return
        self._advance(self._read)
        if not self._resting and not self._failure:
            self._transport.resume_reading()

    def _unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def _flush(self) -> None:
        if self._outgoing.pending and self._transport is not None:
            self._transport.write(self._outgoing.read())
