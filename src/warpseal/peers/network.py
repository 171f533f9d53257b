"""The peer network's face: who is wanted, who is connected or may still be, and asking many peers at once."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping
from random import Random, SystemRandom
from types import MappingProxyType
from typing import Final

from warpseal.peers.address_store import AddressKeeper, Nowhere, Shelf
from warpseal.peers.addresses import AddressBook, Endpoint
from warpseal.peers.connection import PeerConnection, Wiring
from warpseal.peers.connection_registry import Listener, Switchboard
from warpseal.peers.connection_ticker import Sweep
from warpseal.peers.dial_schedule import DialPlan, Pace, Prospect, Stage
from warpseal.peers.dialer import Dialler
from warpseal.peers.file_limit import FileLimit, raise_file_limit
from warpseal.peers.gossip import Gossip, how_many_to_ask
from warpseal.peers.identity import LockedIdentity
from warpseal.peers.peer_warnings import Watch
from warpseal.peers.pong_scheduler import PongTurns
from warpseal.peers.reachability import (
    CONNECTED,
    NO_ADDRESS,
    OWN_NODE,
    PENDING,
    PRIVATE_ADDRESS,
    Reachability,
    reach_of_waiting,
)
from warpseal.peers.request_fanout import PendingRequest, RequestQueue, ResponseHandler
from warpseal.peers.settings import PeerSettings
from warpseal.peers.signed_ip import OwnAddress
from warpseal.peers.statistics import NetworkStatistics, PeerStatistics
from warpseal.peers.tls import ReceiveBuffer
from warpseal.peers.tracked_nodes import WantedNodes
from warpseal.protocol.compression import Zstd
from warpseal.protocol.handshake import OwnHandshake, Version
from warpseal.protocol.messages import encode_app_request, encode_get_peer_list
from warpseal.protocol.peer import CoreSettings
from warpseal.protocol.requests import PeerRequest, RequestLimits
from warpseal.runtime.backoff import Backoff
from warpseal.warp.ids import ChainID, NodeID, SubnetID

_REQUEST_ID_MASK: Final = 0xFFFF_FFFF
# As a part of the time between two pings, which is about the same for nodes and for us.
_PONG_IS_LATE: Final = 0.25


class PeerNetwork:
    """The validators that we talk to. All of it belongs to one event loop; moments are of that loop's clock.

    shelf: where addresses outlive the process, if anywhere. unix_clock: the wall clock, in seconds. random: jitter,
    choice of peers, the first request id.
    """

    def __init__(
        self,
        settings: PeerSettings,
        claim: LockedIdentity,
        network_id: int,
        *,
        shelf: Shelf | None = None,
        random: Random | None = None,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._random = random or SystemRandom()
        self._unix_clock = unix_clock
        self._zstd = Zstd()
        self._node_id = claim.identity.node_id
        self._wanted = WantedNodes(claim.identity.node_id, (peer.node_id for peer in settings.manual_peers))
        self._book = AddressBook(
            self._wanted, allow_private=settings.allow_private_ips, max_nodes=settings.max_stored_nodes
        )
        self._keeper = AddressKeeper(self._book, shelf or Nowhere(), claim.folder, settings.address_save_interval_s)
        self._plan = DialPlan(_pace(settings), self._random)
        totals = NetworkStatistics()
        self._gossip = Gossip(self._book, totals, os.urandom)
        pongs = PongTurns(settings.pong_delay_s, settings.ping_interval_s * _PONG_IS_LATE)
        self._switchboard = Switchboard(self._plan, self._book, self._gossip, totals, pongs)
        self._own = OwnAddress(claim.identity, unix_clock)
        self._switchboard.wiring = self._wiring(claim, network_id)
        self._dialler = Dialler(settings, self._plan, self._book, self._switchboard)
        self._sweep = Sweep(settings, self._switchboard, self._wanted, self._look_around)
        self._watch = Watch(self._switchboard.clocks, settings.advertised_version, settings.clock_tolerance_s)
        self._waves = RequestQueue(self._switchboard.connected, self._switchboard.waits, totals)
        self._next_request_id = self._random.getrandbits(32) | 1
        self._started_at: float | None = None
        self._file_limit = FileLimit(0)
        for peer in settings.manual_peers:
            self._book.add_manual(peer.node_id, Endpoint.parse(peer.host, peer.port))

    # Who is wanted.

    def track(self, subnet_id: SubnetID, node_ids: Iterable[NodeID]) -> None:
        """Want exactly these nodes for a subnet, from now on; new ones are dialled in this order."""
        now = self._now()
        added, dropped = self._wanted.track(subnet_id, node_ids, now)
        self._want(added, now)
        self._unwant(dropped, now)

    def untrack(self, subnet_id: SubnetID) -> None:
        """Want nobody for a subnet; connections that serve no other are closed once nothing is asked on them."""
        self._unwant(self._wanted.untrack(subnet_id), self._now())

    def set_known_validators(self, node_ids: Iterable[NodeID]) -> None:
        """Replace the set of nodes (validators of any subnet) whose gossiped addresses are kept."""
        self._book.set_known_validators(node_ids)

    def add_hint(self, node_id: NodeID, host: str, port: int) -> None:
        """Take an unauthenticated address, of info.peers for instance; one that is none is ignored."""
        try:
            endpoint = Endpoint.parse(host, port)
        except ValueError:
            return
        if self._book.add_hint(node_id, endpoint):
            self._plan.ready(node_id, self._now())
            self._switchboard.woken.set()

    # Who is connected, or may still be.

    @property
    def connected(self) -> Mapping[NodeID, PeerConnection]:
        """The nodes that may be asked now; a live view."""
        return MappingProxyType(self._switchboard.connected)

    def is_connected(self, node_id: NodeID) -> bool:
        """Tell whether a node may be asked now."""
        return node_id in self._switchboard.connected

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener(node_id, connected)` at each connect, disconnect and failed dial; returns what ends that."""
        return self._switchboard.subscribe(listener)

    def reachability(self, node_id: NodeID, subnet_id: SubnetID, deadline: float) -> Reachability:
        """Tell whether a node is connected, may be before `deadline`, or is lost until then, and why."""
        if node_id in self._switchboard.connected:
            return CONNECTED
        prospect = self._plan.get(node_id)
        if prospect is None:
            return OWN_NODE if node_id == self._node_id else PENDING
        if prospect.stage is not Stage.PARKED:
            return reach_of_waiting(prospect, deadline)
        if self._book.only_private(node_id):
            return PRIVATE_ADDRESS
        return NO_ADDRESS if self._now() >= self._patient_until(subnet_id) else PENDING

    def redial_soon(self, node_ids: Iterable[NodeID]) -> float | None:
        """Pull redials forward, to 10 s after the last attempt; return the earliest one's moment, None for none."""
        self._switchboard.woken.set()
        return self._plan.hurry(node_ids, self._now())

    def dial_state(self, node_id: NodeID) -> Prospect | None:
        """Return how the dials of a wanted node went; None for nodes that are not wanted."""
        return self._plan.get(node_id)

    # Asking.

    def ask(
        self,
        node_ids: Iterable[NodeID],
        chain_id: ChainID,
        app_bytes: bytes,
        *,
        deadline: float,
        is_reask: bool,
        on_response: ResponseHandler,
    ) -> PendingRequest:
        """Ask the connected ones of these nodes one question; `on_response` is called with each answer, on the loop.

        Silence is not told: not of nodes that are not connected, nor of those that do not answer. is_reask: a re-ask,
        before which first asks go. Answers count until `deadline` or until the Ask is closed.
        """
        now = self._now()
        request_id = self._next_request_id
        self._next_request_id = (request_id + 2) & _REQUEST_ID_MASK
        wire_deadline_s = min(self._settings.request_deadline_s, max(deadline - now, 0.001))
        frame = encode_app_request(chain_id, request_id, app_bytes, wire_deadline_s, self._zstd)
        request = PeerRequest(chain_id, request_id, frame, deadline, is_reask=is_reask, context=None)
        ask = PendingRequest(request, on_response, now)
        request.context = ask
        self._waves.send(request, node_ids)
        return ask

    # What others watch.

    @property
    def totals(self) -> NetworkStatistics:
        """Counters since the start, live."""
        return self._switchboard.totals

    @property
    def statistics(self) -> Mapping[NodeID, PeerStatistics]:
        """Counters of each wanted node, live."""
        return MappingProxyType(self._switchboard.statistics)

    @property
    def open_connections(self) -> int:
        """Sockets to peers, those whose handshake is not finished included."""
        return len(self._switchboard.open)

    @property
    def file_limit(self) -> FileLimit:
        """The limit of open files in force since the start."""
        return self._file_limit

    @property
    def clock_offset_s(self) -> float | None:
        """The peers' median clock less ours; None while too few are known."""
        return self._switchboard.clocks.median_offset_s(self._unix_clock(), self._now())

    def versions(self) -> list[Version]:
        """Return what the connected peers run."""
        handshakes = (connection.handshake for connection in self._switchboard.connected.values())
        return [handshake.version for handshake in handshakes if handshake is not None]

    # Running.

    async def run(self) -> None:
        """Connect and stay connected until cancelled; close every connection then."""
        self._file_limit = raise_file_limit()
        connections = self._file_limit.connections
        self._switchboard.max_connections = min(self._settings.max_connections or connections, connections)
        await self._keeper.recall()
        self._started_at = self._now()
        self._want([peer.node_id for peer in self._settings.manual_peers if peer.node_id in self._wanted], self._now())
        try:
            async with asyncio.TaskGroup() as tasks:
                for part in (self._dialler.run(), self._sweep.run(), self._keeper.run(), self._keep_gossiping()):
                    tasks.create_task(part)
        finally:
            self._waves.stop()
            self._switchboard.stop()
            await self._keeper.save()

    async def _keep_gossiping(self) -> None:
        """Ask validators of the Primary Network for addresses while a wanted node is not connected."""
        while True:
            await asyncio.sleep(self._settings.gossip_interval_s)
            missing = len(self._plan) - len(self._switchboard.connected)
            if missing <= 0:
                continue
            await self._gossip.renew_filter(self._now())
            known = self._gossip.known_peers
            frame = encode_get_peer_list(known.encode(), known.salt, self._zstd)
            for connection in self._gossips(how_many_to_ask(missing)):
                connection.send(frame)

    def _gossips(self, count: int) -> list[PeerConnection]:
        """Return at most `count` connected validators of the Primary Network, picked at random."""
        connected = self._switchboard.connected
        validators = [connected[node_id] for node_id in self._wanted.primary if node_id in connected]
        return self._random.sample(validators, min(count, len(validators)))

    def _look_around(self) -> None:
        now = self._now()
        self._announce_unknown(now)
        self._watch.check_clock(self._unix_clock(), now)
        self._watch.check_room(self._file_limit, self._switchboard.max_connections, len(self._plan), now)
        self._watch.check_versions(self.versions(), now)

    def _announce_unknown(self, now: float) -> None:
        """Tell listeners of the nodes without an address, once the patience with their subnet is at its end."""
        if self._started_at is None or now < self._started_at + self._settings.address_timeout_s:
            return
        for node_id in self._wanted.grown_old(now - self._settings.address_timeout_s):
            prospect = self._plan.get(node_id)
            if prospect is not None and prospect.stage is Stage.PARKED:
                self._switchboard.notify(node_id, False)

    def _want(self, node_ids: list[NodeID], now: float) -> None:
        self._plan.want(node_ids, now)
        for node_id in node_ids:
            connection = self._switchboard.connected.get(node_id)
            if connection is not None:
                self._plan.connected(node_id, now, exempt=connection.endpoint.ip.is_loopback)
                self._switchboard.statistics[node_id] = connection.statistics
        self._switchboard.woken.set()

    def _unwant(self, node_ids: list[NodeID], now: float) -> None:
        self._plan.unwant(node_ids, now)
        self._dialler.cancel(node_ids)
        for node_id in node_ids:
            self._switchboard.statistics.pop(node_id, None)

    def _patient_until(self, subnet_id: SubnetID) -> float:
        since = self._wanted.followed_since(subnet_id)
        return max(filter(None, (since, self._started_at)), default=self._now()) + self._settings.address_timeout_s

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _wiring(self, claim: LockedIdentity, network_id: int) -> Wiring:
        settings, identity = self._settings, claim.identity
        limits = RequestLimits(
            settings.max_outstanding, settings.max_sent_per_s, settings.max_queued, settings.slot_timeout_s
        )
        return Wiring(
            context=identity.context,
            own=lambda: OwnHandshake(network_id, self._own.claim(), settings.advertised_version),
            core=CoreSettings(
                settings.ping_interval_s, settings.silence_timeout_s, settings.handshake_timeout_s, limits
            ),
            zstd=self._zstd,
            shared=ReceiveBuffer(),
            known_peers=lambda: self._gossip.known_peers,
            unix_clock=self._unix_clock,
            listener=self._switchboard,
            unread_timeout_s=settings.unread_timeout_s,
        )


def _pace(settings: PeerSettings) -> Pace:
    burst = max(1, round(settings.dials_per_s / 10))
    return Pace(settings.dials_per_s, burst, settings.min_redial_s, Backoff(cap_s=settings.redial_cap_s))
