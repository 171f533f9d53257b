"""Holders of ERC-20 tokens and of NFTs in the order of pages, and what they were at earlier blocks.

Each change of a row leaves its former version, so that pages of an earlier block show that block. Versions that were
superseded more than a day before the newest block are dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from sqlalchemy import Connection

from warpseal.index import bulk
from warpseal.index.evm.keys import nft_asset, pack, position_of, rank_of, unpack
from warpseal.index.evm.recent_rows import RecentRows, forget_oldest
from warpseal.index.evm.schema import (
    NFT_TOTALS,
    OLDER_HOLDERS,
    OLDER_RANKS,
    PAST_NFT_TOTALS,
    PAST_PARTITIONS,
    PAST_RANKS,
    RECENT_HOLDERS,
    RECENT_RANKS,
)

Pair = tuple[int, int]
"""An asset (see keys.py) and a holder."""
BalanceRow = tuple[int, int, int, int]
"""Asset, holder, block, and the balance after it."""

KEPT_S: Final = 25 * 3_600
"""Versions that were valid within so many seconds before the newest block are there: page tokens live 24 hours."""
DROPPED: Final = -1
"""The row of `past_partitions` for the last dropped partition."""

_PARTITION_ROWS: Final = 1 << 16
_BATCH_KEYS: Final = 2_000
_RECENT: Final = (
    "SELECT h.asset, h.holder, h.balance, h.maximum, h.changed, h.is_held FROM {pairs}"
    " JOIN recent_holders h ON h.asset = p.a AND h.holder = p.b"
)
_OLDER: Final = (
    "SELECT h.asset, h.holder, h.balance, h.maximum, h.changed FROM {pairs}"
    " JOIN older_holders h ON h.asset = p.a AND h.holder = p.b"
)
_TOTALS: Final = "SELECT collection, changed, holders, tokens FROM nft_totals WHERE collection IN {keys}"
_PREFIXES: Final = "SELECT key, prefix FROM ids WHERE key IN {keys}"


class HolderState(NamedTuple):
    """A balance or number of NFTs; its maximum after any block; the last block that changed it."""

    balance: int
    maximum: int
    changed: int


_NOTHING: Final = HolderState(0, 0, -1)


@dataclass(frozen=True, slots=True)
class NftChanges:
    """By how many tokens each (collection, holder), and each collection in all, has more or less."""

    held: Mapping[Pair, int]
    tokens: Mapping[int, int]


NO_NFT_CHANGES: Final = NftChanges({}, {})


class Holders:
    """The rows of holders.

    cached: how many states and addresses are in memory. capacity: the number of rows in each of the small tables.
    """

    def __init__(self, cached: int, capacity: int) -> None:
        self._cached = cached
        self._holders = RecentRows(RECENT_HOLDERS, OLDER_HOLDERS, capacity, gone="is_held = 0")
        self._ranks = RecentRows(RECENT_RANKS, OLDER_RANKS, capacity, gone="is_held = 0")
        # Where the addresses of holders are in the order of addresses.
        self._positions: dict[int, int] = {}
        # States that changed last, and those that were read for the batch that is being written.
        self._found: dict[Pair, HolderState] = {}
        self._partition = 0
        self._partition_rows = 0

    def open(self, connection: Connection) -> None:
        """Continue behind the rows of the database."""
        self._holders.open()
        self._ranks.open()
        self._positions.clear()
        self._found.clear()
        ((partition,),) = bulk.fetch(connection, "SELECT max(number) FROM past_partitions")
        self._partition = max(0, partition or 0)
        text = "SELECT count(*) FROM past_ranks WHERE partition = ?"
        ((self._partition_rows,),) = bulk.fetch(connection, text, self._partition)

    def find(self, connection: Connection, pairs: set[Pair]) -> Mapping[Pair, HolderState]:
        """Return the states of those pairs that have one."""
        wanted = pairs - self._found.keys()
        found: dict[Pair, HolderState] = {}
        recent = set()
        for asset, holder, balance, maximum, changed, is_held in bulk.fetch_by_pairs(connection, _RECENT, wanted):
            recent.add((asset, holder))
            if is_held:
                found[asset, holder] = _state(balance, maximum, changed)
        for asset, holder, balance, maximum, changed in bulk.fetch_by_pairs(connection, _OLDER, wanted - recent):
            found[asset, holder] = _state(balance, maximum, changed)
        self._found.update(found)
        self._found.update(dict.fromkeys(wanted - found.keys(), _NOTHING))
        return {pair: state for pair in pairs if (state := self._found[pair]) is not _NOTHING}

    def add(
        self,
        connection: Connection,
        balances: Sequence[BalanceRow],
        nfts: NftChanges,
        height: int,
        time: int,
    ) -> None:
        """Change holders by the next blocks, up to a height; time: of that block.

        balances: of ERC-20 tokens, sorted by asset, holder and block.
        """
        changed: dict[Pair, HolderState] = {}
        for pair, rows in groupby(balances, key=itemgetter(0, 1)):
            listed = [row[2:] for row in rows]
            block, balance = listed[-1]
            changed[pair] = HolderState(balance, max(amount for _, amount in listed), block)
        counts = {(nft_asset(pair[0]), pair[1]): change for pair, change in nfts.held.items() if change}
        known = self.find(connection, changed.keys() | counts.keys())
        after: dict[Pair, HolderState | None] = {
            pair: state._replace(maximum=max(state.maximum, known.get(pair, _NOTHING).maximum))
            for pair, state in changed.items()
        }
        holder_changes: Counter[int] = Counter()
        for pair, change in counts.items():
            count = known.get(pair, _NOTHING).balance + change
            after[pair] = HolderState(count, count, height) if count > 0 else None
            holder_changes[-pair[0]] += (count > 0) - (pair in known)
        self._put(connection, after, known, height)
        self._add_totals(connection, holder_changes, nfts.tokens, height)
        if after or nfts.tokens:
            bulk.upsert(connection, PAST_PARTITIONS, [(self._partition, height, time)])
        self._drop_partitions(connection, time)
        for pair, state in after.items():
            self._found.pop(pair, None)
            self._found[pair] = _NOTHING if state is None else state
        forget_oldest(self._found, self._cached)

    def begin_at(self, connection: Connection, height: int) -> None:
        """Mark that no state before the one after `height` can be shown: rows are derived again."""
        bulk.upsert(connection, PAST_PARTITIONS, [(DROPPED, height, 0)])

    def _put(
        self,
        connection: Connection,
        after: Mapping[Pair, HolderState | None],
        before: Mapping[Pair, HolderState],
        height: int,
    ) -> None:
        """Replace states. after: None for none."""
        if self._partition_rows >= _PARTITION_ROWS:
            self._partition += 1
            self._partition_rows = 0
        positions = self._load_positions(connection, {holder for _, holder in after})
        holders: list[bulk.Row] = []
        ranks: dict[bulk.Row, bulk.Row] = {}
        past: list[bulk.Row] = []
        for (asset, holder), state in sorted(after.items(), key=itemgetter(0)):
            position = positions[holder]
            previous = before.get((asset, holder))
            if previous is not None:
                rank, maximum = _ranks_of(previous)
                ranks[asset, rank, position, holder] = (previous.changed, maximum, 0)
                past.append((self._partition, asset, rank, position, holder, previous.changed, height, maximum))
            if state is None:
                holders.append((asset, holder, b"", None, height, 0))
            else:
                raw_maximum = None if state.maximum == state.balance else pack(state.maximum)
                holders.append((asset, holder, pack(state.balance), raw_maximum, state.changed, 1))
                rank, maximum = _ranks_of(state)
                ranks[asset, rank, position, holder] = (state.changed, maximum, 1)
        self._holders.put(connection, holders)
        self._ranks.put(connection, sorted((*key, *row) for key, row in ranks.items()))
        bulk.insert(connection, PAST_RANKS, sorted(past, key=itemgetter(1, 2, 3, 4)))
        self._partition_rows += len(past)

    def _add_totals(
        self, connection: Connection, holders: Mapping[int, int], tokens: Mapping[int, int], height: int
    ) -> None:
        changes = [
            (number, holders.get(number, 0), tokens.get(number, 0)) for number in sorted(holders.keys() | tokens.keys())
        ]
        changes = [change for change in changes if any(change[1:])]
        if not changes:
            return
        rows, past = [], []
        known = {row[0]: row[1:] for row in bulk.run(connection, _TOTALS, [change[0] for change in changes])}
        for number, more_holders, more_tokens in changes:
            changed, holder_count, token_count = known.get(number, (-1, 0, 0))
            if number in known:
                past.append((self._partition, number, changed, height, holder_count, token_count))
            rows.append((number, height, holder_count + more_holders, token_count + more_tokens))
        bulk.upsert(connection, NFT_TOTALS, rows)
        bulk.insert(connection, PAST_NFT_TOTALS, past)

    def _drop_partitions(self, connection: Connection, time: int) -> None:
        """Drop the partitions whose versions were all superseded too long ago."""
        text = (
            "SELECT number, until, time FROM past_partitions WHERE number BETWEEN 0 AND ? AND time < ? ORDER BY number"
        )
        dropped = bulk.fetch(connection, text, self._partition - 1, time - KEPT_S)
        for number, until, last in list(dropped):
            for table in ("past_ranks", "past_nft_totals"):
                bulk.fetch(connection, f"DELETE FROM {table} WHERE partition = ?", number)
            bulk.fetch(connection, "DELETE FROM past_partitions WHERE number = ?", number)
            bulk.upsert(connection, PAST_PARTITIONS, [(DROPPED, until, last)])

    def _load_positions(self, connection: Connection, holders: set[int]) -> Mapping[int, int]:
        known = self._positions
        forget_oldest(known, self._cached)
        missing = sorted(holders - known.keys())
        for start in range(0, len(missing), _BATCH_KEYS):
            for key, prefix in bulk.run(connection, _PREFIXES, missing[start : start + _BATCH_KEYS]):
                known[key] = position_of(prefix)
        return known


def _state(balance: bytes, maximum: bytes | None, changed: int) -> HolderState:
    number = unpack(balance)
    return HolderState(number, number if maximum is None else unpack(maximum), changed)


def _ranks_of(state: HolderState) -> tuple[bytes, bytes | None]:
    rank = rank_of(state.balance)
    return rank, None if state.maximum == state.balance else rank_of(state.maximum)
