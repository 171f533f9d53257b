"""The validator set of any subnet at any height: a snapshot, and the changes since.

Source of truth: `BlockEffects.set_changes`; docs/index.md describes the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct, field

from warpseal.index import bulk
from warpseal.index.batch import IndexBatch
from warpseal.index.keys import P, from_column, to_column
from warpseal.index.raw_blocks import decompress, encode
from warpseal.index.read_session import IndexReader, ReadSession, SetMember
from warpseal.index.schema import SET_CHANGES, SET_MEMBERS, SET_SNAPSHOTS
from warpseal.ledger.effects import SetChange
from warpseal.runtime.zstd import Compressor
from warpseal.store.connection import Connection
from warpseal.warp.ids import PRIMARY_NETWORK, NodeID, SubnetID
from warpseal.warp.validator_set import ValidatorEntry

# Every index with sets has a snapshot of the Primary Network's at the first height.
_HEIGHTS: Final = (
    "SELECT (SELECT min(height) FROM set_snapshots WHERE subnet = ?),"
    " (SELECT height FROM chains WHERE chain = ?)"
)
_SNAPSHOT: Final = (
    "SELECT height, body"
    " FROM set_snapshots"
    " WHERE subnet = ? AND height <= ?"
    " ORDER BY height DESC"
    " LIMIT 1"
)
_CHANGES: Final = (
    "SELECT member, weight"
    " FROM set_changes"
    " WHERE subnet = ? AND height > ? AND height <= ?"
    " ORDER BY height"
)
_NEWEST: Final = (
    "(SELECT subnet, max(height) AS height"
    " FROM set_snapshots"
    " WHERE height <= ?"
    " GROUP BY subnet) AS n"
)
_SNAPSHOTS: Final = (
    "SELECT s.subnet, s.body"
    f" FROM {_NEWEST}"
    " JOIN set_snapshots s ON s.subnet = n.subnet AND s.height = n.height"
)
_ALL_CHANGES: Final = (
    "SELECT c.subnet, c.member, c.weight"
    f" FROM {_NEWEST}"
    " JOIN set_changes c ON c.subnet = n.subnet AND c.height > n.height AND c.height <= ?"
    " ORDER BY c.height"
)
_LAST_NUMBERS: Final = (
    "SELECT (SELECT max(number) FROM set_members), (SELECT max(number) FROM set_snapshots)"
)
_MEMBERS: Final = "SELECT number, subnet, node, public_key FROM set_members WHERE number IN {keys}"
_CHANGE_COUNTS: Final = (
    "SELECT n.subnet, count(*)"
    " FROM (SELECT subnet, max(height) AS height FROM set_snapshots GROUP BY subnet) AS n"
    " JOIN set_changes c ON c.subnet = n.subnet AND c.height > n.height"
    " GROUP BY n.subnet"
)
_decode_weights: Final = msgspec.msgpack.Decoder(tuple[tuple[int, ...], tuple[int, ...]]).decode


class _Set(Struct):
    """The set of a subnet.

    numbers: number and public key of the member of each node.
    weights: weights by number of the member, as columns hold them.

    changes: number of rows since the last snapshot; None before the first snapshot.
    """

    numbers: dict[NodeID, tuple[int, bytes | None]] = field(default_factory=dict)
    weights: dict[int, int] = field(default_factory=dict)
    changes: int | None = None


class ValidatorSetWriter:
    """The current sets of an index, and their rows.

    changes_per_snapshot: lowest number of changes before the next snapshot; there are at least as
        many as members, so that a read takes at most twice the time of one without changes.
    """

    def __init__(self, connection: Connection, changes_per_snapshot: int) -> None:
        self._changes_per_snapshot = changes_per_snapshot
        ((member, snapshot),) = connection.fetch(_LAST_NUMBERS)
        self._next_member, self._next_snapshot = (member or 0) + 1, (snapshot or 0) + 1
        self._sets: dict[int, _Set] = {}
        rows = connection.fetch("SELECT height FROM chains WHERE chain = ?", P) if snapshot else ()
        for subnet, weights in (
            read_weights(ReadSession(connection), rows[0][0]).items() if rows else ()
        ):
            self._sets[subnet] = _Set(
                weights={number: weight for number, weight in weights.items() if weight}, changes=0
            )
        members = [number for members in self._sets.values() for number in members.weights]
        for number, subnet, node_id, key in bulk.fetch_by_keys(connection, _MEMBERS, members):
            self._sets[subnet].numbers[NodeID(bytes(node_id))] = (
                number,
                None if key is None else bytes(key),
            )
        for subnet, count in connection.fetch(_CHANGE_COUNTS):
            self._sets[subnet].changes = count

    @property
    def has_sets(self) -> bool:
        """Whether the sets were begun: at the genesis, or by the first version that has them."""
        return bool(self._sets)

    def write(self, batch: IndexBatch, height: int, changes: Iterable[SetChange]) -> None:
        """Add the rows of the members that a block changed, and a snapshot when it is due.

        The first call is with all members. It writes a snapshot of the Primary Network, even of no
        members.
        """
        primary = batch.ids.keys[PRIMARY_NETWORK]
        changed = {} if self._sets else {primary: self._sets.setdefault(primary, _Set())}
        for change in changes:
            subnet = batch.ids.keys[change.subnet_id]
            members = self._sets.get(subnet)
            if members is None:
                members = self._sets[subnet] = _Set()
            changed[subnet] = members
            self._write_member(batch, (subnet, height), members, change)
        for subnet, members in changed.items():
            if members.changes is None or members.changes >= max(
                self._changes_per_snapshot, len(members.weights)
            ):
                batch.add(
                    SET_SNAPSHOTS,
                    (self._next_snapshot, subnet, height, encode_weights(members.weights)),
                )
                self._next_snapshot += 1
                members.changes = 0

    def _write_member(
        self, batch: IndexBatch, place: tuple[int, int], members: _Set, change: SetChange
    ) -> None:
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


def _add_change(
    batch: IndexBatch, place: tuple[int, int], members: _Set, number: int, weight: int
) -> None:
    batch.add(SET_CHANGES, (*place, number, weight))
    if members.changes is not None:
        members.changes += 1


class SetHeights(NamedTuple):
    """The lowest and the highest height at which an index has the sets."""

    oldest: int
    newest: int


class ValidatorSetReader:
    """Validator sets of one index.

    Every method reads one snapshot in a thread, and raises StoreDown.

    reader: reader of the index, or of its replicas.
    """

    def __init__(self, reader: IndexReader) -> None:
        self._reader = reader

    async def members_at(
        self, subnet_id: SubnetID, height: int
    ) -> tuple[ValidatorEntry, ...] | None:
        """Return the members of a subnet's set after a block, by node id, as
        `platform.getValidatorsAt` lists them.

        None: the index does not have the height. A subnet without validators, also an unknown one,
        has no members.
        """
        return await self._reader.read(lambda session: read_members(session, subnet_id, height))

    async def all_members_at(
        self, height: int
    ) -> Mapping[SubnetID, tuple[ValidatorEntry, ...]] | None:
        """Return the members of all sets that have any; None if the height is not indexed."""
        return await self._reader.read(lambda session: read_all_members(session, height))

    async def heights(self) -> SetHeights | None:
        """Return the heights of which the index has the sets; None if it has none."""
        return await self._reader.read(read_heights)


def read_heights(session: ReadSession) -> SetHeights | None:
    """Return the heights of which the index has the sets; None if it has none."""
    primary = session.keys_of([PRIMARY_NETWORK]).get(PRIMARY_NETWORK)
    if primary is None:
        return None
    oldest, newest = session.rows(_HEIGHTS, primary, P)[0]
    return None if oldest is None or newest is None else SetHeights(oldest, newest)


def read_members(
    session: ReadSession, subnet_id: SubnetID, height: int
) -> tuple[ValidatorEntry, ...] | None:
    """Return the members of a subnet's set after a block, by node id; None without the height."""
    heights = read_heights(session)
    if heights is None or not heights.oldest <= height <= heights.newest:
        return None
    subnet = session.keys_of([subnet_id]).get(subnet_id)
    snapshots = () if subnet is None else session.rows(_SNAPSHOT, subnet, height)
    if not snapshots:
        return ()
    base, body = snapshots[0]
    weights = decode_weights(body)
    weights.update(session.rows(_CHANGES, subnet, base, height))
    members = session.set_members(number for number, weight in weights.items() if weight)
    return _list_entries(members, weights)


def read_all_members(
    session: ReadSession, height: int
) -> Mapping[SubnetID, tuple[ValidatorEntry, ...]] | None:
    """Return the members of all sets that have any after a block; None without the height."""
    heights = read_heights(session)
    if heights is None or not heights.oldest <= height <= heights.newest:
        return None
    sets = read_weights(session, height)
    members = session.set_members(
        number for weights in sets.values() for number, weight in weights.items() if weight
    )
    session.load_ids(sets)
    entries = {
        SubnetID(session.id_of(subnet)): _list_entries(members, weights)
        for subnet, weights in sets.items()
    }
    return {subnet_id: entry for subnet_id, entry in entries.items() if entry}


def read_weights(session: ReadSession, height: int) -> dict[int, dict[int, int]]:
    """Return the weights of all members after a block: by key of the subnet, then by number.

    The weight of a member that left since the snapshot is 0.
    """
    sets = {subnet: decode_weights(body) for subnet, body in session.rows(_SNAPSHOTS, height)}
    for subnet, member, weight in session.rows(_ALL_CHANGES, height, height):
        sets[subnet][member] = weight
    return sets


def sample_sets(connection: Connection, count: int, random: Random) -> list[tuple[SubnetID, int]]:
    """Draw subnets and heights: the Primary Network's last set and `count` others, if any."""
    session = ReadSession(connection)
    heights = read_heights(session)
    if heights is None:
        return []
    subnets = dict(session.rows("SELECT subnet, min(height) FROM set_snapshots GROUP BY subnet"))
    session.load_ids(subnets)
    samples = [(PRIMARY_NETWORK, heights.newest)]
    for subnet in random.choices(sorted(subnets), k=count):
        height = random.randint(max(heights.oldest, subnets[subnet] - 1), heights.newest)
        samples.append((SubnetID(session.id_of(subnet)), height))
    return list(dict.fromkeys(samples))


def encode_weights(weights: Mapping[int, int]) -> bytes:
    """Return the body of a snapshot: zstd of MessagePack.

    weights: weights by number of the member, as columns hold them.
    """
    numbers = sorted(weights)
    return Compressor(has_checksum=True).compress(
        encode((numbers, [weights[number] for number in numbers]))
    )


def decode_weights(body: bytes) -> dict[int, int]:
    """Return what `encode_weights` encoded."""
    return dict(zip(*_decode_weights(decompress(bytes(body))), strict=True))


def _list_entries(
    members: Mapping[int, SetMember], weights: Mapping[int, int]
) -> tuple[ValidatorEntry, ...]:
    present = ((members[number], weight) for number, weight in weights.items() if weight)
    return tuple(
        sorted(ValidatorEntry(node, key, from_column(weight)) for (node, key), weight in present)
    )
