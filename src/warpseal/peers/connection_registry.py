"""All connections: their outcomes go to the dial schedule, the address book and the listeners."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container
from typing import Final

from warpseal.peers.addresses import AddressBook, Endpoint, Gossip
from warpseal.peers.connection import ConnectionContext, PeerConnection
from warpseal.peers.dial_schedule import DialSchedule
from warpseal.peers.peer_warnings import PeerClocks
from warpseal.peers.pong_scheduler import PongScheduler
from warpseal.peers.statistics import ConnectionFailure, NetworkStatistics, PeerStatistics
from warpseal.protocol.addresses import ClaimedIpPort
from warpseal.protocol.handshake import AdvertisedVersion, PeerHandshake
from warpseal.protocol.requests import PeerResponse
from warpseal.warp.ids import NodeID, node_id_text

ConnectivityListener = Callable[[NodeID, bool], None]
"""Called with a node ID and whether it is connected.

It is called at each connect and disconnect, and after each failed dial.
"""

# Queued requests are released at most this often, for any number of peers.
_RELEASE_INTERVAL_S: Final = 0.02
_TICKS_PER_TURN: Final = 50

log = logging.getLogger(__name__)


class ConnectionRegistry:
    """The open connections, and the listener of each.

    totals: counters of all connections.
    context: resources of new connections; set before the first of them.
    max_connections: limit of sockets.
    wake_dialer: event that is set when the dial schedule or the number of free slots changes.
    open: connections that are not closed, connected or not, the oldest first.
    connected: connections that may be used, by node.
    statistics: counters of each node that was dialed.
    """

    def __init__(
        self,
        schedule: DialSchedule,
        book: AddressBook,
        gossip: Gossip,
        totals: NetworkStatistics,
        pongs: PongScheduler,
        version: AdvertisedVersion,
    ) -> None:
        self.totals: Final = totals
        self.context: ConnectionContext | None = None
        self.max_connections = 0
        self.wake_dialer: Final = asyncio.Event()
        self.open: Final[dict[PeerConnection, None]] = {}
        self.connected: Final[dict[NodeID, PeerConnection]] = {}
        self.statistics: Final[dict[NodeID, PeerStatistics]] = {}
        self.clocks: Final = PeerClocks()
        self._schedule = schedule
        self._book = book
        self._gossip = gossip
        self._pongs = pongs
        self._version = version
        self._listeners: list[ConnectivityListener] = []
        # Connections with queued requests, the one that waits longest first, and their timer.
        self._with_queue: dict[PeerConnection, None] = {}
        # uvloop makes a Handle without `when` of a timer whose moment passes while it is made.
        self._release_timer: asyncio.Handle | None = None
        self._releases_at = 0.0

    def subscribe(self, listener: ConnectivityListener) -> Callable[[], None]:
        """Call `listener` at each change from now on; return a function that ends that."""
        self._listeners.append(listener)

        def unsubscribe() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return unsubscribe

    def notify(self, node_id: NodeID, connected: bool) -> None:
        """Call every listener; an error of a listener is logged."""
        for listener in tuple(self._listeners):
            try:
                listener(node_id, connected)
            # The connection is made or lost all the same, and the other listeners are notified.
            except Exception:
                log.exception("internal error in a connectivity listener")

    async def tick_all(self, tracked: Container[NodeID]) -> None:
        """Let time pass for every connection; close idle ones to nodes that are not tracked."""
        loop = asyncio.get_running_loop()
        for position, connection in enumerate(tuple(self.open)):
            connection.tick(loop.time())
            is_unused = connection.is_connected and connection.is_idle
            if is_unused and connection.expected_node_id not in tracked:
                connection.close(ConnectionFailure.NOT_WANTED)
            if position % _TICKS_PER_TURN == _TICKS_PER_TURN - 1:
                await asyncio.sleep(0)

    def schedule_release(self, connection: PeerConnection) -> None:
        """Release the queued requests of a connection as its limits allow, until none is queued."""
        self._with_queue[connection] = None
        self._arm_release(connection.release_at(asyncio.get_running_loop().time()) or 0.0)

    def stop(self) -> None:
        """Close every connection; their addresses count as reached now."""
        for node_id, connection in self.connected.items():
            self._book.record_reached(node_id, connection.endpoint, self._unix_s())
        self._pongs.stop()
        self._with_queue.clear()
        if self._release_timer is not None:
            self._release_timer.cancel()
            self._release_timer = None
        for connection in tuple(self.open):
            connection.close(ConnectionFailure.STOPPED)

    # Called by the dialer.

    def new_connection(self, node_id: NodeID, endpoint: Endpoint) -> PeerConnection:
        """Return an unconnected connection for one attempt."""
        assert self.context is not None
        self._pongs.start()
        self.totals.dials += 1
        statistics = self.statistics.setdefault(node_id, PeerStatistics())
        return PeerConnection(self.context, node_id, endpoint, statistics)

    def on_dial_failed(self, connection: PeerConnection, *, tcp_accepted: bool) -> None:
        node_id, now = connection.expected_node_id, asyncio.get_running_loop().time()
        self.totals.dial_failures[connection.failure] += 1
        actual = connection.actual_node_id
        if connection.failure == ConnectionFailure.WRONG_IDENTITY and actual is not None:
            self._on_wrong_identity(connection, actual, now)
        self._schedule.record_failure(
            node_id,
            connection.failure,
            now,
            tcp_accepted=tcp_accepted,
            is_loopback=connection.endpoint.ip.is_loopback,
            address=str(connection.endpoint),
            detail=connection.detail,
        )
        self.notify(node_id, False)

    # ConnectionListener.

    def on_connected(self, connection: PeerConnection, handshake: PeerHandshake) -> None:
        node_id, now = connection.expected_node_id, asyncio.get_running_loop().time()
        if node_id in self.connected:
            connection.close(ConnectionFailure.NOT_WANTED, "connected already")
            return
        self.open[connection] = None
        self.connected[node_id] = connection
        self._schedule.record_connected(
            node_id, now, is_loopback=connection.endpoint.ip.is_loopback
        )
        self._book.record_reached(node_id, connection.endpoint, self._unix_s())
        self._gossip.add(handshake.claim)
        is_ahead = handshake.upgrade_time > self._unix_s()
        refuses_from = handshake.upgrade_time if is_ahead else None
        self._version.record_accepted(node_id, handshake.version, refuses_from)
        self.clocks.add(node_id, handshake.clock_offset_s, self._unix_s(), now)
        self.notify(node_id, True)

    def on_response(self, connection: PeerConnection, response: PeerResponse, now: float) -> None:
        is_error, request = response.body is None, response.request
        if is_error:
            self.totals.errors += 1
        else:
            self.totals.responses += 1
        if request.on_response is None:
            return
        connection.statistics.count_response(now - request.requested_at, now, is_error=is_error)
        try:
            request.on_response(response)
        # The error is the round's, not the peer's: its connection serves other rounds.
        except Exception:
            log.exception("internal error in a response handler")

    def on_peers_gossiped(self, addresses: tuple[ClaimedIpPort, ...]) -> None:
        learned = self._gossip.learn(addresses, self._unix_s())
        now = asyncio.get_running_loop().time()
        for node_id in learned:
            self._schedule.record_new_address(node_id, now)
        if learned:
            self.wake_dialer.set()

    def on_timeouts(self, count: int) -> None:
        self.totals.timeouts += count

    def on_ping(self, connection: PeerConnection) -> None:
        self._pongs.add(connection)

    def on_closed(self, connection: PeerConnection) -> None:
        node_id, now = connection.expected_node_id, asyncio.get_running_loop().time()
        self.open.pop(connection, None)
        self._with_queue.pop(connection, None)
        self._pongs.discard(connection)
        if self.connected.get(node_id) is not connection:
            if connection.clock_offset_s is not None:
                self.clocks.add(node_id, connection.clock_offset_s, self._unix_s(), now)
            if connection.handshake is not None and connection.failure == ConnectionFailure.HUNG_UP:
                self._version.record_refused(node_id, connection.handshake.version)
        else:
            del self.connected[node_id]
            self.totals.disconnects[connection.failure] += 1
            log.debug(
                "peer disconnected node_id=%s reason=%s %s",
                node_id_text(node_id),
                connection.failure,
                connection.detail,
            )
            self._schedule.record_disconnect(
                node_id,
                now,
                reason=connection.failure,
                address=str(connection.endpoint),
                detail=connection.detail,
            )
            self.notify(node_id, False)
        self.wake_dialer.set()

    def _on_wrong_identity(self, connection: PeerConnection, actual: NodeID, now: float) -> None:
        """Record which node answered at the address; dial it there if it is to be connected."""
        endpoint = connection.endpoint
        self._book.record_other_node(connection.expected_node_id, endpoint, actual)
        if actual in self.connected or actual not in self._schedule:
            return
        self._schedule.record_attempt(actual, now, is_loopback=endpoint.ip.is_loopback)
        if self._book.add_hint(actual, endpoint):
            self._schedule.record_new_address(actual, now)

    def _unix_s(self) -> float:
        assert self.context is not None
        return self.context.unix_clock()

    def _arm_release(self, at: float) -> None:
        loop = asyncio.get_running_loop()
        at = max(at, loop.time() + _RELEASE_INTERVAL_S)
        if self._release_timer is not None:
            if self._releases_at <= at:
                return
            self._release_timer.cancel()
        self._release_timer, self._releases_at = loop.call_at(at, self._release), at

    def _release(self) -> None:
        self._release_timer = None
        now = asyncio.get_running_loop().time()
        next_at = None
        for connection in tuple(self._with_queue):
            at = connection.release_at(now)
            if at is not None and at <= now:
                connection.tick(now)
                at = connection.release_at(now)
            if at is None:
                self._with_queue.pop(connection, None)
            elif next_at is None or at < next_at:
                next_at = at
        if next_at is not None:
            self._arm_release(next_at)
