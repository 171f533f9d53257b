"""A link to a PostgreSQL server that loses one message, and the connection with it.

Source of truth: PostgreSQL, "Message Formats": a type and a length begin each message, but the
first one of a client has no type.
"""

from __future__ import annotations

import select
import socket
import threading
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Final, Self

SOCKET_NAME: Final = ".s.PGSQL.5432"
_CHUNK_BYTES: Final = 65_536
_LENGTH_BYTES: Final = 4
# A client asks the server to reply: Query and Sync.
_REQUESTS: Final = b"QS"
# The server has replied to one of them, and waits for the next: ReadyForQuery.
_REPLIES: Final = b"Z"


class Loss(StrEnum):
    """The lost message: a request, which the server never sees, or the reply to it."""

    REQUEST = "request"
    REPLY = "reply"


class _Messages:
    """Counts the messages of some types in a stream."""

    def __init__(self, types: bytes, *, has_startup: bool) -> None:
        self._types = types
        self._type_bytes = 0 if has_startup else 1
        self._pending = b""

    def count(self, data: bytes) -> int:
        """Return how many of the messages end in the next bytes."""
        self._pending += data
        number = 0
        while len(self._pending) >= (begin := self._type_bytes) + _LENGTH_BYTES:
            length = int.from_bytes(self._pending[begin : begin + _LENGTH_BYTES], "big")
            if len(self._pending) < begin + length:
                break
            number += begin > 0 and self._pending[0] in self._types
            self._pending = self._pending[begin + length :]
            self._type_bytes = 1
        return number


class LossyLink:
    """Listens on a Unix socket in `folder`, and passes connections to the server in `server`.

    counts: messages until now, the first ones of each connection included.
    has_lost: whether the message of `lose` was lost.
    """

    def __init__(self, folder: Path, server: Path) -> None:
        self._server = str(server / SOCKET_NAME)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / SOCKET_NAME))
        self._listener.listen()
        self._lock = threading.Lock()
        self._lost: tuple[Loss, int] | None = None
        self._is_outage = False
        self._is_cut = False
        self.counts = dict.fromkeys(Loss, 0)
        self.has_lost = False
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # A thread that waits for a connection does not notice that its socket is closed.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def lose(self, kind: Loss, at: int, *, is_outage: bool = False) -> None:
        """Lose the message number `at` from now, and close its connection.

        is_outage: whether nothing reaches the server after it, until `mend`.
        """
        with self._lock:
            self.counts = dict.fromkeys(Loss, 0)
            self._lost = kind, at
            self._is_outage = is_outage
            self.has_lost = False

    def mend(self) -> None:
        """Lose nothing any more, and count the messages from now."""
        with self._lock:
            self.counts = dict.fromkeys(Loss, 0)
            self._lost = None
            self._is_cut = False

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        requests = _Messages(_REQUESTS, has_startup=True)
        replies = _Messages(_REPLIES, has_startup=False)
        with client, socket.socket(socket.AF_UNIX) as server, suppress(OSError):
            server.connect(self._server)
            while True:
                ready, _, _ = select.select([client, server], [], [])
                for source in ready:
                    data = source.recv(_CHUNK_BYTES)
                    if source is client:
                        is_lost = self._count(Loss.REQUEST, requests.count(data))
                        target = server
                    else:
                        is_lost = self._count(Loss.REPLY, replies.count(data))
                        target = client
                    if is_lost or not data:
                        return
                    target.sendall(data)

    def _count(self, kind: Loss, number: int) -> bool:
        """Count messages; return whether one of them is to be lost."""
        with self._lock:
            if self._is_cut:
                return True
            before = self.counts[kind]
            self.counts[kind] += number
            if self._lost is None or self._lost[0] is not kind:
                return False
            is_lost = before < self._lost[1] <= self.counts[kind]
            self.has_lost = self.has_lost or is_lost
            self._is_cut = is_lost and self._is_outage
            return is_lost
