"""Reads the validator set of any subnet at any height from the index: the snapshot at or below it, and what follows.

Source of truth: `ValidatorSetWriter` writes the rows; docs/index.md describes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Final, NamedTuple

import msgspec

from warpseal.index.keys import P, from_column
from warpseal.index.raw_blocks import decompress, encode
from warpseal.index.read_session import IndexReader, ReadSession
from warpseal.runtime.zstd import Compressor
from warpseal.store.connection import Connection
from warpseal.warp.ids import PRIMARY_NETWORK, SubnetID
from warpseal.warp.validator_set import ValidatorEntry

# Every index with sets has a snapshot of the Primary Network's at the first height.
_HEIGHTS: Final = (
    "SELECT (SELECT min(height) FROM set_snapshots WHERE subnet = ?), (SELECT height FROM chains WHERE chain = ?)"
)
_SNAPSHOT: Final = (
    "SELECT height, body FROM set_snapshots WHERE subnet = ? AND height <= ? ORDER BY height DESC LIMIT 1"
)
_CHANGES: Final = (
    "SELECT member, weight FROM set_changes WHERE subnet = ? AND height > ? AND height <= ? ORDER BY height"
)
_NEWEST: Final = "(SELECT subnet, max(height) AS height FROM set_snapshots WHERE height <= ? GROUP BY subnet) AS n"
_SNAPSHOTS: Final = (
    f"SELECT s.subnet, s.body FROM {_NEWEST} JOIN set_snapshots s ON s.subnet = n.subnet AND s.height = n.height"
)
_ALL_CHANGES: Final = (
    f"SELECT c.subnet, c.member, c.weight FROM {_NEWEST} JOIN set_changes c"
    " ON c.subnet = n.subnet AND c.height > n.height AND c.height <= ? ORDER BY c.height"
)
_decode_weights: Final = msgspec.msgpack.Decoder(tuple[tuple[int, ...], tuple[int, ...]]).decode


class SetHeights(NamedTuple):
    """The lowest and the highest height at which an index has the sets."""

    oldest: int
    newest: int


class ValidatorSetReader:
    """Validator sets of one index. Every method reads one snapshot in a thread, and raises StoreDown.

    reader: with replicas, requests read these.
    """

    def __init__(self, reader: IndexReader) -> None:
        self._reader = reader

    async def members_at(self, subnet_id: SubnetID, height: int) -> tuple[ValidatorEntry, ...] | None:
        """Return the members of a subnet's set after a block, by node id, as `platform.getValidatorsAt` lists them.

        None: the index does not have the height. A subnet without validators, also an unknown one, has no members.
        """
        return await self._reader.read(lambda session: read_members(session, subnet_id, height))

    async def all_members_at(self, height: int) -> Mapping[SubnetID, tuple[ValidatorEntry, ...]] | None:
        """Return the members of all sets that have any; None if the index does not have the height."""
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


def read_members(session: ReadSession, subnet_id: SubnetID, height: int) -> tuple[ValidatorEntry, ...] | None:
    """Return the members of a subnet's set after a block, by node id; None if the index does not have the height."""
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
    session.load_set_members(number for number, weight in weights.items() if weight)
    return _list_entries(session, weights)


def read_all_members(session: ReadSession, height: int) -> Mapping[SubnetID, tuple[ValidatorEntry, ...]] | None:
    """Return the members of all sets that have any after a block; None if the index does not have the height."""
    heights = read_heights(session)
    if heights is None or not heights.oldest <= height <= heights.newest:
        return None
    sets = read_weights(session, height)
    session.load_set_members(number for weights in sets.values() for number, weight in weights.items() if weight)
    session.load_ids(sets)
    entries = {SubnetID(session.id_of(subnet)): _list_entries(session, weights) for subnet, weights in sets.items()}
    return {subnet_id: members for subnet_id, members in entries.items() if members}


def read_weights(session: ReadSession, height: int) -> dict[int, dict[int, int]]:
    """Return the weights of all members after a block, as columns hold them: by key of the subnet, then by number.

    The weight of a member that left since the snapshot is 0.
    """
    sets = {subnet: decode_weights(body) for subnet, body in session.rows(_SNAPSHOTS, height)}
    for subnet, member, weight in session.rows(_ALL_CHANGES, height, height):
        sets[subnet][member] = weight
    return sets


def sample_sets(connection: Connection, count: int, random: Random) -> list[tuple[SubnetID, int]]:
    """Draw subnets and heights to compare: the Primary Network's last set, and `count` others; none without sets."""
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
    """Return the body of a snapshot: zstd of MessagePack. weights: as columns hold them, by number of the member."""
    numbers = sorted(weights)
    return Compressor(has_checksum=True).compress(encode((numbers, [weights[number] for number in numbers])))


def decode_weights(body: bytes) -> dict[int, int]:
    """Return what `encode_weights` encoded."""
    return dict(zip(*_decode_weights(decompress(bytes(body))), strict=True))


def _list_entries(session: ReadSession, weights: Mapping[int, int]) -> tuple[ValidatorEntry, ...]:
    members = ((session.set_member_of(number), weight) for number, weight in weights.items() if weight)
    return tuple(sorted(ValidatorEntry(node, key, from_column(weight)) for (node, key), weight in members))
