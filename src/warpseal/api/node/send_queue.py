"""Messages that wait to be sent to a WebSocket client: in order, complete, and bounded per client and in total."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final

from warpseal.evm_rpc.settings import EvmRpcSettings

TOO_SLOW: Final = 1008


@dataclass(slots=True)
class SharedQueueSize:
    """The bytes that wait for all clients together."""

    size_bytes: int = 0


class SendQueue:
    """Messages for one client. A client that reads too slowly loses the connection; no message is ever skipped.

    ended: the code and reason with which the connection closes.
    """

    def __init__(self, settings: EvmRpcSettings, total: SharedQueueSize) -> None:
        self.ended: tuple[int, str] | None = None
        self._settings = settings
        self._total = total
        self._messages: deque[str] = deque()
        self._size_bytes = 0
        self._changed = asyncio.Event()

    def put(self, text: str) -> bool:
        """Add a message. Return False if the queue is full: the connection then ends without the queued messages."""
        if self.ended is not None:
            return False
        if not self._has_room(len(text)):
            self.clear()
            self.end(TOO_SLOW, "messages are not read as fast as they come")
            return False
        self._messages.append(text)
        self._add_bytes(len(text))
        self._changed.set()
        return True

    def end(self, code: int, reason: str) -> None:
        """Close the connection after the queued messages."""
        self.ended = self.ended or (code, reason)
        self._changed.set()

    async def get(self) -> str | None:
        """Return the next message; None at the end."""
        while not self._messages:
            if self.ended is not None:
                return None
            self._changed.clear()
            await self._changed.wait()
        text = self._messages.popleft()
        self._add_bytes(-len(text))
        return text

    def clear(self) -> None:
        """Drop the queued messages."""
        self._messages.clear()
        self._add_bytes(-self._size_bytes)

    def _has_room(self, size_bytes: int) -> bool:
        settings = self._settings
        return (
            len(self._messages) < settings.max_queued
            and self._size_bytes + size_bytes <= settings.max_queued_bytes
            and (not self._messages or self._total.size_bytes + size_bytes <= settings.max_total_queued_bytes)
        )

    def _add_bytes(self, size_bytes: int) -> None:
        self._size_bytes += size_bytes
        self._total.size_bytes += size_bytes
