"""A client that keeps several connections busy with one prepared request: as little work per
request as can be.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

RECEIVE_BYTES = 64 * 1024
STALLED_S = 30.0


@dataclass(frozen=True, slots=True)
class Load:
    """The responses to a load.

    took_s: seconds of the wall clock.
    latencies_s: latency of each request.
    bodies: the distinct responses.
    """

    requests: int
    took_s: float
    latencies_s: Sequence[float]
    bodies: frozenset[bytes]


@dataclass(slots=True)
class _Client:
    stream: socket.socket
    sent_at: float = 0.0
    buffer: bytearray = field(default_factory=bytearray)


class LoadFailed(Exception):
    """A response was no success, or none came."""


def post_again_and_again(url: str, path: str, body: bytes, *, clients: int, seconds: float) -> Load:
    """Post `body` on `clients` keep-alive connections, one request at a time on each, for
    `seconds`.

    url: "http://host:port".
    Raises LoadFailed.
    """
    return _again_and_again(url, _post(url, path, body), clients, seconds)


def post_at_a_rate(
    url: str, path: str, body: bytes, *, clients: int, rate: float, seconds: float
) -> Load:
    """Post `body` `rate` times a second in all, evenly, by `clients` keep-alive connections in
    turn, for `seconds`.

    Latencies count from the moment at which a request was due, so that a stall is seen by all that
    were due in it.
    Raises LoadFailed.
    """
    with _connected(url, clients) as crowd:
        return _drive_at_a_rate(crowd, _post(url, path, body), rate, seconds)


def get_again_and_again(url: str, path: str, *, clients: int, seconds: float) -> Load:
    """Get `path` in the same way. Raises LoadFailed."""
    request = f"GET {path} HTTP/1.1\r\nhost: {_host(url)}\r\n\r\n".encode()
    return _again_and_again(url, request, clients, seconds)


def _post(url: str, path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: {_host(url)}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def _host(url: str) -> str:
    return url.removeprefix("http://").partition(":")[0]


def _again_and_again(url: str, request: bytes, clients: int, seconds: float) -> Load:
    with _connected(url, clients) as crowd:
        return _drive(crowd, request, seconds)


@contextmanager
def _connected(url: str, clients: int) -> Iterator[Sequence[_Client]]:
    host, _, port = url.removeprefix("http://").partition(":")
    crowd = [
        _Client(socket.create_connection((host, int(port)), timeout=STALLED_S))
        for _ in range(clients)
    ]
    try:
        yield crowd
    finally:
        for client in crowd:
            client.stream.close()


def _drive(crowd: Sequence[_Client], request: bytes, seconds: float) -> Load:
    latencies_s: list[float] = []
    bodies: set[bytes] = set()
    started = time.perf_counter()
    with selectors.DefaultSelector() as selector:
        for client in crowd:
            selector.register(client.stream, selectors.EVENT_READ, client)
            _send(client, request)
        waiting = len(crowd)
        while waiting:
            events = selector.select(STALLED_S)
            if not events:
                raise LoadFailed(f"no answer within {STALLED_S:g} s")
            for key, _ in events:
                response = _receive(key.data)
                if response is None:
                    continue
                now = time.perf_counter()
                latencies_s.append(now - key.data.sent_at)
                bodies.add(response)
                if now - started < seconds:
                    _send(key.data, request)
                else:
                    waiting -= 1
    return Load(len(latencies_s), time.perf_counter() - started, latencies_s, frozenset(bodies))


def _drive_at_a_rate(crowd: Sequence[_Client], request: bytes, rate: float, seconds: float) -> Load:
    latencies_s: list[float] = []
    bodies: set[bytes] = set()
    idle, request_count, total = deque(crowd), 0, int(rate * seconds)
    started = time.perf_counter()
    with (
        selectors.SelectSelector() as selector
    ):  # It waits for microseconds; epoll would for whole milliseconds.
        for client in crowd:
            selector.register(client.stream, selectors.EVENT_READ, client)
        while len(latencies_s) < total:
            while (
                idle
                and request_count < total
                and (due := started + request_count / rate) <= time.perf_counter()
            ):
                client = idle.popleft()
                _send(client, request)
                client.sent_at = due
                request_count += 1
            left_s = STALLED_S
            if idle and request_count < total:
                left_s = started + request_count / rate - time.perf_counter()
            events = selector.select(max(0.0, left_s))
            if not events and left_s == STALLED_S:
                raise LoadFailed(f"no answer within {STALLED_S:g} s")
            for key, _ in events:
                response = _receive(key.data)
                if response is not None:
                    latencies_s.append(time.perf_counter() - key.data.sent_at)
                    bodies.add(response)
                    idle.append(key.data)
    return Load(len(latencies_s), time.perf_counter() - started, latencies_s, frozenset(bodies))


def _send(client: _Client, request: bytes) -> None:
    client.buffer.clear()
    client.sent_at = time.perf_counter()
    client.stream.sendall(request)


def _receive(client: _Client) -> bytes | None:
    """Return the body of a response once it is whole. Raises LoadFailed."""
    data = client.stream.recv(RECEIVE_BYTES)
    client.buffer += data
    head, separator, body = client.buffer.partition(b"\r\n\r\n")
    if not data or (separator and not head.startswith(b"HTTP/1.1 20")):
        raise LoadFailed(f"instead of a success: {bytes(client.buffer[:500])!r}")
    if not separator:
        return None
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
    return bytes(body) if len(body) >= length else None
