"""What addresses hold, from transfers in their order: the last receiver owns a token of ERC-721.

Owners and balances of NFTs are derived. ERC-20 balances after the blocks that changed them are facts, since those
transfers are not kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Final

from warpseal.chains.evm.facts import EvmBlockFacts
from warpseal.index import bulk
from warpseal.index.evm.holders import NO_NFT_CHANGES, Holders, NftChanges, Pair
from warpseal.index.evm.keys import MAX_BALANCE, balance_of, collection_of, is_erc1155, pack, unpack
from warpseal.index.evm.recent_rows import RecentRows, find_held, forget_oldest
from warpseal.index.evm.rows import BalanceRow, BatchRows, TransferRow
from warpseal.index.evm.schema import BALANCE_PARTITIONS, BALANCES, HOLDINGS, INCONSISTENT, INCONSISTENT_ASSETS, OWNERS
from warpseal.store.connection import Connection

_PARTITION_ROWS: Final = 1 << 18
_ROWS_OF_BLOCKS: Final = (
    "SELECT asset, holder, block, balance FROM balances WHERE partition BETWEEN ? AND ? AND block BETWEEN ? AND ?"
    " ORDER BY asset, holder, block"
)
_PARTITION_OF: Final = "SELECT max(number) FROM balance_partitions WHERE first <= ?"
_Transfer = tuple[int, int, int, int]
"""Keys of asset, sender and recipient, 0 for the zero address, and the amount."""
_RECENT_OWNERS: Final = "SELECT token, holder FROM recent_owners WHERE token IN {keys}"
_OLDER_OWNERS: Final = "SELECT token, holder FROM older_owners WHERE token IN {keys}"


class Ownership:
    """Owners and balances in the database.

    cached: number of each in memory. capacity: the number of rows in each of the small tables.
    """

    def __init__(self, cached: int, capacity: int) -> None:
        self._cached = cached
        # Those that changed last: by token, see _Batch, and by owner and token of ERC-1155.
        self._cached_holders: dict[int, int] = {}
        self._cached_balances: dict[tuple[int, int], int] = {}
        self._owners = RecentRows(OWNERS, capacity)
        self._holdings = RecentRows(HOLDINGS, capacity)

    def apply(self, connection: Connection, rows: BatchRows) -> NftChanges:
        """Change owners and balances by transfers; return the changes of the numbers of tokens.

        If the index does not begin at block 0, no contradiction is certain, and a balance of 0 may be a positive one.
        """
        if not rows.transfers:
            return NO_NFT_CHANGES
        batch = _Batch(connection, rows, self._cached_holders, self._cached_balances)
        batch.apply(rows.transfers)
        owners, holdings, nft_changes = batch.changes()
        self._owners.put(connection, owners)
        self._holdings.put(connection, holdings)
        if rows.is_complete:
            bulk.insert_new(connection, INCONSISTENT, [(number,) for number in sorted(batch.inconsistent)])
        batch.remember()
        forget_oldest(self._cached_holders, self._cached)
        forget_oldest(self._cached_balances, self._cached)
        return nft_changes


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
            before = _apply_moves(balances, block_moves, inconsistent)
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


class _Batch:
    """Owners and balances that one batch touches, before and after it. Ownership has the cached ones."""

    def __init__(
        self,
        connection: Connection,
        rows: BatchRows,
        cached_holders: dict[int, int],
        cached_balances: dict[tuple[int, int], int],
    ) -> None:
        self._is_complete = rows.is_complete
        self._cached_holders = cached_holders
        self._cached_balances = cached_balances
        # The numbers of contracts whose events contradict each other.
        self.inconsistent: set[int] = set()
        holders = {row.token: cached_holders.get(row.token, 0) for row in rows.transfers}
        missing = holders.keys() - rows.new_tokens - cached_holders.keys()
        # A row of the small table counts before the large table's, also if it says that there is no owner.
        recent = dict(bulk.fetch_by_keys(connection, _RECENT_OWNERS, missing))
        holders.update(recent)
        holders.update(dict(bulk.fetch_by_keys(connection, _OLDER_OWNERS, missing - recent.keys())))
        # By token: its owner, or the number of its holders. 0: none.
        self._holders, self._holders_before = holders, holders.copy()
        moved = [row for row in rows.transfers if is_erc1155(row.token) and row.token not in rows.new_tokens]
        balances = self._find_balances(connection, {(row.sender, row.token) for row in moved if row.sender})
        # Senders come first: a recipient needs no lookup if the senders are already all holders of the token, as with
        # tokens of a single holder.
        sender_counts = Counter(token for _, token in balances)
        recipients = {
            (row.recipient, row.token)
            for row in moved
            if row.recipient and sender_counts[row.token] < holders[row.token]
        }
        balances |= self._find_balances(connection, recipients - balances.keys())
        # By owner and token of ERC-1155; absent: none.
        self._balances, self._balances_before = balances, balances.copy()

    def apply(self, transfers: Sequence[TransferRow]) -> None:
        """Apply transfers in their order."""
        holders, inconsistent = self._holders, self.inconsistent
        for row in transfers:
            token = row.token
            if is_erc1155(token):
                self._move(row, 1 if row.amount is None else unpack(row.amount))
            else:
                if holders[token] != row.sender:
                    inconsistent.add(collection_of(token))
                holders[token] = row.recipient

    def changes(self) -> tuple[list[tuple[int, int]], list[tuple[int, int, bytes | None, int]], NftChanges]:
        """Return the changed rows of owners, 0 for none, and of holdings, in order; and numbers of tokens."""
        owners: list[tuple[int, int]] = []
        holdings: dict[tuple[int, int], tuple[bytes | None, int]] = {}
        counts: Counter[tuple[int, int]] = Counter()
        tokens: Counter[int] = Counter()
        for token, holder in self._holders.items():
            previous = self._holders_before[token]
            if holder == previous:
                continue
            owners.append((token, holder))
            collection = collection_of(token)
            tokens[collection] += bool(holder) - bool(previous)
            if not is_erc1155(token):
                if previous:
                    holdings[previous, token] = (None, 0)
                    counts[collection, previous] -= 1
                if holder:
                    holdings[holder, token] = (None, 1)
                    counts[collection, holder] += 1
        for pair, balance in self._balances.items():
            if balance != self._balances_before.get(pair):
                holdings[pair] = (pack(balance), 1)
        holdings.update((pair, (None, 0)) for pair in self._balances_before if pair not in self._balances)
        for holder, token in self._balances.keys() ^ self._balances_before.keys():
            counts[collection_of(token), holder] += 1 if (holder, token) in self._balances else -1
        rows = sorted((*pair, *row) for pair, row in holdings.items())
        return sorted(owners), rows, NftChanges(counts, tokens)

    def remember(self) -> None:
        """Put owners and balances behind the cached ones: the oldest are forgotten first."""
        for token, holder in self._holders.items():
            self._cached_holders.pop(token, None)
            self._cached_holders[token] = holder
        for pair in self._balances_before:
            self._cached_balances.pop(pair, None)
        self._cached_balances.update(self._balances)

    def _find_balances(self, connection: Connection, pairs: set[tuple[int, int]]) -> dict[tuple[int, int], int]:
        """Return the balances of those owners and tokens that are held."""
        cached = self._cached_balances
        balances = {pair: cached[pair] for pair in pairs if pair in cached}
        for pair, raw in find_holdings(connection, pairs - balances.keys()).items():
            balances[pair] = unpack(raw or b"")
        return balances

    def _move(self, row: TransferRow, amount: int) -> None:
        """Move an amount of an ERC-1155 token. The zero address, 0, has no balance."""
        token, sender, recipient = row.token, row.sender, row.recipient
        if sender:
            balance = self._balances.get((sender, token), 0) - amount
            if balance < 0:
                self.inconsistent.add(collection_of(token))
            self._set(sender, token, max(0, balance))
        if recipient:
            balance = self._balances.get((recipient, token), 0) + amount
            if balance > MAX_BALANCE:
                self.inconsistent.add(collection_of(token))
            self._set(recipient, token, min(MAX_BALANCE, balance))

    def _set(self, owner: int, token: int, balance: int) -> None:
        pair = (owner, token)
        # An index that begins later knows no balance for certain.
        if balance or not self._is_complete:
            if pair not in self._balances:
                self._holders[token] += 1
            self._balances[pair] = balance
        elif pair in self._balances:
            del self._balances[pair]
            self._holders[token] -= 1


def read_balances(connection: Connection, first: int, last: int) -> list[BalanceRow]:
    """Return the balances after blocks, sorted by asset, holder and block."""
    low, high = (connection.fetch(_PARTITION_OF, bound)[0][0] for bound in (first, last))
    if high is None:
        return []
    rows = connection.fetch(_ROWS_OF_BLOCKS, low or 0, high, first, last)
    return [BalanceRow(asset, holder, block, unpack(raw)) for asset, holder, block, raw in rows]


def find_holdings(connection: Connection, pairs: set[tuple[int, int]]) -> dict[tuple[int, int], bytes | None]:
    """Return the balances, None for ERC-721, of those owners and tokens that are held."""
    return {(owner, token): balance for owner, token, balance in find_held(connection, HOLDINGS, pairs)}


def _apply_moves(balances: dict[Pair, int], moves: Sequence[_Transfer], inconsistent: set[int]) -> dict[Pair, int]:
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
