"""The addresses of each node, best first, and the gossip that adds addresses.

The order is: configured by the operator, reached before, signed by the node, unsigned hints. An
address that the node signed after another one was reached comes before that one. `now` is Unix
time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator
from ipaddress import ip_address
from itertools import islice
from typing import Final

from msgspec import Struct, field

from warpseal.peers.statistics import NetworkStatistics
from warpseal.protocol.addresses import ClaimedIpPort, IPAddress, is_public
from warpseal.protocol.bloom import BloomFilter, gossip_id
from warpseal.protocol.limits import ADDRESSES_PER_PEER_LIST, MAX_CLOCK_SKEW_S
from warpseal.store.values import AddressKind, AddressRow
from warpseal.warp.ids import NodeID

SIGNED_PER_NODE: Final = 2
HINTS_PER_NODE: Final = 2
OTHER_NODES_PER_NODE: Final = 4

log = logging.getLogger(__name__)
# Per message; nodes send 15. Reading an entry takes 5 microseconds, verifying it 100.
_MAX_READ: Final = 256
_MAX_VERIFIED: Final = 30
_ADDED_PER_TURN: Final = 200
_FILTER_LIFETIME_S: Final = 60.0
_MAX_PEERS_ASKED: Final = 4


class Endpoint(Struct, frozen=True):
    """An IP address (IPv4-mapped IPv6 becomes IPv4) and a port from 1 to 65535."""

    ip: IPAddress
    port: int

    @classmethod
    def parse(cls, host: str, port: int) -> Endpoint:
        """Return the endpoint of an IP address in text form. Raises ValueError."""
        ip = ip_address(host)
        if not 0 < port < 65536:
            raise ValueError(f"port {port}")
        return cls(getattr(ip, "ipv4_mapped", None) or ip, port)

    def __str__(self) -> str:
        return f"[{self.ip}]:{self.port}" if self.ip.version == 6 else f"{self.ip}:{self.port}"


class SignedAddress(Struct, frozen=True):
    """An address that the node signed at `signed_at` (Unix seconds)."""

    endpoint: Endpoint
    signed_at: int


class ReachedAddress(Struct, frozen=True):
    """The address at which the node was reached last.

    signed_at: signing time of the newest signed address at that time, 0 if there was none.
    """

    endpoint: Endpoint
    reached_at: float
    signed_at: int


class _Entry(Struct, eq=False):
    """The addresses of one node.

    manual: addresses from the configuration.
    signed: addresses that the node signed, newest first.
    hints: unauthenticated addresses, newest first.
    other_nodes: nodes that answered instead, by address.
    """

    manual: tuple[Endpoint, ...] = ()
    reached: ReachedAddress | None = None
    signed: tuple[SignedAddress, ...] = ()
    hints: tuple[Endpoint, ...] = ()
    other_nodes: dict[Endpoint, NodeID] = field(default_factory=dict)


class AddressBook:
    """The addresses of all relevant nodes.

    tracked: nodes to connect to, a live view.
    max_nodes: limit of nodes that are neither tracked nor known.
    changed: addresses have changed since they were stored.
    """

    def __init__(self, tracked: Container[NodeID], *, allow_private: bool, max_nodes: int) -> None:
        self._tracked = tracked
        self._allow_private = allow_private
        self._max_nodes = max_nodes
        self._entries: OrderedDict[NodeID, _Entry] = OrderedDict()
        self._validators: frozenset[NodeID] = frozenset()
        self.changed = False

    # Known nodes.

    def set_validators(self, node_ids: Iterable[NodeID]) -> None:
        """Replace the nodes whose gossiped addresses are kept; drop those of all others."""
        self._validators = frozenset(node_ids)
        for node_id, entry in tuple(self._entries.items()):
            if not entry.signed or self.is_known(node_id):
                continue
            entry.signed = ()
            if not (entry.manual or entry.reached or entry.hints):
                del self._entries[node_id]

    def is_known(self, node_id: NodeID) -> bool:
        """Return whether gossiped addresses of this node are kept."""
        if node_id in self._tracked or node_id in self._validators:
            return True
        entry = self._entries.get(node_id)
        return entry is not None and bool(entry.manual)

    # New addresses.

    def add_manual(self, node_id: NodeID, endpoint: Endpoint) -> None:
        """Add an address from the configuration."""
        entry = self._entry(node_id)
        others = [other for other in entry.manual if other != endpoint]
        entry.manual = (*others, endpoint)

    def add_hint(self, node_id: NodeID, endpoint: Endpoint) -> bool:
        """Add an unauthenticated address; the newest two per node are kept.

        Returns whether it was new.
        """
        entry = self._entry(node_id)
        if endpoint in entry.hints:
            return False
        entry.hints = (endpoint, *entry.hints)[:HINTS_PER_NODE]
        self._trim()
        return True

    def newest_signed_at(self, node_id: NodeID) -> int:
        """Return when the node signed its newest known address; 0 if none is known."""
        entry = self._entries.get(node_id)
        return entry.signed[0].signed_at if entry is not None and entry.signed else 0

    def learn(self, node_id: NodeID, signed: SignedAddress) -> bool:
        """Add an address with a verified signature if it is newer than the known one.

        Returns whether it was.
        """
        if not self.is_known(node_id) or signed.signed_at <= self.newest_signed_at(node_id):
            return False
        entry = self._entry(node_id)
        others = (older for older in entry.signed if older.endpoint != signed.endpoint)
        entry.signed = (signed, *others)[:SIGNED_PER_NODE]
        self.changed = True
        return True

    def record_reached(self, node_id: NodeID, endpoint: Endpoint, now: float) -> None:
        """Record that the node was reached at this address."""
        entry = self._entry(node_id)
        entry.other_nodes.pop(endpoint, None)
        entry.reached = ReachedAddress(endpoint, now, self.newest_signed_at(node_id))
        self._entries.move_to_end(node_id)
        self.changed = True
        self._trim()

    def record_other_node(self, node_id: NodeID, endpoint: Endpoint, other: NodeID) -> None:
        """Record that another node answered at this address, which becomes the last candidate."""
        entry = self._entry(node_id)
        entry.other_nodes[endpoint] = other
        if len(entry.other_nodes) > OTHER_NODES_PER_NODE:
            del entry.other_nodes[next(iter(entry.other_nodes))]
        if entry.reached is not None and entry.reached.endpoint == endpoint:
            entry.reached = None
            self.changed = True

    # Queries.

    def candidates(self, node_id: NodeID) -> tuple[Endpoint, ...]:
        """Return the addresses that may be dialed, best first."""
        allowed = self._allow_private
        endpoints = self._ordered(node_id)
        return tuple(endpoint for endpoint in endpoints if allowed or is_public(endpoint.ip))

    def best_address(self, node_id: NodeID) -> Endpoint | None:
        """Return the best known address, although it may be one that must not be dialed."""
        endpoints = self.candidates(node_id) or self._ordered(node_id)
        return endpoints[0] if endpoints else None

    def other_node_at(self, node_id: NodeID, endpoint: Endpoint) -> NodeID | None:
        """Return the other node that answered last at this address of `node_id`, if any."""
        entry = self._entries.get(node_id)
        return entry.other_nodes.get(endpoint) if entry is not None else None

    def only_private(self, node_id: NodeID) -> bool:
        """Return whether addresses are known but all of them are private and must not be dialed."""
        if self._allow_private:
            return False
        endpoints = self._ordered(node_id)
        return bool(endpoints) and not any(is_public(endpoint.ip) for endpoint in endpoints)

    def signed(self) -> Iterator[tuple[NodeID, int]]:
        """Yield each node with a signed address, and the time of its newest signature."""
        for node_id, entry in self._entries.items():
            if entry.signed:
                yield node_id, entry.signed[0].signed_at

    # Storage.

    def export_rows(self) -> list[AddressRow]:
        """Return the addresses to store, the most recently reached nodes last."""
        rows: list[AddressRow] = []
        for node_id, entry in self._entries.items():
            reached = entry.reached
            if reached is not None:
                reached_at = round(reached.reached_at, 3)
                worked = (reached.endpoint, reached_at, reached.signed_at)
                rows.append(_row(node_id, AddressKind.WORKED, *worked))
            if entry.signed:
                newest = entry.signed[0]
                signed = (newest.endpoint, 0.0, newest.signed_at)
                rows.append(_row(node_id, AddressKind.SIGNED, *signed))
        return rows

    def load(self, rows: Iterable[AddressRow], unix_s: float) -> None:
        """Add the addresses that an earlier process stored, unless better addresses are known.

        Damaged rows are left out, and addresses that were signed after `unix_s`: they would
        suppress all addresses that the node signs until then.
        """
        for row in rows:
            if not 0 <= row.signed_at <= unix_s + MAX_CLOCK_SKEW_S:
                continue
            try:
                endpoint = Endpoint.parse(row.ip, row.port)
            except ValueError as error:
                log.warning("ignoring a damaged stored address", extra={"reason": str(error)})
                continue
            entry = self._entry(row.node_id)
            self._entries.move_to_end(row.node_id)
            if row.kind is AddressKind.WORKED:
                entry.reached = entry.reached or ReachedAddress(
                    endpoint, row.worked_at, row.signed_at
                )
            else:
                entry.signed = entry.signed or (SignedAddress(endpoint, row.signed_at),)
        self._trim()

    def _ordered(self, node_id: NodeID) -> tuple[Endpoint, ...]:
        entry = self._entries.get(node_id)
        if entry is None:
            return ()
        ordered = dict.fromkeys(entry.manual)
        reached = entry.reached
        if reached is not None:
            # An address that the node signed since it was reached comes before that one.
            newer = [signed for signed in entry.signed if signed.signed_at > reached.signed_at]
            ordered |= dict.fromkeys(signed.endpoint for signed in newer)
            ordered[reached.endpoint] = None
        ordered |= dict.fromkeys(signed.endpoint for signed in entry.signed)
        ordered |= dict.fromkeys(entry.hints)
        if not entry.other_nodes:
            return tuple(ordered)
        # Addresses at which another node answered come last.
        return tuple(sorted(ordered, key=entry.other_nodes.__contains__))

    def _entry(self, node_id: NodeID) -> _Entry:
        entry = self._entries.get(node_id)
        if entry is None:
            entry = self._entries[node_id] = _Entry()
        return entry

    def _trim(self) -> None:
        """Drop the least recently reached nodes beyond the limit, except known ones."""
        surplus = len(self._entries) - self._max_nodes
        # The slack lets one pass make room for many.
        if surplus <= self._max_nodes // 64:
            return
        unknown = (node_id for node_id in self._entries if not self.is_known(node_id))
        for node_id in tuple(islice(unknown, surplus)):
            del self._entries[node_id]


def _row(
    node_id: NodeID, kind: AddressKind, endpoint: Endpoint, worked_at: float, signed_at: int
) -> AddressRow:
    return AddressRow(node_id, kind, str(endpoint.ip), endpoint.port, worked_at, signed_at)


class Gossip:
    """Adds gossiped addresses to the address book.

    Source of truth: avalanchego `network/network.go` and `ip_tracker.go`: a node asks one validator
    of the Primary Network every few seconds, and sends no peer list if nothing is missing.

    known_peers: filter of all known signed addresses, which peers receive.
    """

    def __init__(
        self, book: AddressBook, statistics: NetworkStatistics, random_bytes: Callable[[int], bytes]
    ) -> None:
        self._book = book
        self._statistics = statistics
        self._random_bytes = random_bytes
        self.known_peers = BloomFilter.sized_for(0, random_bytes)
        self._renewed_at = float("-inf")

    def learn(self, addresses: Iterable[ClaimedIpPort], unix_s: float) -> list[NodeID]:
        """Add the entries of one peer list; return the nodes with a new address.

        Only newer addresses of known nodes are verified. The rest of the list is ignored after the
        first forgery.
        """
        learned: list[NodeID] = []
        for claim in islice(self._newer(addresses), _MAX_VERIFIED):
            if not claim.verify(unix_s):
                self._statistics.forged_addresses += 1
                break
            is_new = Endpoint(claim.ip, claim.port) not in self._book.candidates(claim.node_id)
            if self.add(claim):
                self._statistics.addresses_learned += 1
                if is_new:
                    learned.append(claim.node_id)
        return learned

    def add(self, claim: ClaimedIpPort) -> bool:
        """Add a verified address. Returns whether it was new."""
        signed = SignedAddress(Endpoint(claim.ip, claim.port), claim.timestamp)
        is_added = self._book.learn(claim.node_id, signed)
        if is_added:
            self.known_peers.add(gossip_id(claim.node_id, claim.timestamp))
        return is_added

    async def renew_filter(self, now: float) -> None:
        """Make a new filter with new seeds, once a minute and when the old one is saturated."""
        if now - self._renewed_at < _FILTER_LIFETIME_S and not self.known_peers.is_saturated:
            return
        self._renewed_at = now
        signed = list(self._book.signed())
        fresh = BloomFilter.sized_for(len(signed), self._random_bytes)
        for position, (node_id, signed_at) in enumerate(signed):
            fresh.add(gossip_id(node_id, signed_at))
            if position % _ADDED_PER_TURN == _ADDED_PER_TURN - 1:
                await asyncio.sleep(0)
        # Addresses that were added in the meantime are only in the old filter: peers may send them
        # once more.
        self.known_peers = fresh

    def _newer(self, addresses: Iterable[ClaimedIpPort]) -> Iterator[ClaimedIpPort]:
        book = self._book
        for claim in islice(addresses, _MAX_READ):
            node_id = claim.node_id
            if book.is_known(node_id) and claim.timestamp > book.newest_signed_at(node_id):
                yield claim


def peers_to_ask(missing: int) -> int:
    """Return the number of peers to ask for the addresses of `missing` nodes."""
    if not missing:
        return 0
    return min(_MAX_PEERS_ASKED, max(1, -(-missing // ADDRESSES_PER_PEER_LIST)))
