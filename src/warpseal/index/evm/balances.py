"""ERC-20 balances after the blocks that changed them: facts, since the transfers themselves are not kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Final

from warpseal.chains.evm.facts import EvmBlockFacts
from warpseal.index import bulk
from warpseal.index.evm.holders import Holders, Pair
from warpseal.index.evm.keys import MAX_BALANCE, balance_of, pack, unpack
from warpseal.index.evm.rows import BalanceRow
from warpseal.index.evm.schema import BALANCE_PARTITIONS, BALANCES, INCONSISTENT_ASSETS
from warpseal.store.connection import Connection

_PARTITION_ROWS: Final = 1 << 18
_ROWS_OF_BLOCKS: Final = (
    "SELECT asset, holder, block, balance FROM balances WHERE partition BETWEEN ? AND ? AND block BETWEEN ? AND ?"
    " ORDER BY asset, holder, block"
)
_PARTITION_OF: Final = "SELECT max(number) FROM balance_partitions WHERE first <= ?"
_Transfer = tuple[int, int, int, int]
"""Keys of asset, sender and recipient, 0 for the zero address, and the amount."""


class Balances:
    """Writes the balances of blocks. holders: they have the balances so far.

    capacity: number of rows in a small table; a partition has twice as many, so that the newest one stays in memory.
    """

    def __init__(self, connection: Connection, holders: Holders, capacity: int) -> None:
        self._holders = holders
        self._partition_rows = min(_PARTITION_ROWS, 2 * capacity)
        rows = connection.fetch("SELECT number, first FROM balance_partitions ORDER BY number DESC LIMIT 1")
        self._partition: int = rows[0][0] if rows else -1
        self._first: int = rows[0][1] if rows else 0
        text = "SELECT count(*) FROM balances WHERE partition = ?"
        ((self._rows,),) = connection.fetch(text, self._partition)

    def write(
        self, connection: Connection, blocks: Sequence[EvmBlockFacts], keys: Mapping[bytes, int]
    ) -> list[BalanceRow]:
        """Write the balances after the next blocks; return them sorted by asset, holder and block.

        keys: the key of each address of the transfers; 0 of the zero address.
        """
        # Plain tuples: a million transfers pass here in a minute, and one with names takes 4 % of the whole write.
        moves: list[tuple[int, list[_Transfer]]] = []
        pairs: set[Pair] = set()
        for block in blocks:
            transfers = [
                (keys[transfer.contract], keys[transfer.sender], keys[transfer.recipient], transfer.amount)
                for transfer in block.erc20_transfers
            ]
            if transfers:
                moves.append((block.number, transfers))
                pairs.update(
                    [(asset, party) for asset, first, second, _ in transfers for party in (first, second) if party]
                )
        if not pairs:
            return []
        states = self._holders.find(connection, pairs)
        balances = {pair: balance_of(state.rank) for pair, state in states.items()}
        changed = {pair: state.changed for pair, state in states.items()}
        rows: list[BalanceRow] = []
        stored: list[tuple[int, int, int, int, bytes, int | None]] = []
        inconsistent: set[int] = set()
        for number, block_moves in moves:
            before = _apply(balances, block_moves, inconsistent)
            after = [(pair, balances[pair]) for pair, balance in before.items() if balances[pair] != balance]
            if after and (self._partition < 0 or self._rows >= self._partition_rows):
                self._partition += 1
                self._first, self._rows = number, 0
                bulk.insert(connection, BALANCE_PARTITIONS, [(self._partition, number)])
            for pair, balance in after:
                # The first row of a holder in a partition names its change before: readers follow these links back
                # and open no partition without a row of the holder.
                last = changed.get(pair)
                previous = last if last is not None and last < self._first else None
                changed[pair] = number
                rows.append(BalanceRow(*pair, number, balance))
                stored.append((self._partition, *pair, number, pack(balance), previous))
            self._rows += len(after)
        bulk.insert(connection, BALANCES, sorted(stored, key=itemgetter(0, 1, 2, 3)))
        bulk.insert_new(connection, INCONSISTENT_ASSETS, [(asset,) for asset in sorted(inconsistent)])
        rows.sort()
        return rows


def read_balances(connection: Connection, first: int, last: int) -> list[BalanceRow]:
    """Return the balances after blocks, sorted by asset, holder and block."""
    low, high = (connection.fetch(_PARTITION_OF, bound)[0][0] for bound in (first, last))
    if high is None:
        return []
    rows = connection.fetch(_ROWS_OF_BLOCKS, low or 0, high, first, last)
    return [BalanceRow(asset, holder, block, unpack(raw)) for asset, holder, block, raw in rows]


def _apply(balances: dict[Pair, int], moves: Sequence[_Transfer], inconsistent: set[int]) -> dict[Pair, int]:
    """Apply the transfers of a block in their order; return the earlier balances of all holders that they touch."""
    before: dict[Pair, int] = {}
    for asset, sender, recipient, amount in moves:
        for holder, change in ((sender, -amount), (recipient, amount)):
            if holder:
                pair = (asset, holder)
                balance = balances.get(pair, 0)
                before.setdefault(pair, balance)
                balance += change
                if not 0 <= balance <= MAX_BALANCE:
                    inconsistent.add(asset)
                    balance = 0 if balance < 0 else MAX_BALANCE
                balances[pair] = balance
    return before
