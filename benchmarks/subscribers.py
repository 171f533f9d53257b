"""WebSocket clients that subscribe to heads: little work per message, and none of it in the process
under test.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.load import RECEIVE_BYTES, STALLED_S, LoadFailed

_HANDSHAKE = (
    "GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
    "sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
_SUBSCRIBE = b'{"jsonrpc":"2.0","id":1,"method":"eth_subscribe","params":["newHeads"]}'
_PUBLISH = b"POST /publish HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 0\r\n\r\n"
_TEXT = 1
_SILENCE_S = 5.0
_SENT_AT = b'"extraData":"'
_SENT_AT_DIGITS = 20


@dataclass(slots=True)
class _Client:
    stream: socket.socket
    buffer: bytearray = field(default_factory=bytearray)

    def texts(self) -> Iterator[bytes]:
        """Read what has arrived, and yield the complete text messages. Raises LoadFailed."""
        data = self.stream.recv(RECEIVE_BYTES)
        if not data:
            raise LoadFailed("a WebSocket was closed")
        self.buffer += data
        while (frame := _frame(self.buffer)) is not None:
            opcode, start, end = frame
            if opcode == _TEXT:
                yield bytes(self.buffer[start:end])
            del self.buffer[:end]


class Subscribers:
    """Subscribers of one side, each with a connection of its own.

    node: the connection to the node's `/publish`.
    """

    def __init__(self, clients: Sequence[_Client], node: socket.socket) -> None:
        self._clients = clients
        self._node = node
        self._selector = selectors.DefaultSelector()
        for client in clients:
            self._selector.register(client.stream, selectors.EVENT_READ, client)

    def receive_head(self) -> list[float]:
        """Have the node send a head; return the delay in seconds of each subscriber that received
        it in time.

        Raises LoadFailed if a connection ends.
        """
        self._node.sendall(_PUBLISH)
        delays_s: list[float] = []
        while len(delays_s) < len(self._clients):
            events = self._selector.select(_SILENCE_S)
            if not events:
                break
            for key, _ in events:
                delays_s += [_delay_s(text) for text in key.data.texts()]
        self._node.recv(RECEIVE_BYTES)
        return delays_s

    def close(self) -> None:
        """Close all connections."""
        self._selector.close()
        for client in self._clients:
            client.stream.close()


@contextmanager
def subscribed(url: str, path: str, node_url: str, count: int) -> Iterator[Subscribers]:
    """Open `count` connections that subscribe to heads. Raises LoadFailed."""
    clients: list[_Client] = []
    with socket.create_connection(_address(node_url), timeout=STALLED_S) as node:
        try:
            for _ in range(count):
                clients.append(_subscriber(url, path))
            subscribers = Subscribers(clients, node)
            yield subscribers
            subscribers.close()
        finally:
            for client in clients:
                client.stream.close()


def _subscriber(url: str, path: str) -> _Client:
    client = _Client(socket.create_connection(_address(url), timeout=STALLED_S))
    client.stream.sendall(_HANDSHAKE.format(path=path).encode())
    while b"\r\n\r\n" not in client.buffer:
        data = client.stream.recv(RECEIVE_BYTES)
        client.buffer += data
        if not data or not client.buffer.startswith(b"HTTP/1.1 101"):
            raise LoadFailed(f"no WebSocket: {bytes(client.buffer[:200])!r}")
    del client.buffer[: client.buffer.index(b"\r\n\r\n") + 4]
    # A mask of zeros is a valid mask.
    client.stream.sendall(bytes([0x81, 0x80 | len(_SUBSCRIBE)]) + bytes(4) + _SUBSCRIBE)
    while not list(client.texts()):
        continue
    return client


def _frame(buffer: bytearray) -> tuple[int, int, int] | None:
    """Return opcode, start and end of the first frame's payload; None if it is incomplete."""
    if len(buffer) < 4:
        return None
    length, start = buffer[1] & 0x7F, 2
    if length == 126:
        length, start = int.from_bytes(buffer[2:4], "big"), 4
    return (buffer[0] & 0x0F, start, start + length) if len(buffer) >= start + length else None


def _delay_s(text: bytes) -> float:
    at = text.index(_SENT_AT) + len(_SENT_AT)
    return (time.monotonic_ns() - int(text[at : at + _SENT_AT_DIGITS])) / 1e9


def _address(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)
