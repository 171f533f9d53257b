"""Where each node may be reached, best address first, and which nodes' addresses are kept at all.

The operator's word comes first, then what worked before, then what the node signed, then unsigned hints;
what a node signed after an address worked replaces that address. Pure: `now` is Unix time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

from warpseal.protocol.addresses import IPAddress, is_public
from warpseal.warp.ids import NodeID

SIGNED_PER_NODE: Final = 2
HINTS_PER_NODE: Final = 2
STRANGERS_PER_NODE: Final = 4


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An IP address (IPv4 inside IPv6 is IPv4) and a port of 1..65535."""

    ip: IPAddress
    port: int

    @classmethod
    def parse(cls, host: str, port: int) -> Endpoint:
        """Return the endpoint of an address in text form. Raises ValueError."""
        ip = ip_address(host)
        if not 0 < port < 65536:
            raise ValueError(f"port {port}")
        return cls(getattr(ip, "ipv4_mapped", None) or ip, port)

    def __str__(self) -> str:
        return f"[{self.ip}]:{self.port}" if self.ip.version == 6 else f"{self.ip}:{self.port}"


@dataclass(frozen=True, slots=True)
class Signed:
    """An address that the node itself signed, at `signed_at` (Unix seconds)."""

    endpoint: Endpoint
    signed_at: int


@dataclass(frozen=True, slots=True)
class Worked:
    """Where the node was reached last; signed_at: the newest signature known then, 0 for none."""

    endpoint: Endpoint
    worked_at: float
    signed_at: int


@dataclass(slots=True, eq=False)
class _Entry:
    manual: tuple[Endpoint, ...] = ()
    worked: Worked | None = None
    signed: tuple[Signed, ...] = ()  # Newest first.
    hints: tuple[Endpoint, ...] = ()  # Newest first.
    strangers: OrderedDict[Endpoint, NodeID] = field(default_factory=OrderedDict)


@dataclass(frozen=True, slots=True)
class Remembered:
    """What is kept of a node beyond the life of the process."""

    node_id: NodeID
    worked: Worked | None
    signed: Signed | None


class AddressBook:
    """The addresses of all nodes of interest.

    wanted: the nodes to connect to, a live view. max_nodes bounds the others: those hinted at or remembered.
    """

    def __init__(self, wanted: Container[NodeID], *, allow_private: bool, max_nodes: int) -> None:
        self._wanted = wanted
        self._allow_private = allow_private
        self._max_nodes = max_nodes
        self._entries: OrderedDict[NodeID, _Entry] = OrderedDict()
        self._known: frozenset[NodeID] = frozenset()
        self.changed = False

    # Whose addresses are kept.

    def set_known_validators(self, node_ids: Iterable[NodeID]) -> None:
        """Replace the set of nodes whose gossiped addresses are kept; those of others are dropped."""
        self._known = frozenset(node_ids)
        for node_id in [n for n, entry in self._entries.items() if entry.signed and not self.is_known(n)]:
            self._entries[node_id].signed = ()
            self._drop_if_empty(node_id)

    def is_known(self, node_id: NodeID) -> bool:
        """Tell whether gossiped addresses of this node are kept."""
        if node_id in self._known or node_id in self._wanted:
            return True
        entry = self._entries.get(node_id)
        return entry is not None and bool(entry.manual)

    # What is learnt.

    def add_manual(self, node_id: NodeID, endpoint: Endpoint) -> None:
        """Take the operator's word for an address."""
        entry = self._entry(node_id)
        entry.manual = (*(e for e in entry.manual if e != endpoint), endpoint)

    def add_hint(self, node_id: NodeID, endpoint: Endpoint) -> bool:
        """Take an unauthenticated address, the newest two per node. Returns whether it was new."""
        entry = self._entry(node_id)
        if endpoint in entry.hints:
            return False
        entry.hints = (endpoint, *entry.hints)[:HINTS_PER_NODE]
        self._trim()
        return True

    def newest_signed_at(self, node_id: NodeID) -> int:
        """Return when the node signed the newest address known of it; 0 for never."""
        entry = self._entries.get(node_id)
        return entry.signed[0].signed_at if entry is not None and entry.signed else 0

    def learn(self, node_id: NodeID, signed: Signed) -> bool:
        """Take an address with a verified signature, when it is the newest. Returns whether it was."""
        if not self.is_known(node_id) or signed.signed_at <= self.newest_signed_at(node_id):
            return False
        entry = self._entry(node_id)
        kept = (older for older in entry.signed if older.endpoint != signed.endpoint)
        entry.signed = (signed, *kept)[:SIGNED_PER_NODE]
        self.changed = True
        return True

    def reached(self, node_id: NodeID, endpoint: Endpoint, now: float) -> None:
        """Note that the node itself answered at this address."""
        entry = self._entry(node_id)
        entry.strangers.pop(endpoint, None)
        entry.worked = Worked(endpoint, now, self.newest_signed_at(node_id))
        self._entries.move_to_end(node_id)
        self.changed = True
        self._trim()

    def answered_by(self, node_id: NodeID, endpoint: Endpoint, stranger: NodeID) -> None:
        """Note that another node answered there: the address goes to the end of the line."""
        entry = self._entry(node_id)
        entry.strangers[endpoint] = stranger
        if len(entry.strangers) > STRANGERS_PER_NODE:
            entry.strangers.popitem(last=False)
        if entry.worked is not None and entry.worked.endpoint == endpoint:
            entry.worked = None
            self.changed = True

    # What is asked.

    def candidates(self, node_id: NodeID) -> tuple[Endpoint, ...]:
        """Return the addresses that may be dialled, best first."""
        allowed = self._allow_private
        return tuple(e for e in self._ordered(node_id) if allowed or is_public(e.ip))

    def stranger_at(self, node_id: NodeID, endpoint: Endpoint) -> NodeID | None:
        """Return which other node answered there when `node_id` was meant, if the last to answer was another."""
        entry = self._entries.get(node_id)
        return entry.strangers.get(endpoint) if entry is not None else None

    def only_private(self, node_id: NodeID) -> bool:
        """Tell whether addresses are known, and none of them may be dialled."""
        known = self._ordered(node_id)
        return bool(known) and not self._allow_private and not any(is_public(e.ip) for e in known)

    def signed(self) -> Iterator[tuple[NodeID, int]]:
        """Yield each node of which a signed address is known, with the newest signature's time."""
        for node_id, entry in self._entries.items():
            if entry.signed:
                yield node_id, entry.signed[0].signed_at

    # What outlives the process.

    def remembered(self) -> list[Remembered]:
        """Return what to write to disk, the most recently reached nodes last."""
        return [
            Remembered(node_id, entry.worked, entry.signed[0] if entry.signed else None)
            for node_id, entry in self._entries.items()
            if entry.worked is not None or entry.signed
        ]

    def recall(self, remembered: Iterable[Remembered]) -> None:
        """Take what an earlier process wrote, as far as nothing better is known."""
        for memory in remembered:
            entry = self._entry(memory.node_id)
            entry.worked = entry.worked or memory.worked
            if not entry.signed and memory.signed is not None:
                entry.signed = (memory.signed,)
            self._drop_if_empty(memory.node_id)
        self._trim()

    def _ordered(self, node_id: NodeID) -> tuple[Endpoint, ...]:
        entry = self._entries.get(node_id)
        if entry is None:
            return ()
        line = dict.fromkeys(entry.manual)
        worked = entry.worked
        if worked is not None:
            line |= dict.fromkeys(s.endpoint for s in entry.signed if s.signed_at > worked.signed_at)
            line[worked.endpoint] = None
        line |= dict.fromkeys(s.endpoint for s in entry.signed)
        line |= dict.fromkeys(entry.hints)
        if not entry.strangers:
            return tuple(line)
        return tuple(sorted(line, key=entry.strangers.__contains__))

    def _entry(self, node_id: NodeID) -> _Entry:
        entry = self._entries.get(node_id)
        if entry is None:
            entry = self._entries[node_id] = _Entry()
        return entry

    def _drop_if_empty(self, node_id: NodeID) -> None:
        entry = self._entries[node_id]
        if not (entry.manual or entry.worked or entry.signed or entry.hints):
            del self._entries[node_id]

    def _trim(self) -> None:
        """Forget the nodes reached or heard of longest ago, beyond the bound; never known ones."""
        surplus = len(self._entries) - self._max_nodes
        if surplus <= self._max_nodes // 64:  # Some slack, so that one pass makes room for many.
            return
        strangers = (node_id for node_id in self._entries if not self.is_known(node_id))
        for node_id in [node_id for node_id, _ in zip(strangers, range(surplus), strict=False)]:
            del self._entries[node_id]
