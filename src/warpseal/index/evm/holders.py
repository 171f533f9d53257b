"""Holders of ERC-20 tokens and of NFTs in the order of pages, and their earlier states.

Each change of a row leaves its former version, so that pages of an earlier block show that block.
Versions that were superseded more than a day ago are dropped: a day of blocks and, up to a number
of them, a day of the clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from msgspec import Struct

from warpseal.index import bulk
from warpseal.index.evm.keys import balance_of, nft_asset, position_of, rank_of
from warpseal.index.evm.recent_rows import RecentRows, find_held, forget_oldest
from warpseal.index.evm.rows import BalanceRow
from warpseal.index.evm.schema import (
    HOLDERS,
    NFT_TOTALS,
    PAST_NFT_TOTALS,
    PAST_PARTITIONS,
    PAST_RANKS,
    RANKS,
)
from warpseal.store.connection import Connection

Pair = tuple[int, int]
"""An asset (see keys.py) and a holder."""

KEPT_S: Final = 25 * 3_600
"""Versions that were valid within these seconds before the newest block are kept.

Page tokens live 24 hours.
"""
KEPT_OF_BACKFILL: Final = 16
"""The most partitions that are kept because they were written within these seconds of the clock."""
DROPPED: Final = -1
"""The row of `past_partitions` for the last dropped partition."""

_PARTITION_ROWS: Final = 1 << 16
_LAST_PARTITION: Final = "SELECT max(number) FROM past_partitions"
_COUNT_FORMER: Final = "SELECT count(*) FROM past_ranks WHERE partition = ?"
_TOTALS: Final = """
    SELECT collection, changed, holders, tokens
    FROM nft_totals
    WHERE collection IN {keys}
"""
# Partitions whose last block is that much older than a block, latest first.
_ENDED: Final = """
    SELECT p.number, p.until, p.time
    FROM past_partitions p
    JOIN blocks b ON b.number = p.until
    WHERE p.number BETWEEN 0 AND ?
        AND b.time < (SELECT time FROM blocks WHERE number = ?) - ?
    ORDER BY p.number DESC
"""
_FORGET_FORMER: Final = """
    DELETE FROM past_ranks
    WHERE partition IN (SELECT number FROM past_partitions WHERE number >= 0)
        AND asset = ?
"""
_DROP_PARTITION: Final = (
    "DELETE FROM past_ranks WHERE partition = ?",
    "DELETE FROM past_nft_totals WHERE partition = ?",
    "DELETE FROM past_partitions WHERE number = ?",
)
_PREFIXES: Final = "SELECT key, prefix FROM ids WHERE key IN {keys}"


class HolderState(NamedTuple):
    """A row of a holder, see schema.py."""

    rank: bytes
    maximum: bytes | None
    changed: int


class NftChanges(Struct, frozen=True):
    """Changes of numbers of NFTs.

    counts: the change of each holder, by collection and holder.
    tokens: the change of the number of held tokens of each collection.
    """

    counts: Mapping[Pair, int]
    tokens: Mapping[int, int]


NO_NFT_CHANGES: Final = NftChanges({}, {})


class Holders:
    """The rows of holders.

    cached: number of states in memory.
    capacity: number of rows in each of the small tables.
    """

    def __init__(self, connection: Connection, cached: int, capacity: int) -> None:
        self._cached = cached
        self._holders = RecentRows(HOLDERS, capacity)
        self._ranks = RecentRows(RANKS, capacity)
        # By holder: the place of the address in the order of addresses.
        self._positions: dict[int, int] = {}
        # The states that changed last, and those that the batch needs; None if the pair has none.
        self._states: dict[Pair, HolderState | None] = {}
        self._most_rows = min(_PARTITION_ROWS, capacity)
        ((partition,),) = connection.fetch(_LAST_PARTITION)
        self._partition = max(0, partition or 0)
        ((self._partition_rows,),) = connection.fetch(_COUNT_FORMER, self._partition)

    def find(self, connection: Connection, pairs: set[Pair]) -> Mapping[Pair, HolderState]:
        """Return the states of those pairs that have one."""
        states = self._states
        missing = {pair for pair in pairs if pair not in states}
        states.update(dict.fromkeys(missing))
        for asset, holder, *row in find_held(connection, HOLDERS, missing):
            states[asset, holder] = HolderState(*row)
        return {pair: state for pair in pairs if (state := states[pair]) is not None}

    def add(
        self,
        connection: Connection,
        balances: Sequence[BalanceRow],
        nfts: NftChanges,
        height: int,
        now: int,
    ) -> None:
        """Change holders by the next blocks, up to a height, which is written.

        balances: balances of ERC-20 tokens, sorted by asset, holder and block.
        now: unix seconds.
        """
        counts = {
            (nft_asset(collection), holder): change
            for (collection, holder), change in nfts.counts.items()
            if change
        }
        latest: dict[Pair, tuple[int, int]] = {}
        largest: dict[Pair, int] = {}
        for asset, holder, block, balance in balances:
            pair = (asset, holder)
            latest[pair] = (balance, block)
            if balance >= largest.get(pair, 0):
                largest[pair] = balance
        before = self.find(connection, latest.keys() | counts.keys())
        after: dict[Pair, HolderState | None] = {}
        for pair, (balance, block) in latest.items():
            rank = rank_of(balance)
            # The larger the balance, the lower the rank.
            maximum = rank if largest[pair] == balance else rank_of(largest[pair])
            if (state := before.get(pair)) is not None:
                earlier_maximum = state.rank if state.maximum is None else state.maximum
                maximum = min(maximum, earlier_maximum)
            after[pair] = HolderState(rank, None if maximum == rank else maximum, block)
        holder_changes: Counter[int] = Counter()
        for pair, change in counts.items():
            state = before.get(pair)
            count = change if state is None else balance_of(state.rank) + change
            after[pair] = HolderState(rank_of(count), None, height) if count > 0 else None
            holder_changes[-pair[0]] += (count > 0) - (state is not None)
        self._put(connection, after, before, height)
        self._add_totals(connection, holder_changes, nfts.tokens, height)
        if after or nfts.tokens:
            bulk.upsert(connection, PAST_PARTITIONS, [(self._partition, height, now)])
        self._drop_partitions(connection, height, now)
        self._remember(after)

    def rewrite(
        self, connection: Connection, asset: int, states: Mapping[Pair, HolderState], height: int
    ) -> None:
        """Correct states of an ERC-20 token, and forget its former rows, which have the error."""
        connection.run(_FORGET_FORMER, asset)
        self._put(connection, states, self.find(connection, set(states)), height, has_former=False)
        self._remember(states)

    def begin_at(self, connection: Connection, height: int) -> None:
        """Mark that no state before the one after `height` can be shown: rows are derived again."""
        bulk.upsert(connection, PAST_PARTITIONS, [(DROPPED, height, 0)])

    def _remember(self, states: Mapping[Pair, HolderState | None]) -> None:
        for pair, state in states.items():
            self._states.pop(pair, None)
            self._states[pair] = state
        forget_oldest(self._states, self._cached)

    def _put(
        self,
        connection: Connection,
        after: Mapping[Pair, HolderState | None],
        before: Mapping[Pair, HolderState],
        height: int,
        *,
        has_former: bool = True,
    ) -> None:
        """Replace states.

        after: the new states; None for a pair that no longer holds anything.
        has_former: pages of earlier blocks may show the states of `before`.
        """
        if self._partition_rows >= self._most_rows:
            self._partition += 1
            self._partition_rows = 0
        positions = self._positions
        forget_oldest(positions, self._cached)
        unread = {holder for _, holder in after} - positions.keys()
        for key, prefix in bulk.fetch_by_keys(connection, _PREFIXES, unread):
            positions[key] = position_of(prefix)
        holders: list[bulk.Row] = []
        ranks: dict[bulk.Row, bulk.Row] = {}
        past: list[bulk.Row] = []
        for (asset, holder), state in sorted(after.items(), key=itemgetter(0)):
            position = positions[holder]
            previous = before.get((asset, holder))
            if previous is not None:
                rank, maximum, changed = previous
                ranks[asset, rank, position, holder] = (changed, maximum, 0)
                # A row of this height was shown on no page: it changes once more if a destroyed
                # contract is found.
                if has_former and changed < height:
                    past.append(
                        (self._partition, asset, rank, position, holder, changed, height, maximum)
                    )
            if state is None:
                holders.append((asset, holder, b"", None, height, 0))
            else:
                rank, maximum, changed = state
                holders.append((asset, holder, rank, maximum, changed, 1))
                ranks[asset, rank, position, holder] = (changed, maximum, 1)
        self._holders.put(connection, holders)
        self._ranks.put(connection, sorted((*key, *row) for key, row in ranks.items()))
        bulk.insert(connection, PAST_RANKS, sorted(past, key=itemgetter(1, 2, 3, 4)))
        self._partition_rows += len(past)

    def _add_totals(
        self,
        connection: Connection,
        holders: Mapping[int, int],
        tokens: Mapping[int, int],
        height: int,
    ) -> None:
        changes = [
            (number, holders.get(number, 0), tokens.get(number, 0))
            for number in sorted(holders.keys() | tokens.keys())
        ]
        changes = [change for change in changes if any(change[1:])]
        if not changes:
            return
        rows, past = [], []
        before = {
            row[0]: row[1:]
            for row in bulk.run(connection, _TOTALS, [change[0] for change in changes])
        }
        for number, more_holders, more_tokens in changes:
            changed, holder_count, token_count = before.get(number, (-1, 0, 0))
            if number in before and changed < height:
                past.append((self._partition, number, changed, height, holder_count, token_count))
            rows.append((number, height, holder_count + more_holders, token_count + more_tokens))
        bulk.upsert(connection, NFT_TOTALS, rows)
        bulk.insert(connection, PAST_NFT_TOTALS, past)

    def _drop_partitions(self, connection: Connection, height: int, now: int) -> None:
        """Drop the partitions whose versions were all superseded too long ago.

        now: unix seconds.
        """
        ended = list(connection.fetch(_ENDED, self._partition - 1, height, KEPT_S))
        # A backfill writes days of blocks within minutes, and a page token of a few minutes ago
        # still has to work.
        recent = [number for number, _, time in ended[:KEPT_OF_BACKFILL] if time >= now - KEPT_S]
        dropped = ended[len(recent) :]
        for number, _, _ in dropped:
            for text in _DROP_PARTITION:
                connection.run(text, number)
        if dropped:
            _, until, written_at = dropped[0]
            bulk.upsert(connection, PAST_PARTITIONS, [(DROPPED, until, written_at)])
