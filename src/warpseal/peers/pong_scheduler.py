"""The pongs that connections owe: each is sent once, after all bytes that have arrived were read.

A node that sent two pings treats a second pong as an attack and disconnects. After a stall of the
event loop two pings may wait in the socket, and a callback may run before the loop has read it. A
pong is therefore sent only if the loop has polled all sockets between two checks of the connection
that are close together.

After a long stall that is not enough: a late pong may cross the next ping of the node, and the pong
to that ping would be an extra one. Pings that may have waited for long are therefore not answered,
whether one stall or several short ones held up the pong; our own pings keep the connection open.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Final

from warpseal.peers.connection import PeerConnection

# If two checks are further apart, the loop stalled between them, maybe just before the second.
_MAX_CHECK_GAP_S: Final = 0.02
# A connection that never stops receiving gets its pong after this time.
_MAX_RECEIVING_S: Final = 0.5
# Heartbeats in the time after which a pong is late.
_HEARTBEATS: Final = 2


class PongScheduler:
    """The connections that owe a pong.

    delay_s: time from a ping to the first check; one timer serves all connections.
    late_s: pings that may have waited for longer than this before they were read, or since, get no
        pong. Twice this time is short compared with the ping interval of nodes.
    """

    def __init__(self, delay_s: float, late_s: float) -> None:
        self._delay_s = delay_s
        self._late_s = late_s
        self._owed_since: dict[PeerConnection, float] = {}
        # Bytes that each connection had received at the last check.
        self._byte_counts: dict[PeerConnection, int] = {}
        self._checked_at = 0.0
        self._timer: asyncio.Handle | None = None
        self._heartbeat_at = 0.0
        self._heartbeat_timer: asyncio.Handle | None = None
        self._late_until = 0.0

    def start(self) -> None:
        """Watch for stalls; call it before the first connection.

        A stall may be over when the first ping is read.
        """
        if self._heartbeat_timer is None:
            self._heartbeat()

    def add(self, connection: PeerConnection) -> None:
        """Record that a connection owes a pong."""
        if self._may_be_late():
            connection.skip_pong()
        elif connection not in self._owed_since:
            self._owed_since[connection] = monotonic()
            self._arm()

    def discard(self, connection: PeerConnection) -> None:
        """Forget a closed connection."""
        self._owed_since.pop(connection, None)
        self._byte_counts.pop(connection, None)

    def stop(self) -> None:
        """Forget everything."""
        self._owed_since.clear()
        self._byte_counts.clear()
        for timer in (self._timer, self._heartbeat_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._heartbeat_timer = None

    def _heartbeat(self) -> None:
        """Record that the loop runs: a late heartbeat reveals a stall.

        It does so whatever callback runs first after the stall.
        """
        if self._heartbeat_timer is not None:
            self._may_be_late()
        self._heartbeat_at = monotonic()
        self._heartbeat_timer = asyncio.get_running_loop().call_later(
            self._late_s / _HEARTBEATS, self._heartbeat
        )

    def _may_be_late(self) -> bool:
        """Return whether pings that were read just now may have waited long, as after a stall."""
        now = monotonic()
        if now - self._heartbeat_at > self._late_s:
            self._late_until = now + self._late_s
        return now < self._late_until

    def _arm(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._delay_s, self._check)

    def _check(self) -> None:
        self._byte_counts = {
            connection: connection.bytes_received for connection in self._owed_since
        }
        self._checked_at = monotonic()
        self._timer = asyncio.get_running_loop().call_soon(self._poll_sockets)

    def _poll_sockets(self) -> None:
        # After two callbacks a loop has polled the sockets, in whatever order it runs timers,
        # callbacks and sockets.
        self._timer = asyncio.get_running_loop().call_soon(self._decide)

    def _decide(self) -> None:
        self._timer = None
        if self._may_be_late():
            for connection in self._owed_since:
                connection.skip_pong()
            self._owed_since.clear()
            self._byte_counts.clear()
            return
        now = monotonic()
        is_conclusive = now - self._checked_at <= _MAX_CHECK_GAP_S
        for connection, byte_count in self._byte_counts.items():
            owed_s = now - self._owed_since[connection]
            is_quiet = (
                is_conclusive
                and connection.bytes_received == byte_count
                and not connection.tls.is_throttled
            )
            if owed_s > self._late_s:
                del self._owed_since[connection]
                connection.skip_pong()
            elif is_quiet or owed_s >= _MAX_RECEIVING_S:
                del self._owed_since[connection]
                connection.flush_pong()
        self._byte_counts = {}
        if self._owed_since:
            self._arm()
