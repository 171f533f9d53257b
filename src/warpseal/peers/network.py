"""The interface of the peer client: tracked nodes, connectivity, and requests to many nodes."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from random import Random, SystemRandom
from types import MappingProxyType
from typing import Final

from msgspec import UNSET, Struct, UnsetType

from warpseal import bls
from warpseal.ledger.params import UNSCHEDULED_S
from warpseal.peers.address_store import AddressPersister
from warpseal.peers.addresses import AddressBook, Endpoint, Gossip, peers_to_ask
from warpseal.peers.connection import ConnectionContext
from warpseal.peers.connection_registry import ConnectionRegistry, ConnectivityListener
from warpseal.peers.dial_schedule import (
    DialLimits,
    DialSchedule,
    DialStage,
    TrackedNodes,
    unreachable_while_dialing,
)
from warpseal.peers.dialer import Dialer
from warpseal.peers.identity import LockedIdentity
from warpseal.peers.peer_warnings import FileLimit, PeerWarnings, raise_file_limit, version_text
from warpseal.peers.pong_scheduler import PongScheduler
from warpseal.peers.request_fanout import RequestQueue
from warpseal.peers.settings import PeerSettings
from warpseal.peers.statistics import (
    NetworkStatistics,
    PeerStatistics,
    PeerStatus,
    Unreachable,
    UnreachableReason,
)
from warpseal.peers.tls import ReceiveBuffer
from warpseal.protocol.framing import Zstd
from warpseal.protocol.handshake import (
    TESTED_VERSION,
    AdvertisedVersion,
    OwnHandshake,
    PeerHandshake,
    PeerWeights,
    Version,
    may_refuse,
)
from warpseal.protocol.messages import encode_app_request, encode_get_peer_list
from warpseal.protocol.peer import ProtocolSettings
from warpseal.protocol.requests import PeerRequest, RequestLimits, ResponseHandler
from warpseal.runtime.go_time import rfc3339
from warpseal.runtime.retry import Backoff
from warpseal.store.addresses import Addresses
from warpseal.warp.ids import ChainID, NodeID, SubnetID, node_id_text
from warpseal.warp.quorum_shortfall import DisconnectedNode

log = logging.getLogger(__name__)

_REQUEST_ID_MASK: Final = 0xFFFF_FFFF
# As a fraction of the ping interval, which is about the same for nodes and for this daemon.
_LATE_PONG: Final = 0.25
_MAX_TICK_INTERVAL_S: Final = 1.0
_TICKS_PER_TIMEOUT: Final = 8
_MAX_ERROR_TEXT: Final = 200
# A validator that was tracked a moment ago, or that waits for the dials of others.
_NOT_DIALED: Final = "not_dialed_yet"


class ComingRefusal(Struct, frozen=True):
    """Validators with a third of the weight run a newer release than the advertised one, and know
    an upgrade that is ahead, from which on they may refuse the advertised one.

    version: release that they run or exceed.
    unix_s: time of the upgrade, Unix seconds.
    """

    version: Version
    unix_s: int


class PeerNetwork:
    """The connections to validators. It belongs to one event loop; times are on the loop's clock.

    locked: identity of the daemon, with the folder of its network.
    address_storage: store of addresses across restarts.
    random: source of jitter, of the choice of peers and of the first request ID.
    unix_clock: wall clock, in seconds.
    connected: nodes that may be asked now, a live view.
    totals: counters since the start.
    file_limit: limit of open files in force since the start.
    """

    def __init__(
        self,
        settings: PeerSettings,
        locked: LockedIdentity,
        network_id: int,
        address_storage: Addresses,
        *,
        random: Random | None = None,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._random = random or SystemRandom()
        self._unix_clock = unix_clock
        self._zstd = Zstd()
        self._node_id = locked.identity.node_id
        self._tracked = TrackedNodes(
            self._node_id, (peer.node_id for peer in settings.manual_peers)
        )
        self._book = AddressBook(
            self._tracked,
            allow_private=settings.allow_private_ips,
            max_nodes=settings.max_stored_nodes,
        )
        self._persister = AddressPersister(
            self._book, address_storage, locked.folder, settings.address_save_interval_s
        )
        burst = max(1, round(settings.dials_per_s / 10))
        limits = DialLimits(
            settings.dials_per_s, burst, settings.min_redial_s, Backoff(cap_s=settings.redial_cap_s)
        )
        self._schedule = DialSchedule(limits, self._random)
        self.totals = NetworkStatistics()
        self._gossip = Gossip(self._book, self.totals, os.urandom)
        pongs = PongScheduler(settings.pong_delay_s, settings.ping_interval_s * _LATE_PONG)
        self._weights = PeerWeights()
        self._version = AdvertisedVersion(settings.advertised_version, self._weights)
        self._registry = ConnectionRegistry(
            self._schedule, self._book, self._gossip, self.totals, pongs, self._version
        )
        self.connected = MappingProxyType(self._registry.connected)
        self._own_handshake = OwnHandshake(
            network_id, locked.identity.sign, bls.generate_secret(), self._version.current
        )
        self._registry.context = self._connection_context(locked)
        self._dialer = Dialer(settings, self._schedule, self._book, self._registry)
        self._warnings = PeerWarnings(self._registry.clocks, settings.clock_tolerance_s)
        self._requests = RequestQueue(
            self._registry.connected, self._registry.schedule_release, self.totals
        )
        self._next_request_id = self._random.getrandbits(32) | 1
        self._started_at: float | None = None
        self.file_limit = FileLimit(0)
        for peer in settings.manual_peers:
            self._book.add_manual(peer.node_id, Endpoint.parse(peer.host, peer.port))

    # Tracked nodes.

    def track(self, subnet_id: SubnetID, node_ids: Iterable[NodeID]) -> None:
        """Connect to exactly these nodes for a subnet; dial new nodes in this order."""
        now = self._now()
        added, dropped = self._tracked.track(subnet_id, node_ids, now)
        self._add_nodes(added, now)
        self._drop_nodes(dropped, now)

    def untrack(self, subnet_id: SubnetID) -> None:
        """Connect to no node for a subnet.

        Connections that serve no other subnet are closed when they are idle.
        """
        self._drop_nodes(self._tracked.untrack(subnet_id), self._now())

    def set_validators(self, node_ids: Iterable[NodeID]) -> None:
        """Replace the set of nodes (validators of any subnet) whose gossiped addresses are kept."""
        self._book.set_validators(node_ids)

    def set_weights(self, weights: Mapping[NodeID, int]) -> None:
        """Replace the weights of the Primary Network's validators."""
        self._weights.replace(weights)

    def add_hint(self, node_id: NodeID, host: str, port: int) -> None:
        """Add an unauthenticated address, such as one of info.peers; ignore a malformed one."""
        try:
            endpoint = Endpoint.parse(host, port)
        except ValueError:
            return
        if self._book.add_hint(node_id, endpoint):
            self._schedule.record_new_address(node_id, self._now())
            self._registry.wake_dialer.set()

    # Connectivity.

    def is_connected(self, node_id: NodeID) -> bool:
        """Return whether a node may be asked now."""
        return node_id in self._registry.connected

    def subscribe(self, listener: ConnectivityListener) -> Callable[[], None]:
        """Call `listener(node_id, connected)` at each connect, disconnect and failed dial.

        Returns a function that ends the subscription.
        """
        return self._registry.subscribe(listener)

    def unreachable(self, node_id: NodeID, subnet_id: SubnetID) -> Unreachable | None:
        """Return why a node cannot be reached now.

        Returns None if it is connected or may connect in a moment.
        """
        state = self._schedule.get(node_id)
        if node_id in self._registry.connected:
            return None
        if state is None:
            # This daemon itself, if it runs under the certificate of a validator.
            is_own = node_id == self._node_id
            return Unreachable(UnreachableReason.NOT_CONNECTED) if is_own else None
        if state.stage is not DialStage.NO_ADDRESS:
            return unreachable_while_dialing(state, self._now())
        if self._book.only_private(node_id):
            return Unreachable(UnreachableReason.PRIVATE_ADDRESS)
        moments = (self._tracked.tracked_since(subnet_id), self._started_at)
        since = max(filter(None, moments), default=self._now())
        is_late = self._now() >= since + self._settings.address_timeout_s
        return Unreachable(UnreachableReason.NO_ADDRESS) if is_late else None

    def missing_connection(self, node_id: NodeID) -> DisconnectedNode | None:
        """Return why a tracked node is not connected.

        Returns None for a connected node and for this daemon itself.
        """
        state = self._schedule.get(node_id)
        if state is None or node_id in self._registry.connected:
            return None
        now = self._now()
        unix_minus_now = self._unix_clock() - now
        next_try_at: str | UnsetType = UNSET
        if state.stage is DialStage.WAITING:
            next_try_at = rfc3339(unix_minus_now + max(state.due_at, now))
        elif state.stage is DialStage.DIALING:
            next_try_at = rfc3339(unix_minus_now + now)
        address = state.address or str(self._book.best_address(node_id) or "")
        last_error = f"{state.reason}: {state.detail}" if state.detail else state.reason
        return DisconnectedNode(
            node_id=node_id_text(node_id),
            address=address or UNSET,
            last_error=last_error[:_MAX_ERROR_TEXT] or UNSET,
            disconnected_since=rfc3339(unix_minus_now + state.disconnected_at),
            next_try_at=next_try_at,
        )

    def unreachable_reason(self, node_id: NodeID, subnet_id: SubnetID) -> str | None:
        """Return why a node of a subnet cannot be reached.

        Returns None for a connected node, and for a node whose first dial has not failed yet.
        """
        unreachable = self.unreachable(node_id, subnet_id)
        if unreachable is not None:
            return unreachable.reason
        # The node is dialed again at this moment.
        missing = self.missing_connection(node_id)
        has_failed = missing is not None and bool(missing.last_error)
        return UnreachableReason.NOT_CONNECTED if has_failed else None

    def running_s(self) -> float:
        """Return for how many seconds the network has been running."""
        return 0.0 if self._started_at is None else self._now() - self._started_at

    def redial_soon(self, node_ids: Iterable[NodeID]) -> float | None:
        """Move redials forward, to 10 s after the last attempt.

        Returns the time of the earliest redial, if any.
        """
        self._registry.wake_dialer.set()
        return self._schedule.redial_soon(node_ids, self._now())

    def is_tracked(self, node_id: NodeID) -> bool:
        """Return whether a connection to the node is wanted."""
        return node_id in self._schedule

    def heard_at(self, node_id: NodeID) -> float | None:
        """Return when a connected node last sent a byte; None if it is not connected."""
        connection = self._registry.connected.get(node_id)
        return None if connection is None else connection.received_at

    # Requests.

    def is_congested(self, node_id: NodeID) -> bool:
        """Return whether a connected node answers, but has many requests queued."""
        connection = self._registry.connected.get(node_id)
        return connection is not None and (self._requests.is_backed_up or connection.is_congested)

    def ask(
        self,
        node_ids: Iterable[NodeID],
        chain_id: ChainID,
        app_bytes: bytes,
        *,
        deadline: float,
        is_reask: bool,
        on_response: ResponseHandler,
    ) -> PeerRequest:
        """Send one request to all of these nodes that are connected.

        Nodes that are not connected or do not respond are not reported. Responses count until
        `deadline`, or until the request is closed.

        is_reask: whether the nodes were asked before; first asks are sent before re-asks.
        on_response: called on the loop for each response.
        """
        now = self._now()
        # network/p2p/router.go: requests of the p2p SDK have odd IDs. EVM chains read even ones as
        # sync requests.
        request_id = self._next_request_id
        self._next_request_id = (request_id + 2) & _REQUEST_ID_MASK
        # A deadline of 0 on the wire expires at once; network-maximum-inbound-timeout caps it at 10
        # s.
        wire_deadline_s = min(self._settings.request_deadline_s, max(deadline - now, 0.001))
        frame = encode_app_request(chain_id, request_id, app_bytes, wire_deadline_s, self._zstd)
        request = PeerRequest(
            chain_id,
            request_id,
            frame,
            deadline,
            is_reask=is_reask,
            on_response=on_response,
            requested_at=now,
        )
        self._requests.send(request, node_ids)
        return request

    # Statistics.

    @property
    def statistics(self) -> Mapping[NodeID, PeerStatistics]:
        """Counters of each tracked node that was dialed, live."""
        return MappingProxyType(self._registry.statistics)

    def status(self, node_id: NodeID) -> PeerStatus | None:
        """Return the state of the connection to a tracked node; None if the node is not tracked."""
        state = self._schedule.get(node_id)
        if state is None:
            return None
        statistics = self._registry.statistics.get(node_id) or PeerStatistics()
        latency_s, responded_at = statistics.latency_s, statistics.responded_at
        connection = self._registry.connected.get(node_id)
        if connection is not None:
            handshake = connection.handshake
            return PeerStatus(
                DialStage.CONNECTED.value,
                str(connection.endpoint),
                connected_at=state.connected_at,
                version=None if handshake is None else ".".join(map(str, handshake.version)),
                latency_s=latency_s,
                responded_at=responded_at,
            )
        address = next(iter(self._book.candidates(node_id)), None)
        failure = state.reason or (_NOT_DIALED if state.stage is DialStage.WAITING else None)
        if state.stage is DialStage.NO_ADDRESS and self._book.only_private(node_id):
            failure = UnreachableReason.PRIVATE_ADDRESS.value
        return PeerStatus(
            state.stage.value,
            None if address is None else str(address),
            failure=failure,
            detail=state.detail[:_MAX_ERROR_TEXT] or None,
            disconnected_at=state.disconnected_at,
            next_dial_at=state.due_at if state.stage is DialStage.WAITING else None,
            latency_s=latency_s,
            responded_at=responded_at,
        )

    @property
    def clock_offset_s(self) -> float | None:
        """The median of the peers' clocks minus ours; None while too few are known."""
        return self._registry.clocks.median_offset_s(self._unix_clock(), self._now())

    def versions(self) -> list[Version]:
        """Return the versions of the connected peers."""
        return [handshake.version for _, handshake in self._handshakes()]

    @property
    def advertised_version(self) -> Version:
        """The release that new connections advertise."""
        return self._version.current

    @property
    def is_version_fixed(self) -> bool:
        """Whether the advertised release is that of the setting, which nothing changes."""
        return self._version.is_setting

    def coming_refusal(self) -> ComingRefusal | None:
        """Return from when on validators may refuse the advertised release; None if none is known
        to.
        """
        advertised, now = self._version.current, self._unix_clock()
        unix_s = self._weights.find_shared(
            (node_id, handshake.upgrade_time)
            for node_id, handshake in self._handshakes()
            if may_refuse(handshake.version, advertised)
            and now < handshake.upgrade_time < UNSCHEDULED_S
        )
        version = self._newer_version()
        if unix_s is None or version is None:
            return None
        return ComingRefusal(version, unix_s)

    def record_upgrade_time(self, upgrade_time: int) -> None:
        """Advertise the time of the latest upgrade that the configured nodes know.

        upgrade_time: Unix seconds, 0 if the nodes know none.
        """
        self._own_handshake.upgrade_time = upgrade_time

    def unknown_upgrade_time(self) -> int | None:
        """Return the time of an upgrade that only the peers know, if any.

        A third of the weight knows it, and the configured nodes do not.
        """
        shared = self._weights.find_shared(
            (node_id, handshake.upgrade_time)
            for node_id, handshake in self._handshakes()
            if handshake.upgrade_time < UNSCHEDULED_S
        )
        own = self._own_handshake.upgrade_time
        return shared if shared is not None and 0 < own < shared else None

    def _handshakes(self) -> Iterator[tuple[NodeID, PeerHandshake]]:
        """Yield the handshake of each connected peer."""
        for node_id, connection in self._registry.connected.items():
            if connection.handshake is not None:
                yield node_id, connection.handshake

    def _newer_version(self) -> Version | None:
        """Return a release above the advertised one that a third of the weight has, if any."""
        advertised = self._version.current
        return self._weights.find_shared(
            (node_id, handshake.version)
            for node_id, handshake in self._handshakes()
            if handshake.version > advertised
        )

    def _update_version(self) -> None:
        """Advertise the release that peers demand; repeat the dials that they refused."""
        if not self._version.update(self._unix_clock()):
            return
        version = self._own_handshake.version = self._version.current
        level = logging.WARNING if version > TESTED_VERSION else logging.INFO
        fields = {"version": version_text(version), "tested": version_text(TESTED_VERSION)}
        log.log(level, "advertised version changed: peers refuse older ones", extra=fields)
        # Those of L1s as well, which may have no weight in the Primary Network.
        self.redial_soon(list(self._schedule))

    # Running.

    async def run(self) -> None:
        """Connect and stay connected until cancelled; then close every connection."""
        self.file_limit = raise_file_limit()
        connections = self.file_limit.connections
        self._registry.max_connections = min(
            self._settings.max_connections or connections, connections
        )
        await self._persister.load()
        self._started_at = self._now()
        manual = [
            peer.node_id for peer in self._settings.manual_peers if peer.node_id in self._tracked
        ]
        self._add_nodes(manual, self._now())
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._dialer.run())
                tasks.create_task(self._keep_ticking())
                tasks.create_task(self._keep_gossiping())
                tasks.create_task(self._persister.run())
        finally:
            self._requests.stop()
            self._registry.stop()
            await self._persister.save()

    async def _keep_ticking(self) -> None:
        settings = self._settings
        shortest_s = min(
            settings.ping_interval_s, settings.silence_timeout_s, settings.handshake_timeout_s
        )
        interval_s = min(_MAX_TICK_INTERVAL_S, shortest_s / _TICKS_PER_TIMEOUT)
        while True:
            await asyncio.sleep(interval_s)
            await self._registry.tick_all(self._tracked)
            now = self._now()
            self._notify_without_address(now)
            self._warnings.check_clock(self._unix_clock(), now)
            limit, max_connections = self.file_limit, self._registry.max_connections
            self._warnings.check_connection_limit(limit, max_connections, len(self._schedule), now)
            self._update_version()
            self._warnings.check_version(self._newer_version(), self._version.current, now)

    async def _keep_gossiping(self) -> None:
        """Ask validators for addresses while a tracked node is not connected."""
        while True:
            await asyncio.sleep(self._settings.gossip_interval_s)
            missing = len(self._schedule) - len(self._registry.connected)
            if missing <= 0:
                continue
            await self._gossip.renew_filter(self._now())
            known_peers = self._gossip.known_peers
            frame = encode_get_peer_list(known_peers.encode(), known_peers.salt, self._zstd)
            primary, connected = self._tracked.primary, self._registry.connected
            validators = [connected[node_id] for node_id in primary if node_id in connected]
            count = min(peers_to_ask(missing), len(validators))
            for connection in self._random.sample(validators, count):
                connection.send(frame)

    def _notify_without_address(self, now: float) -> None:
        """Notify listeners of nodes without an address once the time to find one is over."""
        if self._started_at is None or now < self._started_at + self._settings.address_timeout_s:
            return
        tracked_until = now - self._settings.address_timeout_s
        for node_id in self._tracked.pop_tracked_since_before(tracked_until):
            state = self._schedule.get(node_id)
            if state is not None and state.stage is DialStage.NO_ADDRESS:
                self._registry.notify(node_id, False)

    def _add_nodes(self, node_ids: list[NodeID], now: float) -> None:
        self._schedule.track(node_ids, now)
        for node_id in node_ids:
            connection = self._registry.connected.get(node_id)
            if connection is not None:
                self._schedule.record_connected(
                    node_id, now, is_loopback=connection.endpoint.ip.is_loopback
                )
                self._registry.statistics[node_id] = connection.statistics
        self._registry.wake_dialer.set()

    def _drop_nodes(self, node_ids: list[NodeID], now: float) -> None:
        self._schedule.untrack(node_ids, now)
        self._dialer.cancel(node_ids)
        self._version.forget(node_ids)
        for node_id in node_ids:
            self._registry.statistics.pop(node_id, None)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _connection_context(self, locked: LockedIdentity) -> ConnectionContext:
        settings = self._settings
        limits = RequestLimits(
            settings.max_outstanding,
            settings.max_sent_per_s,
            settings.max_queued,
            settings.slot_timeout_s,
        )
        return ConnectionContext(
            ssl_context=locked.identity.context,
            own_handshake=self._own_handshake,
            protocol=ProtocolSettings(
                settings.ping_interval_s,
                settings.silence_timeout_s,
                settings.handshake_timeout_s,
                limits,
            ),
            zstd=self._zstd,
            receive_buffer=ReceiveBuffer(),
            known_peers=lambda: self._gossip.known_peers,
            unix_clock=self._unix_clock,
            listener=self._registry,
            unread_timeout_s=settings.unread_timeout_s,
        )
