"""A WebSocket connection that ends in time, with a reason: uvicorn's protocol, bounded.

uvicorn closes a connection when all is written, which never happens if the client reads nothing.
And it closes at once after a message that it refuses, so that a client that is still sending sees a
broken connection instead of the reason.
"""

from __future__ import annotations

import asyncio
from asyncio.transports import BaseTransport
from typing import Any, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode

from warpseal.api.http.chunk_turns import ChunkTurns
from warpseal.api.http.clients import client_network
from warpseal.api.http.http_protocol import ABORT, IS_CLOSING, LINGER_S

_DRAIN_S: Final = 2.0
# A frame may have six bytes and takes as long to parse as one of thousands.
_PIECE_BYTES: Final = 4_096
# A frame of six bytes takes as long as a dozen chunks of a body.
_CHUNKS_PER_BYTE: Final = 2


class LimitedWebSocket(WebSocketsSansIOProtocol):
    """Serves one connection and limits the time that a client has to read the last messages.

    chunk_turns: bounds what a turn of the event loop parses of all connections.
    """

    _ending: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, chunk_turns: ChunkTurns, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._chunk_turns = chunk_turns
        self._unparsed = bytearray()
        self._waits_for_turn = False

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)
        self.app_state = {
            **self.app_state,
            ABORT: self.transport.abort,
            IS_CLOSING: self.transport.is_closing,
        }

    def data_received(self, data: bytes) -> None:
        """Parse frames piece by piece, so that other tasks run in between.

        The socket is not read until all pieces are parsed.
        """
        self._unparsed += data
        if not self._waits_for_turn:
            self._parse_piece()

    def _parse_piece(self) -> None:
        """Parse a piece unless this turn is used up; the rest waits for its turn."""
        self._waits_for_turn = False
        if not self.transport.is_closing() and not self._chunk_turns.is_over:
            piece = bytes(self._unparsed[:_PIECE_BYTES])
            del self._unparsed[:_PIECE_BYTES]
            self._chunk_turns.count(_CHUNKS_PER_BYTE * len(piece))
            super().data_received(piece)
        if self.transport.is_closing():
            self._unparsed.clear()
        elif self._unparsed:
            self.transport.pause_reading()
            self._waits_for_turn = True
            network, _ = client_network(self.client[0] if self.client else "")
            self._chunk_turns.wait(network, self._parse_piece)
        elif not self.read_paused or self.close_sent:
            self.transport.resume_reading()

    async def receive(self) -> Any:
        message = await super().receive()
        if self._waits_for_turn and not self.transport.is_closing():
            self.transport.pause_reading()
        return message

    def connection_lost(self, exc: Exception | None) -> None:
        if self._ending is not None:
            self._ending.cancel()
        super().connection_lost(exc)

    async def send(self, message: Any) -> None:
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            # A refused handshake is complete. Otherwise uvicorn logs an error about a missing
            # response.
            self.handshake_complete = True

    def send_receive_event_to_app(self) -> None:
        is_open_text = not self.close_sent and self.curr_msg_data_type == "text"
        if is_open_text and not _is_utf8(b"".join(self.frames)):
            # uvicorn would log an error with a traceback, which any client could cause.
            self.frames = []
            self.conn.send_close(CloseCode.INVALID_DATA)
            self.handle_parser_exception()
            return
        super().send_receive_event_to_app()

    def handle_parser_exception(self) -> None:
        if self.close_sent or self.conn.close_sent is None:
            return
        code, reason = self.conn.close_sent.code, self.conn.close_sent.reason
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        # Bytes that still come are dropped.
        self.transport.resume_reading()
        self.close_timer = self.loop.call_later(LINGER_S, self.transport.close)

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self._end_soon(_DRAIN_S)

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        super().on_task_complete(task)
        # The client has this time to close the connection.
        self._end_soon(self.close_timeout + _DRAIN_S)

    def _end_soon(self, after_s: float) -> None:
        if not self.disconnected and self._ending is None:
            self._ending = self.loop.call_later(after_s, self.transport.abort)


def _is_utf8(data: bytes) -> bool:
    try:
        return data.isascii() or bool(data.decode())
    except UnicodeDecodeError:
        return False
