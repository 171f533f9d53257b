"""One HTTP/1.1 connection that no client can hold open, fill up or crash: uvicorn's protocol with
limits.

uvicorn bounds neither the time in which a request arrives nor the size of its header, and it
answers malformed HTTP in plain text. Limits here are per connection and absolute; a refusal is JSON
like every other error.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from http import HTTPStatus
from typing import Any, Final

import httptools

from warpseal.api.http.chunk_turns import ChunkTurns
from warpseal.api.http.clients import IdleConnections, client_network
from warpseal.api.http.error_response import Dialect, dialect_of, error_response
from warpseal.api.http.errors import (
    HeaderTooLarge,
    MalformedHTTP,
    ReceiveTimeout,
    TooManyConnections,
    UnknownTransferCoding,
)
from warpseal.api.http.settings import ApiSettings
from warpseal.api.http.uvicorn_parts import (
    Config,
    HttpToolsProtocol,
    RequestResponseCycle,
    ServerState,
)
from warpseal.errors import WarpsealError
from warpseal.runtime.request_id import new_request_id, request_id

log = logging.getLogger("warpseal.api")

RECEIVE_BY: Final = "receive_by"
"""Key of the ASGI scope's state: the loop time by which the body must have arrived."""

IS_COMPLETE: Final = "is_complete"
"""Key of the ASGI scope's state: there once the whole body has arrived."""

ABORT: Final = "abort"
"""Key of the ASGI scope's state: ends the connection at once, whatever was not written yet."""

IS_CLOSING: Final = "is_closing"
"""Key of the ASGI scope's state: returns whether the connection is closed, or about to be."""

ON_DISCONNECT: Final = "on_disconnect"
"""Key of the ASGI scope's state: the reader of a request sets it.

The protocol calls it if the client leaves before its response.
"""

MAX_PIPELINED: Final = 16
# A refused body is still read for a while, so that its sender sees the response and not a broken
# connection.
MAX_MESSAGE_BODIES: Final = 8
# Twice the bytes that an EVM node takes: bodies for nodes are larger than any other.
MAX_NODE_MESSAGE_BYTES: Final = 2 * 5_242_880
MAX_SOCKET_MESSAGE_BYTES: Final = 5_242_880
LINGER_S: Final = 1.0
# A connection that waits for its client counts as idle after this time. The request of a new
# connection may be unread until then.
_PATIENCE_S: Final = 1.0
# The parser gets a read in pieces of this size. Pieces of a chunked body may have to wait for their
# turn.
_PIECE_BYTES: Final = 4_096
# A few chunks in a piece cost nothing, and count as none.
_FEW_CHUNKS: Final = 16
# A header field counts as at least this many bytes: many small ones take more time than few large
# ones.
_MIN_FIELD_BYTES: Final = 64
_SOCKET_START: Final = b"/ext/"
_SOCKET_END: Final = b"/ws"
_SHOWN_BYTES: Final = 80
_BODY_HEADERS: Final = (b"content-length", b"transfer-encoding")


class LimitedHttp(HttpToolsProtocol):
    """Serves one connection within the limits of ApiSettings."""

    def __init__(
        self,
        settings: ApiSettings,
        config: Config,
        state: ServerState,
        app_state: dict[str, Any],
        idle_connections: IdleConnections,
        chunk_turns: ChunkTurns,
    ) -> None:
        super().__init__(config, state, app_state, asyncio.get_running_loop())
        self._chunk_turns = chunk_turns
        self._unparsed = bytearray()
        self._idle_connections = idle_connections
        self._is_idle = False
        self._idle_timer: asyncio.TimerHandle | None = None
        self.timeout_keep_alive = settings.keep_alive_s  # type: ignore[assignment]
        self._settings = settings
        self._max_message_bytes = (
            settings.max_header_bytes + MAX_MESSAGE_BODIES * settings.max_body_bytes
        )
        self._receive_timer: asyncio.TimerHandle | None = None
        self._receive_by = 0.0
        self._running: RequestResponseCycle | None = None
        self._messages = 0
        self._in_header = True
        self._complete = True
        self._header_bytes = 0
        self._raw_bytes = 0
        self._body_parts: list[bytes] = []
        self._refusal: WarpsealError | None = None
        self._closing = False
        self._upgrading = False
        self._resuming = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {
            **self.app_state,
            ABORT: transport.abort,
            IS_CLOSING: transport.is_closing,
        }
        # The parts of a stream leave in a write each; without this a part may wait for the client's
        # delayed ACK.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._start_waiting()
        if len(self.connections) > self._settings.max_connections:
            self._refuse(TooManyConnections())
        else:
            self._start_receiving()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._set_busy()
        self._stop_receiving()
        self._unset_keepalive_if_required()
        self.pipeline.clear()
        self._disconnect(self._open_cycle)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._unparsed:
            self._unparsed += data
        elif len(data) > _PIECE_BYTES or self._must_wait_for_turn:
            self._unparsed += data
            self._parse_pieces()
        else:
            self._parse(data)

    @property
    def _must_wait_for_turn(self) -> bool:
        """Whether the chunks of this turn are used up, and the body may have more of them."""
        if not self._chunk_turns.is_over or not self._in_body:
            return False
        return any(name == b"transfer-encoding" for name, _ in self.headers)

    def _parse_pieces(self) -> None:
        """Parse the bytes that were read, piece by piece, in a later turn if they must wait."""
        while self._unparsed and not self._closing:
            if self._must_wait_for_turn:
                self.transport.pause_reading()
                network, _ = client_network(self._client_host)
                self._chunk_turns.wait(network, self._parse_pieces)
                return
            piece = bytes(self._unparsed[:_PIECE_BYTES])
            del self._unparsed[:_PIECE_BYTES]
            self._parse(piece)
        self._unparsed.clear()
        if not self.flow.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def _parse(self, data: bytes) -> None:
        if self._closing:
            return
        self._unset_keepalive_if_required()
        if self._receive_timer is None and self._complete:
            self._start_receiving()
        messages, was_complete = self._messages, self._complete
        try:
            self.parser.feed_data(data)
            self._add_body()
        except httptools.HttpParserError:
            self._refuse(self._refusal or self._unknown_coding() or MalformedHTTP())
            return
        except httptools.HttpParserUpgrade as upgrade:
            if self._should_upgrade():
                # The WebSocket protocol has limits of its own.
                self._closing = True
                self._set_busy()
                self._stop_receiving()
                self.handle_websocket_upgrade()
            else:
                self._decline_upgrade(data[upgrade.args[0] :])
            return
        if self._messages - messages <= was_complete:
            self._count_raw(len(data))
        if not self._complete and self._waits_for_body:
            self._start_waiting()

    def _unknown_coding(self) -> UnknownTransferCoding | None:
        """Return the error of a body whose transfer coding is not chunked (RFC 9112, 6.1)."""
        values = [value for name, value in self.headers if name == b"transfer-encoding"]
        codings = [coding.strip().lower() for value in values for coding in value.split(b",")]
        unknown = next((coding for coding in codings if coding != b"chunked"), None)
        has_length = any(name == b"content-length" for name, _ in self.headers)
        # With a length besides, a request may be smuggled: the request is malformed, whatever its
        # coding is.
        if unknown is None or has_length:
            return None
        return UnknownTransferCoding(unknown[:_SHOWN_BYTES].decode("latin-1"))

    def _should_upgrade_to_ws(self) -> bool:
        """Return whether a request may become a WebSocket.

        It may on the paths of WebSockets, once all responses are sent.
        """
        path = self.url.partition(b"?")[0]
        has_body = any(name in _BODY_HEADERS for name, _ in self.headers)
        is_for_sockets = path.startswith(_SOCKET_START) and path.endswith(_SOCKET_END)
        return is_for_sockets and not has_body and self._open_cycle is None and not self.pipeline

    def _decline_upgrade(self, rest: bytes) -> None:
        """Continue in HTTP/1.1 after the header of a request that asked for another protocol.

        The parser expects the other protocol next, but the body follows. A new parser is therefore
        advanced to the start of the body.
        """
        if self._upgrading:
            framing = [line for line in self.headers if line[0] in _BODY_HEADERS]
            head = b"".join(b"%s: %s\r\n" % line for line in framing)
            self.parser = httptools.HttpRequestParser(self)
            self._resuming = True
            self.parser.feed_data(b"POST / HTTP/1.1\r\n" + head + b"\r\n")
            self._upgrading = self._resuming = False
        if rest:
            self._parse(rest)

    def on_message_begin(self) -> None:
        if self._resuming:
            return
        super().on_message_begin()
        self._messages += 1
        self._in_header, self._complete = True, False
        self._header_bytes = self._raw_bytes = 0
        if self._receive_timer is None:
            self._start_receiving()

    def on_url(self, url: bytes) -> None:
        if self._resuming:
            return
        self._count_header(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._resuming:
            return
        self._count_header(max(_MIN_FIELD_BYTES, len(name) + len(value)))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._resuming:
            return
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError("too many pipelined requests")
        has_body = any(name in _BODY_HEADERS for name, _ in self.headers)
        if has_body and (refusal := self._unknown_coding()) is not None:
            self._refusal = refusal
            raise ValueError("unknown transfer coding")
        self.scope["state"][RECEIVE_BY] = self._receive_by
        super().on_headers_complete()
        self._in_header = False
        self._upgrading = has_body and self.parser.should_upgrade()

    def on_body(self, body: bytes) -> None:
        # One read may have tens of thousands of chunks of a byte, and adding a chunk copies all
        # chunks before it.
        self._body_parts.append(body)

    def _add_body(self) -> None:
        if self._body_parts:
            if len(self._body_parts) > _FEW_CHUNKS:
                self._chunk_turns.count(len(self._body_parts))
            super().on_body(b"".join(self._body_parts))
            self._body_parts.clear()

    def on_message_complete(self) -> None:
        if self._upgrading:
            return
        self._add_body()
        self._complete = True
        self._stop_receiving()
        self.scope["state"][IS_COMPLETE] = True
        super().on_message_complete()
        if self._open_cycle is not None:
            self._set_busy()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        self._set_busy()
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self._open_cycle is None:
            self._set_idle()
        elif self._waits_for_body:
            self._start_waiting()

    @property
    def _waits_for_body(self) -> bool:
        """Whether the body of the request in work has not arrived."""
        return self._in_body and self._open_cycle is self.cycle

    def _start_waiting(self) -> None:
        """Count the connection as idle if its client has not sent a whole request soon."""
        if not self._is_idle and self._idle_timer is None:
            self._idle_timer = self.loop.call_later(_PATIENCE_S, self._set_idle)

    def _set_idle(self) -> None:
        """Count the connection as idle, which may close another one of its client."""
        self._set_busy()
        self._is_idle = True
        self._idle_connections.add(self._client_host, self._close_idle)

    def _set_busy(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if self._is_idle:
            self._is_idle = False
            self._idle_connections.remove(self._client_host, self._close_idle)

    @property
    def _client_host(self) -> str:
        """The address of the other side; "" if it is unknown."""
        return self.client[0] if self.client else ""

    def _close_idle(self) -> None:
        """Close the connection; a request that has begun gets an error response."""
        self._is_idle = False
        if self._complete:
            self._closing = True
            self._stop_receiving()
            self.transport.close()
        else:
            self._refuse(TooManyConnections())

    def _count_header(self, size: int) -> None:
        """Count a part of the header, or of the trailer; raising makes the parser stop."""
        self._header_bytes += size + 4
        if self._header_bytes > self._settings.max_header_bytes:
            self._refusal = HeaderTooLarge(self._settings.max_header_bytes)
            raise ValueError("header too large")

    def _count_raw(self, size: int) -> None:
        """Count bytes that the parser buffers or that are discarded after a refusal."""
        self._raw_bytes += size
        if self._in_header and self._raw_bytes > self._settings.max_header_bytes:
            self._refuse(HeaderTooLarge(self._settings.max_header_bytes))
            return
        limit_bytes = self._max_message_bytes
        if dialect_of(self.url.decode("latin-1")) is Dialect.NODE:
            limit_bytes = max(limit_bytes, MAX_NODE_MESSAGE_BYTES)
        if self._raw_bytes > limit_bytes:
            self._abort()

    def _start_receiving(self) -> None:
        self._receive_by = self.loop.time() + self._settings.receive_timeout_s
        self._receive_timer = self.loop.call_at(self._receive_by, self._on_receive_timeout)

    def _stop_receiving(self) -> None:
        if self._receive_timer is not None:
            self._receive_timer.cancel()
            self._receive_timer = None

    def _on_receive_timeout(self) -> None:
        """End a request that did not arrive in time.

        A request behind an earlier one that has no response yet could not arrive, and waits again.
        """
        if self._in_body:
            # The reader of the body times out at the same moment, and has a while to send its
            # error.
            self._receive_timer = self.loop.call_later(LINGER_S, self._abort)
        elif self._open_cycle is not None:
            self._start_receiving()
        else:
            self._abort()

    @property
    def _in_body(self) -> bool:
        return not self._in_header and not self._complete

    @property
    def _open_cycle(self) -> RequestResponseCycle | None:
        """The request whose response is not complete."""
        if self._running is None or self._running.response_complete:
            return None
        return self._running

    def _abort(self) -> None:
        """Close the connection; an open request gets an error, unless it has a response."""
        if self._complete or (self._in_body and self.cycle.response_started):
            self._closing = True
            self._stop_receiving()
            self._disconnect(self._open_cycle)
            self.transport.close()
        else:
            self._refuse(ReceiveTimeout(self._settings.receive_timeout_s))

    @staticmethod
    def _disconnect(cycle: RequestResponseCycle | None) -> None:
        """Mark the client of a request as disconnected; uvicorn marks the latest request only."""
        if cycle is not None and not cycle.disconnected:
            cycle.disconnected = True
            cycle.message_event.set()
            cycle.scope["state"].get(ON_DISCONNECT, lambda: None)()

    def _refuse(self, error: WarpsealError) -> None:
        """Send an error to a request that cannot be read on, and close the connection.

        Earlier requests get their responses first.
        """
        self._closing = True
        self._stop_receiving()
        self.pipeline.clear()
        open_cycle = self._open_cycle
        if open_cycle is not None and not (self._in_body and open_cycle is self.cycle):
            open_cycle.keep_alive = False
            return
        self._disconnect(open_cycle)
        if self._in_body and self.cycle.response_started:
            self.transport.close()
            return
        token = request_id.set(new_request_id())
        log.info("request refused", extra={"code": error.code, "client": self._client_host})
        self.transport.write(_response(error, getattr(self, "url", b"")))
        self.transport.close()
        request_id.reset(token)


def _response(error: WarpsealError, url: bytes) -> bytes:
    response = error_response(error, dialect_of(url.decode("latin-1")))
    response.headers.update({"x-request-id": request_id.get(), "connection": "close"})
    phrase = HTTPStatus(response.status_code).phrase
    status_line = f"HTTP/1.1 {response.status_code} {phrase}\r\n".encode()
    fields = b"".join(b"%s: %s\r\n" % header for header in response.raw_headers)
    return status_line + fields + b"\r\n" + response.body
