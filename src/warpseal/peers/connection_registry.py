"""Where all connections report to: who is connected, what that means for the next dials, and who is told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from warpseal.peers.addresses import AddressBook, Endpoint
from warpseal.peers.clock import PeerClocks
from warpseal.peers.connection import PeerConnection, Wiring
from warpseal.peers.dial_schedule import DialPlan
from warpseal.peers.failures import Failure
from warpseal.peers.gossip import Gossip
from warpseal.peers.pong_scheduler import PongTurns
from warpseal.peers.request_fanout import dispatch_response
from warpseal.peers.statistics import NetworkStatistics, PeerStatistics
from warpseal.protocol.addresses import ClaimedAddress
from warpseal.protocol.events import Answered
from warpseal.protocol.handshake import PeerHandshake
from warpseal.warp.ids import NodeID, node_id_text

Listener = Callable[[NodeID, bool], None]
"""Called with a node id and whether it is connected: at each connect and disconnect, and after each failed dial."""

# Waiting requests are looked after at most this often, whatever the number of peers that have some.
_RELEASE_STEP_S: Final = 0.02

log = logging.getLogger(__name__)


class Switchboard:
    """The live connections. wiring: makes them; max_connections: how many sockets there may be."""

    def __init__(
        self,
        plan: DialPlan,
        book: AddressBook,
        gossip: Gossip,
        totals: NetworkStatistics,
        pongs: PongTurns,
    ) -> None:
        self._plan = plan
        self._book = book
        self._gossip = gossip
        self._pongs = pongs
        self._listeners: list[Listener] = []
        self._waiting: set[PeerConnection] = set()
        self._release_timer: asyncio.TimerHandle | None = None
        self.wiring: Wiring | None = None
        self.max_connections = 0
        self.woken = asyncio.Event()
        self.open: set[PeerConnection] = set()
        self.connected: dict[NodeID, PeerConnection] = {}
        self.statistics: dict[NodeID, PeerStatistics] = {}
        self.totals = totals
        self.clocks = PeerClocks()

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` at each change from now on; returns what ends that."""
        self._listeners.append(listener)

        def end() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return end

    def notify(self, node_id: NodeID, connected: bool) -> None:
        """Tell everybody how a node stands; a fault of theirs stays theirs."""
        for listener in tuple(self._listeners):
            try:
                listener(node_id, connected)
            except Exception:
                log.exception("a fault of ours while a change of connections was taken")

    def waits(self, connection: PeerConnection) -> None:
        """Look after the waiting requests of a connection until none waits any more."""
        self._waiting.add(connection)
        self._arm_release(connection.release_at(asyncio.get_running_loop().time()) or 0.0)

    def stop(self) -> None:
        """Close every connection; their addresses worked until now."""
        for node_id, connection in self.connected.items():
            self._book.reached(node_id, connection.endpoint, self._unix_s())
        self._pongs.stop()
        self._waiting.clear()
        if self._release_timer is not None:
            self._release_timer.cancel()
            self._release_timer = None
        for connection in tuple(self.open):
            connection.give_up(Failure.STOPPED)

    # What the dialler asks and tells.

    def open_slots(self, dialling: int) -> int:
        return self.max_connections - len(self.open) - dialling

    def is_connected(self, node_id: NodeID) -> bool:
        return node_id in self.connected

    def attempting(self, node_id: NodeID, endpoint: Endpoint) -> PeerConnection:
        assert self.wiring is not None
        self.totals.dials += 1
        return PeerConnection(self.wiring, node_id, endpoint, self.statistics_of(node_id))

    def opened(self, connection: PeerConnection) -> None:
        if not connection.has_ended:
            self.open.add(connection)

    def dial_failed(self, connection: PeerConnection, *, reached: bool) -> None:
        node_id, now = connection.meant, asyncio.get_running_loop().time()
        connection.statistics.failed_dials += 1
        self.totals.failures[connection.failure] += 1
        exempt = connection.endpoint.ip.is_loopback
        if connection.failure == Failure.WRONG_IDENTITY and connection.answered_as is not None:
            self._meet_stranger(connection, connection.answered_as, now)
        self._plan.failed(node_id, connection.failure, now, reached=reached, exempt=exempt)
        self.notify(node_id, False)

    # What connections tell.

    def on_connected(self, connection: PeerConnection, handshake: PeerHandshake) -> None:
        node_id, now = connection.meant, asyncio.get_running_loop().time()
        if node_id in self.connected:
            connection.give_up(Failure.NOT_WANTED, "connected already")
            return
        self.open.add(connection)
        self.connected[node_id] = connection
        self._plan.connected(node_id, now, exempt=connection.endpoint.ip.is_loopback)
        self._book.reached(node_id, connection.endpoint, self._unix_s())
        self._gossip.learn_own(handshake)
        self.clocks.add(node_id, handshake.clock_offset_s, self._unix_s(), now)
        connection.statistics.connects += 1
        self.totals.connects += 1
        self.notify(node_id, True)

    def on_answer(self, connection: PeerConnection, answered: Answered, now: float) -> None:
        if answered.body is None:
            self.totals.refusals += 1
        else:
            self.totals.answers += 1
        dispatch_response(connection, answered, now)

    def on_addresses(self, addresses: tuple[ClaimedAddress, ...]) -> None:
        learnt = self._gossip.learn(addresses, self._unix_s())
        now = asyncio.get_running_loop().time()
        for node_id in learnt:
            self._plan.ready(node_id, now)
        if learnt:
            self.woken.set()

    def on_timeouts(self, count: int) -> None:
        self.totals.timeouts += count

    def on_ping(self, connection: PeerConnection) -> None:
        self._pongs.add(connection)

    def on_end(self, connection: PeerConnection) -> None:
        node_id, now = connection.meant, asyncio.get_running_loop().time()
        self.open.discard(connection)
        self._waiting.discard(connection)
        self._pongs.discard(connection)
        if self.connected.get(node_id) is not connection:
            if connection.clock_offset_s is not None:
                self.clocks.add(node_id, connection.clock_offset_s, self._unix_s(), now)
        else:
            del self.connected[node_id]
            self.totals.endings[connection.failure] += 1
            log.debug(
                "disconnected node_id=%s reason=%s %s",
                node_id_text(node_id),
                connection.failure,
                connection.detail,
            )
            self._plan.lost(node_id, now)
            self.notify(node_id, False)
        self.woken.set()

    def statistics_of(self, node_id: NodeID) -> PeerStatistics:
        """Return the counters of a node, from 0 when it is new."""
        statistics = self.statistics.get(node_id)
        if statistics is None:
            statistics = self.statistics[node_id] = PeerStatistics()
        return statistics

    def _meet_stranger(self, connection: PeerConnection, stranger: NodeID, now: float) -> None:
        """Another node answered: remember where it is, if it is one that we look for."""
        endpoint = connection.endpoint
        self._book.answered_by(connection.meant, endpoint, stranger)
        if stranger in self.connected or stranger not in self._plan:
            return
        self._plan.touched(stranger, now, exempt=endpoint.ip.is_loopback)
        if self._book.add_hint(stranger, endpoint):
            self._plan.ready(stranger, now)

    def _unix_s(self) -> float:
        assert self.wiring is not None
        return self.wiring.unix_clock()

    def _arm_release(self, at: float) -> None:
        loop = asyncio.get_running_loop()
        at = max(at, loop.time() + _RELEASE_STEP_S)
        if self._release_timer is not None:
            if self._release_timer.when() <= at:
                return
            self._release_timer.cancel()
        self._release_timer = loop.call_at(at, self._release)

    def _release(self) -> None:
        self._release_timer = None
        now = asyncio.get_running_loop().time()
        next_at = None
        for connection in tuple(self._waiting):
            at = connection.release_at(now)
            if at is not None and at <= now:
                connection.tick(now)
                at = connection.release_at(now)
            if at is None:
                self._waiting.discard(connection)
            elif next_at is None or at < next_at:
                next_at = at
        if next_at is not None:
            self._arm_release(next_at)
