"""When the pong that a connection owes goes out: once, after everything that had arrived was read.

A node that sent two pings takes a second pong for an attack and hangs up. After a stall of our loop two pings may
wait in the socket, and nothing says whether a callback runs before or after the loop has read; so a pong goes out
only where a look at all sockets lies between two looks at the connection that are close together.

After a long stall even that does not suffice: a pong so late may cross the node's next ping on its way, and the pong to
that one would be one too many. So pings that may have waited for long get none; our own keep the connection alive.
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


# How many beats of our own fall into the time after which a pong is late.
_BEATS: Final = 2


class PongTurns:
    """The connections that owe a pong. delay_s: from a ping to the first look; one timer serves all connections.

    late_s: pings that may be older than this get no pong; short against the time between a node's pings.
    """

    def __init__(self, delay_s: float, late_s: float) -> None:
        self._delay_s = delay_s
        self._late_s = late_s
        self._turns: dict[PeerConnection, int] = {}
        self._seen: dict[PeerConnection, int] = {}
        self._looked_at = 0.0
        self._timer: asyncio.Handle | None = None
        self._beat_at = 0.0
        self._beating: asyncio.Handle | None = None
        self._late_until = 0.0

    def add(self, connection: PeerConnection) -> None:
        """Note that a connection owes a pong."""
        if self._beating is None:
            self._beat()
        if self._may_be_late():
            connection.skip_pong()
        elif connection not in self._turns:
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
        for timer in (self._timer, self._beating):
            if timer is not None:
                timer.cancel()
        self._timer = self._beating = None

    def _beat(self) -> None:
        """Show that the loop runs: beats that are missing tell of a stall, whatever runs first behind it."""
        if self._beating is not None:
            self._may_be_late()
        self._beat_at = monotonic()
        self._beating = asyncio.get_running_loop().call_later(self._late_s / _BEATS, self._beat)

    def _may_be_late(self) -> bool:
        """Tell whether pings that were read just now may have waited; for a while after a stall, all may."""
        now = monotonic()
        if now - self._beat_at > self._late_s:
            self._late_until = now + self._late_s
        return now < self._late_until

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
        if self._may_be_late():
            self._skip_all()
            return
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

    def _skip_all(self) -> None:
        for connection in self._turns:
            connection.skip_pong()
        self._turns.clear()
        self._seen.clear()
