"""Writes the members of validator sets that blocks changed, and now and then a snapshot of a subnet's whole set.

Source of truth: `BlockEffects.set_changes`; the rows are those that validator_sets.py reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct, field

from warpseal.index import bulk
from warpseal.index.batch import IndexBatch
from warpseal.index.keys import P, to_column
from warpseal.index.read_session import ReadSession
from warpseal.index.schema import SET_CHANGES, SET_MEMBERS, SET_SNAPSHOTS
from warpseal.index.validator_sets import encode_weights, read_weights
from warpseal.ledger.effects import SetChange
from warpseal.store.connection import Connection
from warpseal.warp.ids import PRIMARY_NETWORK, NodeID

_LAST_NUMBERS: Final = "SELECT (SELECT max(number) FROM set_members), (SELECT max(number) FROM set_snapshots)"
_MEMBERS: Final = "SELECT number, subnet, node, public_key FROM set_members WHERE number IN {keys}"
_CHANGE_COUNTS: Final = (
    "SELECT n.subnet, count(*) FROM (SELECT subnet, max(height) AS height FROM set_snapshots GROUP BY subnet) AS n"
    " JOIN set_changes c ON c.subnet = n.subnet AND c.height > n.height GROUP BY n.subnet"
)


class _Set(Struct):
    """The set of a subnet. numbers: number and key of each node's member. weights: as columns hold them, by number.

    changes: the number of rows since its last snapshot; None before the first one.
    """

    numbers: dict[NodeID, tuple[int, bytes | None]] = field(default_factory=dict)
    weights: dict[int, int] = field(default_factory=dict)
    changes: int | None = None


class ValidatorSetWriter:
    """The current sets of an index, and their rows.

    changes_per_snapshot: lowest number of changes before the next snapshot; there are at least as many as members, so
    that a read takes at most twice the time of one without changes.
    """

    def __init__(self, connection: Connection, changes_per_snapshot: int) -> None:
        self._changes_per_snapshot = changes_per_snapshot
        ((member, snapshot),) = connection.fetch(_LAST_NUMBERS)
        self._next_member, self._next_snapshot = (member or 0) + 1, (snapshot or 0) + 1
        self._sets: dict[int, _Set] = {}
        rows = connection.fetch("SELECT height FROM chains WHERE chain = ?", P) if snapshot else ()
        for subnet, weights in read_weights(ReadSession(connection), rows[0][0]).items() if rows else ():
            self._sets[subnet] = _Set(
                weights={number: weight for number, weight in weights.items() if weight}, changes=0
            )
        members = [number for members in self._sets.values() for number in members.weights]
        for number, subnet, node_id, key in bulk.fetch_by_keys(connection, _MEMBERS, members):
            self._sets[subnet].numbers[NodeID(bytes(node_id))] = number, None if key is None else bytes(key)
        for subnet, count in connection.fetch(_CHANGE_COUNTS):
            self._sets[subnet].changes = count

    @property
    def has_sets(self) -> bool:
        """Whether the sets were begun: at the genesis, or by the first version that has them."""
        return bool(self._sets)

    def write(self, batch: IndexBatch, height: int, changes: Iterable[SetChange]) -> None:
        """Add the rows of the members that a block changed, of a subnet's first ones with a snapshot.

        The first call is with all members. It writes a snapshot of the Primary Network, even of no members.
        """
        primary = batch.ids.key(PRIMARY_NETWORK)
        changed = {} if self._sets else {primary: self._sets.setdefault(primary, _Set())}
        for change in changes:
            subnet = batch.ids.key(change.subnet_id)
            members = self._sets.get(subnet)
            if members is None:
                members = self._sets[subnet] = _Set()
            changed[subnet] = members
            self._write_member(batch, (subnet, height), members, change)
        for subnet, members in changed.items():
            if members.changes is None or members.changes >= max(self._changes_per_snapshot, len(members.weights)):
                batch.add(SET_SNAPSHOTS, (self._next_snapshot, subnet, height, encode_weights(members.weights)))
                self._next_snapshot += 1
                members.changes = 0

    def _write_member(self, batch: IndexBatch, place: tuple[int, int], members: _Set, change: SetChange) -> None:
        number, key = members.numbers.get(change.node_id, (None, None))
        if number is not None and (not change.weight or key != change.public_key):
            _add_change(batch, place, members, number, 0)
            del members.numbers[change.node_id], members.weights[number]
            number = None
        if change.weight:
            if number is None:
                number, self._next_member = self._next_member, self._next_member + 1
                members.numbers[change.node_id] = number, change.public_key
                batch.add(SET_MEMBERS, (number, place[0], change.node_id, change.public_key))
            members.weights[number] = to_column(change.weight)
            _add_change(batch, place, members, number, members.weights[number])


def _add_change(batch: IndexBatch, place: tuple[int, int], members: _Set, number: int, weight: int) -> None:
    batch.add(SET_CHANGES, (*place, number, weight))
    if members.changes is not None:
        members.changes += 1
