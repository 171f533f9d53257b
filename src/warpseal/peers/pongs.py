"""When the pong that a connection owes goes out: once, after everything that had arrived was read.

A node that sent two pings takes a second pong for an attack and hangs up. After a stall of our loop two pings may
wait in the socket, and nothing says whether a callback runs before or after the loop has read; so a pong goes out
only where a look at all sockets lies between two looks at the connection that are close together.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Final

from warpseal.peers.connection import PeerConnection

# Two looks that lie further apart prove nothing: the loop stalled between them, maybe just before the second.
_CLOSE_TOGETHER_S: Final = 0.02
# A connection whose bytes never stop coming gets its pong after this many turns all the same.
_MAX_TURNS: Final = 100


class PongTurns:
    """The connections that owe a pong. delay_s: from a ping to the first look; one timer serves all connections."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._turns: dict[PeerConnection, int] = {}
        self._seen: dict[PeerConnection, int] = {}
        self._looked_at = 0.0
        self._timer: asyncio.Handle | None = None

    def add(self, connection: PeerConnection) -> None:
        """Note that a connection owes a pong."""
        if connection not in self._turns:
            self._turns[connection] = 0
            self._arm()

    def discard(self, connection: PeerConnection) -> None:
        """Forget a connection that is gone."""
        self._turns.pop(connection, None)
        self._seen.pop(connection, None)

    def stop(self) -> None:
        """Forget everything."""
        self._turns.clear()
        self._seen.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._delay_s, self._look)

    def _look(self) -> None:
        self._seen = {connection: connection.bytes_seen for connection in self._turns}
        self._looked_at = monotonic()
        self._timer = asyncio.get_running_loop().call_soon(self._pass)

    def _pass(self) -> None:
        # Whatever a loop does first, timers, callbacks or sockets: behind two callbacks it has looked at the sockets.
        self._timer = asyncio.get_running_loop().call_soon(self._decide)

    def _decide(self) -> None:
        self._timer = None
        conclusive = monotonic() - self._looked_at <= _CLOSE_TOGETHER_S
        for connection, seen in self._seen.items():
            self._turns[connection] += 1
            quiet = conclusive and connection.bytes_seen == seen and not connection.tls.is_resting
            if quiet or self._turns[connection] >= _MAX_TURNS:
                del self._turns[connection]
                connection.flush_pong()
        self._seen = {}
        if self._turns:
            self._arm()
