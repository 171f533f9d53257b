"""The derived rows of blocks, transfers and creations, made with them or later from the facts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from warpseal.errors import DAY_S
from warpseal.index import bulk
from warpseal.index.evm import schema
from warpseal.index.evm.contracts import add_address_creations, find_recreations
from warpseal.index.evm.holders import Holders
from warpseal.index.evm.icm_writer import IcmDerivedRows, read_icm_rows
from warpseal.index.evm.keys import (
    BLOCK_PARTITION_BITS,
    TRANSFER_PARTITION_BITS,
    block_key,
    height_of,
    is_erc1155,
)
from warpseal.index.evm.ownership import Ownership, read_balances
from warpseal.index.evm.recent_rows import RecentRows
from warpseal.index.evm.rows import (
    BatchRows,
    BlockRow,
    CreationRow,
    EvmChainRow,
    Recreation,
    TransferRow,
)
from warpseal.index.keys import prefix_of
from warpseal.store.connection import Connection

_REBUILT_TRANSFERS: Final = 20_000
_REBUILT_BLOCKS: Final = 50_000
_MAX_ADDRESSES: Final = 200_000
_STATE: Final = "SELECT height, erc1155 FROM derived_state"
_COLLECTIONS: Final = "SELECT contract, number FROM collections WHERE contract IN {keys}"
# Keys of facts of many rows: the statements return the first key beyond a number of them.
_BEYOND: Final = (
    "SELECT key FROM transfers WHERE key >= ? AND key < ? ORDER BY key LIMIT 1 OFFSET ?",
    "SELECT key FROM icm_sends WHERE key >= ? AND key < ? ORDER BY key LIMIT 1 OFFSET ?",
    "SELECT key FROM icm_receives WHERE key >= ? AND key < ? ORDER BY key LIMIT 1 OFFSET ?",
)
_BLOCKS: Final = "SELECT * FROM blocks WHERE number BETWEEN ? AND ? ORDER BY number"
_TRANSFERS: Final = "SELECT * FROM transfers WHERE key >= ? AND key < ? ORDER BY key"
_CREATIONS: Final = "SELECT * FROM creations WHERE tx >= ? AND tx < ? ORDER BY tx, position"


class DerivedRows:
    """Derives rows from facts, block by block.

    cached, capacity: see Ownership.
    """

    def __init__(self, connection: Connection, cached: int, capacity: int) -> None:
        self.height = -1
        # The number of ERC-1155 transfers so far, which gives the partition of the next one.
        self._erc1155 = 0
        for height, erc1155 in connection.fetch(_STATE):
            self.height, self._erc1155 = height, erc1155
        self._ownership = Ownership(cached, capacity)
        self._transfers = RecentRows(schema.ADDRESS_TRANSFERS, capacity)
        self._directory = RecentRows(schema.ADDRESS_PARTITIONS, capacity)
        self.holders = Holders(connection, cached, capacity)
        self._icm = IcmDerivedRows(capacity)
        # The addresses with transfers in the newest partition.
        self._partition = -1
        self._addresses: set[int] = set()

    def add(self, connection: Connection, rows: BatchRows, now: int) -> None:
        """Add the rows that follow from the rows of the next blocks.

        now: unix seconds.
        """
        prefixes = [
            (row.number >> BLOCK_PARTITION_BITS, prefix_of(row.hash), row.number)
            for row in rows.blocks
        ]
        bulk.insert(connection, schema.BLOCK_HASHES, sorted(prefixes))
        days = {row.time // DAY_S: (row.number, row.time, row.txs) for row in rows.blocks}
        bulk.upsert(connection, schema.DAYS, [(day, *last) for day, last in sorted(days.items())])
        # Numbers of NFTs follow from the change of owners, so owners come before holders.
        nft_changes = self._ownership.apply(connection, rows)
        self.holders.add(connection, rows.balances, nft_changes, rows.height, now)
        erc1155_transfers = [row for row in rows.transfers if is_erc1155(row.token)]
        self._add_address_transfers(connection, erc1155_transfers)
        add_address_creations(connection, rows.creations)
        self._icm.add(connection, rows.icm)
        self.height = rows.height
        bulk.upsert(connection, schema.DERIVED_STATE, [(0, rows.height, self._erc1155, now)])

    def end_destroyed(
        self,
        connection: Connection,
        recreations: Sequence[Recreation],
        now: int,
        *,
        is_complete: bool,
    ) -> None:
        """End the holdings of contracts that were created again, up to the derived height."""
        end = block_key(self.height + 1)
        newest: dict[int, int] = {}
        for row in recreations:
            # Only the newest creation counts: an earlier one has ended by now as well.
            is_newest = row.until is None or row.until >= end
            if row.tx < end and is_newest:
                newest[row.contract] = row.tx
        numbers = bulk.fetch_by_keys(connection, _COLLECTIONS, newest)
        begins = {number: newest[contract] for contract, number in numbers}
        if begins:
            height = self.height
            changes = self._ownership.renew(connection, begins, height, is_complete=is_complete)
            self.holders.add(connection, (), changes, height, now)

    def rebuild(self, connection: Connection, chain: EvmChainRow, now: int) -> None:
        """Derive the rows of the next stored blocks of a chain."""
        begin = max(chain.first_height, self.height + 1)
        end = min(chain.height, begin + _REBUILT_BLOCKS - 1)
        # The blocks with the next transfers and messages: at least one block, completely.
        for text in _BEYOND:
            bounds = (block_key(begin), block_key(end + 1))
            for (key,) in connection.fetch(text, *bounds, _REBUILT_TRANSFERS):
                end = max(begin, height_of(key) - 1)
        bounds = (block_key(begin), block_key(end + 1))
        rows = BatchRows(
            height=end,
            blocks=list(map(BlockRow._make, connection.fetch(_BLOCKS, begin, end))),
            transfers=list(map(TransferRow._make, connection.fetch(_TRANSFERS, *bounds))),
            creations=list(map(CreationRow._make, connection.fetch(_CREATIONS, *bounds))),
            balances=read_balances(connection, begin, end),
            new_tokens=set(),
            is_complete=chain.is_complete,
            icm=read_icm_rows(connection, bounds),
        )
        self.add(connection, rows, now)
        recreations = find_recreations(connection, rows.creations)
        self.end_destroyed(connection, recreations, now, is_complete=chain.is_complete)
        if begin == chain.first_height:
            # Former holders of the first batch were never written, so no page shows a block of it.
            self.holders.begin_at(connection, end)

    def _add_address_transfers(
        self, connection: Connection, transfers: Sequence[TransferRow]
    ) -> None:
        rows: list[tuple[int, int, int]] = []
        directory: set[tuple[int, int]] = set()
        partitions = []
        count, addresses = self._erc1155, self._addresses
        for row in transfers:
            partition = count >> TRANSFER_PARTITION_BITS
            count += 1
            if partition != self._partition:
                if count == (partition << TRANSFER_PARTITION_BITS) + 1:
                    partitions.append((partition, row.key))
                self._partition = partition
                addresses.clear()
            for address in {row.sender, row.recipient}:
                rows.append((partition, address, row.key))
                if address not in addresses:
                    addresses.add(address)
                    directory.add((address, partition))
        if len(addresses) > _MAX_ADDRESSES:
            addresses.clear()
        self._erc1155 = count
        self._transfers.put(connection, sorted(rows))
        self._directory.put(connection, sorted(directory))
        bulk.insert(connection, schema.TRANSFER_PARTITIONS, partitions)
