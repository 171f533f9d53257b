"""The derived rows of blocks, transfers and creations, as they are written, or later from the stored facts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection

from warpseal.index import bulk
from warpseal.index.evm.balances import read_balances
from warpseal.index.evm.holders import BalanceRow, Holders
from warpseal.index.evm.keys import BLOCK_PARTITION_BITS, TRANSFER_PARTITION_BITS, block_key, day_of, height_of
from warpseal.index.evm.ownership import Ownership, TransferRow
from warpseal.index.evm.recent_rows import RecentRows
from warpseal.index.evm.schema import (
    ADDRESS_CREATIONS,
    BLOCK_HASHES,
    DAYS,
    DERIVED_STATE,
    OLDER_ADDRESS_PARTITIONS,
    OLDER_ADDRESS_TRANSFERS,
    RECENT_ADDRESS_PARTITIONS,
    RECENT_ADDRESS_TRANSFERS,
    TRANSFER_PARTITIONS,
)
from warpseal.index.keys import prefix_of

CreationRow = tuple[int, int, int, int, int | None]
"""A row of `creations`: tx, position, contract, sender, factory."""

_REBUILT_TRANSFERS: Final = 20_000
_REBUILT_BLOCKS: Final = 50_000
_MAX_SEEN: Final = 200_000


class DerivedRows:
    """Derives rows from facts, block by block. cached, capacity: see Ownership."""

    def __init__(self, cached: int, capacity: int) -> None:
        self.height = -1
        self._ownership = Ownership(cached, capacity)
        self._transfers = RecentRows(RECENT_ADDRESS_TRANSFERS, OLDER_ADDRESS_TRANSFERS, capacity)
        self._directory = RecentRows(RECENT_ADDRESS_PARTITIONS, OLDER_ADDRESS_PARTITIONS, capacity)
        self.holders = Holders(cached, capacity)
        self._erc1155 = 0
        # The addresses with transfers in the newest partition.
        self._partition = -1
        self._seen: set[int] = set()

    def open(self, connection: Connection) -> None:
        """Continue behind the rows of the database."""
        rows = bulk.fetch(connection, "SELECT height, erc1155 FROM derived_state")
        self.height, self._erc1155 = rows[0] if rows else (-1, 0)
        self._partition = -1
        self._seen = set()
        for tables in (self._ownership, self._transfers, self._directory):
            tables.open()
        self.holders.open(connection)

    def add(
        self,
        connection: Connection,
        height: int,
        blocks: Sequence[Any],
        transfers: Sequence[Any],
        creations: Sequence[Any],
        new_tokens: set[int],
        balances: Sequence[BalanceRow],
        now: int,
        *,
        is_complete: bool,
    ) -> None:
        """Add the rows of the next blocks, up to a height. See Ownership.apply and Holders.add.

        blocks: number, hash, time and transactions so far of each, in order. now: unix seconds.
        """
        prefixes = [(number >> BLOCK_PARTITION_BITS, prefix_of(raw), number) for number, raw, _, _ in blocks]
        bulk.insert(connection, BLOCK_HASHES, sorted(prefixes))
        days = {day_of(time): (number, time, txs) for number, _, time, txs in blocks}
        bulk.upsert(connection, DAYS, [(day, *last) for day, last in sorted(days.items())])
        nfts = self._ownership.apply(connection, transfers, new_tokens, is_complete=is_complete)
        self.holders.add(connection, balances, nfts, height, now)
        self._add_address_transfers(connection, [row for row in transfers if row[3] & 1])
        add_address_creations(connection, creations)
        self.height = height
        bulk.upsert(connection, DERIVED_STATE, [(0, height, self._erc1155, now)])

    def rebuild(self, connection: Connection, first: int, last: int, now: int, *, is_complete: bool) -> None:
        """Derive the rows of some more stored blocks of those from `first` to `last`."""
        begin = max(first, self.height + 1)
        end = min(last, begin + _REBUILT_BLOCKS - 1)
        # The blocks with the next transfers: at least one block, completely.
        text = "SELECT key FROM transfers WHERE key >= ? AND key < ? ORDER BY key LIMIT 1 OFFSET ?"
        beyond = bulk.fetch(connection, text, block_key(begin), block_key(end + 1), _REBUILT_TRANSFERS)
        if beyond:
            end = max(begin, height_of(beyond[0][0]) - 1)
        bounds = (block_key(begin), block_key(end + 1))
        text = "SELECT number, hash, time, txs FROM blocks WHERE number BETWEEN ? AND ? ORDER BY number"
        blocks = bulk.fetch(connection, text, begin, end)
        transfers = bulk.fetch(connection, "SELECT * FROM transfers WHERE key >= ? AND key < ? ORDER BY key", *bounds)
        text = "SELECT * FROM creations WHERE tx >= ? AND tx < ? ORDER BY tx, position"
        creations = bulk.fetch(connection, text, *bounds)
        balances = read_balances(connection, begin, end)
        is_first = begin == first
        self.add(connection, end, blocks, transfers, creations, set(), balances, now, is_complete=is_complete)
        if is_first:
            self.holders.begin_at(connection, end)

    def _add_address_transfers(self, connection: Connection, transfers: Sequence[TransferRow]) -> None:
        rows: list[tuple[int, int, int]] = []
        directory: set[tuple[int, int]] = set()
        partitions = []
        count, seen = self._erc1155, self._seen
        for key, _, _, _, sender, recipient, _ in transfers:
            partition = count >> TRANSFER_PARTITION_BITS
            count += 1
            if partition != self._partition:
                if count == (partition << TRANSFER_PARTITION_BITS) + 1:
                    partitions.append((partition, key))
                self._partition = partition
                seen.clear()
            for address in (sender, recipient) if sender != recipient else (sender,):
                rows.append((partition, address, key))
                if address not in seen:
                    seen.add(address)
                    directory.add((address, partition))
        if len(seen) > _MAX_SEEN:
            seen.clear()
        self._erc1155 = count
        self._transfers.put(connection, sorted(rows))
        self._directory.put(connection, sorted(directory))
        bulk.insert(connection, TRANSFER_PARTITIONS, partitions)


def add_address_creations(connection: Connection, creations: Sequence[CreationRow]) -> None:
    """Add the creations to the pages of their senders and factories; existing rows stay."""
    rows = {(sender, tx, position) for tx, position, _, sender, _ in creations}
    rows |= {(factory, tx, position) for tx, position, _, _, factory in creations if factory is not None}
    bulk.insert_new(connection, ADDRESS_CREATIONS, sorted(rows))
