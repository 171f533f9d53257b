"""Bounds the chunks of request bodies, and the frames of WebSockets, that are parsed in one turn of
the event loop; client networks take turns.

A chunk or a frame of a few bytes costs as much as a long one, and one read of a socket may have
tens of thousands of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

MAX_CHUNKS: Final = 16_384
"""Chunks of a turn; it ends with the read that exceeds them. They take a few milliseconds."""


class ChunkTurns:
    """Counts the chunks of a turn of one event loop, and holds the reads that wait."""

    def __init__(self) -> None:
        self._chunks = 0
        self._waiting: dict[str, deque[Callable[[], None]]] = {}

    @property
    def is_over(self) -> bool:
        """Whether further reads have to wait for the next turn."""
        return self._chunks >= MAX_CHUNKS

    def count(self, chunks: int) -> None:
        """Count chunks that were parsed."""
        if not self._chunks:
            # Callbacks that a callback adds run in the next turn, behind a look at the sockets.
            asyncio.get_running_loop().call_soon(self._begin_turn)
        self._chunks += chunks

    def wait(self, network: str, read: Callable[[], None]) -> None:
        """Call `read` in a later turn. Networks take turns, and so do the reads of a network."""
        self._waiting.setdefault(network, deque()).append(read)

    def _begin_turn(self) -> None:
        self._chunks = 0
        while self._waiting and not self.is_over:
            network = next(iter(self._waiting))
            reads = self._waiting.pop(network)
            read = reads.popleft()
            if reads:
                self._waiting[network] = reads
            read()
